// labels: gpu
// Training on a GPU: the loss curves of the cores, every strategy on several ranks that share the card, memory as
// predicted, and the same bits twice.
#include <cmath>
#include <cstddef>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cluster/json.hpp>
#include <galvatron/profile/gpu.hpp>
#include <galvatron/train/gpu_compiled.hpp>
#include <galvatron/train/gpus.hpp>

#include "../device/gpu_fixture.hpp"
#include "check_plan.hpp"
#include "compressed.hpp"
#include "packed_cases.hpp"
#include "random_plan.hpp"
#include "run_rank.hpp"
#include "same_training.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace galvatron;
using namespace toy;

Outcome on_gpu(const Plan& plan, const ModelSpec& model, RunOptions options) {
  Outcome out;
  std::mutex mutex;
  const auto samples = options.source == nullptr ? source_of(model, plan.sequence_length) : nullptr;
  if (samples != nullptr) options.source = samples.get();
  train::detail::on_one_gpu(
      plan.ranks(), test::first_gpu(), {}, [&](comm::World& world, int ordinal, device::cuda::Stream& compute) {
        run_rank_in_precision(world, plan, model, options, out, mutex, train::CudaPlatform{ordinal, &compute});
      });
  return out;
}

template <bool is_llama, int rank_count>
struct ModelOnRanks {
  static constexpr bool llama = is_llama;
  static constexpr int ranks = rank_count;
};
using GptOn4 = ModelOnRanks<false, 4>;
using GptOn8 = ModelOnRanks<false, 8>;
using LlamaOn4 = ModelOnRanks<true, 4>;
using LlamaOn8 = ModelOnRanks<true, 8>;

/// The losses of a run in bf16 on one rank.
std::vector<double> losses_of(const ModelSpec& spec, const train::TrainOptions& options) {
  const Plan plan = single_rank(spec, Precision::bf16);
  const auto source = source_of(spec, plan.sequence_length);
  std::vector<double> losses;
  for (const auto& step : train::train_on_gpu(plan, spec, *source, options, test::first_gpu()).steps)
    losses.push_back(step.loss);
  return losses;
}

std::vector<ModelSpec> models() {
  return {model(false, 4), model(true, 4),     bert(4),         vit(4), t5(4, true), swin({1, 1, 2, 1}),
          experts(8),      attention_kinds(4), decoder_kinds(4)};
}

}  // namespace

TEST_CASE("the loss curves of 20 steps are those of the cores") {
  for (const ModelSpec& spec : models()) {
    CAPTURE(spec.name);
    const int steps = spec.takes_images() ? 10 : 20;
    const Outcome cores = run(single_rank(spec), spec, steps);
    const Outcome gpu = on_gpu(single_rank(spec), spec, {steps});
    CHECK(difference(gpu.losses, cores.losses) < 1e-4);
    CHECK(difference(gpu.gradients, cores.gradients) < 1e-5);
    CHECK(gpu.memory_as_planned);
    const Outcome rounded = on_gpu(single_rank(spec, Precision::bf16), spec, {steps});
    CHECK(difference(rounded.losses, cores.losses) < 2e-2);
    CHECK(rounded.memory_as_planned);
  }
}

TEST_CASE("8-bit products train as on the cores, up to their rounding") {
  const auto gpu = device::cuda::describe_device(test::first_gpu());
  if (!device::cuda::has_8bit_products(gpu)) {
    CHECK_THROWS_AS(train::CudaPlatform::require(Precision::fp8), DeviceFailure);
    MESSAGE("skipped: this GPU has no 8-bit products");
    return;
  }
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 4);
    const Outcome plain = on_gpu(single_rank(spec, Precision::bf16), spec, {20});
    const Outcome rounded = on_gpu(single_rank(spec, Precision::fp8), spec, {20});
    CHECK(difference(rounded.losses, plain.losses) < 2e-2);
    CHECK(difference(rounded.gradients, plain.gradients) < 0.12);
    CHECK(rounded.memory_as_planned);
    CHECK(on_gpu(single_rank(spec, Precision::fp8), spec, {20}).gradients == rounded.gradients);
  }
}

TEST_CASE_TEMPLATE("every strategy that 4 and 8 ranks allow trains as one rank does", Case, GptOn4, GptOn8, LlamaOn4,
                   LlamaOn8) {
  const ModelSpec spec = model(Case::llama, 4);
  const Outcome reference = on_gpu(single_rank(spec), spec, {3});
  for (const Plan& plan : combinations(spec, Case::ranks)) check_plan(plan, spec, reference, on_gpu);
}

TEST_CASE("random plans on up to 16 ranks train as one rank does") {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  constexpr int steps = 2;
  for (const ModelSpec& spec : random_plan_models()) {
    const Outcome reference = on_gpu(single_rank(spec), spec, {steps});
    for (int checked = 0; checked < 10;)
      if (const auto plan = random_plan(random, spec)) {
        check_plan(*plan, spec, reference, on_gpu);
        ++checked;
      }
  }
}

TEST_CASE("packed documents train as one by one on the cores, whatever shares them") {
  for (const bool llama : {false, true}) check_packed_documents(model(llama, 2), on_gpu, true);
}

TEST_CASE("compressed dispatch takes the planned memory, twice gives the same bits, and learns") {
  const LshOptions lsh{.hashes = 2, .width = 2};
  const ModelSpec spec = with_dispatch(experts(4), lsh);
  for (const StrategySpec& strategy : exchanging_strategies) {
    const Plan plan = compressing_plan(spec, strategy, lsh, 2);
    INFO(text(plan));
    const Outcome outcome = on_gpu(plan, spec, {12});
    CHECK(outcome.memory_as_planned);
    CHECK(outcome.copies_agree);
    CHECK(outcome.losses.back() < 0.98 * outcome.losses.front());
    check_same_bits(plan, spec, 3, on_gpu);
  }
}

TEST_CASE("compressed dispatch of tokens that are too different to compress is plain dispatch") {
  const ModelSpec spec = experts(4);
  const Outcome reference = on_gpu(single_rank(spec), spec, {4});
  for (const StrategySpec& strategy : exchanging_strategies)
    check_plan(compressing_plan(spec, strategy, compresses_nothing, 2), spec, reference, on_gpu);
}

TEST_CASE("the same plan twice gives the same bits") {
  const ModelSpec spec = model(true, 4);
  const Plan plan = uniform(spec, 2, {.tensor = 2, .data = 2, .zero = 3}, 2, ScheduleKind::one_f_one_b);
  check_same_bits(plan, spec, 5, on_gpu);
}

TEST_CASE("steps that are launched whole give the bits of operations one by one, and no reason to do otherwise") {
  for (const ModelSpec& spec : models())
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      CAPTURE(spec.name);
      const Plan plan = single_rank(spec, precision);
      const auto source = source_of(spec, plan.sequence_length);
      train::TrainOptions options;
      options.steps = 6;
      options.searches = false;
      options.learning_rate = {.peak = 1e-3, .floor = 1e-3, .warmup_steps = 0, .steps = 6};
      const auto whole = train::train_on_gpu(plan, spec, *source, options, test::first_gpu());
      for (const std::string& remark : whole.remarks) CHECK(remark.find("CUDA graph") == std::string::npos);
      options.repeats = false;
      const auto one_by_one = train::train_on_gpu(plan, spec, *source, options, test::first_gpu());
      for (std::size_t i = 0; i < whole.steps.size(); ++i) {
        CHECK(whole.steps[i].loss == one_by_one.steps[i].loss);
        CHECK(whole.steps[i].gradient_norm == one_by_one.steps[i].gradient_norm);
      }
    }
}

TEST_CASE("searched algorithms train as cuBLASLt's first choice, and are kept") {
  const ModelSpec spec = model(true, 2);
  train::TrainOptions options;
  options.steps = 6;
  const std::vector<double> searched = losses_of(spec, options);
  CHECK(searched.size() == 6);
  CHECK(losses_of(spec, options) == searched);
  options.searches = false;
  CHECK(losses_of(spec, options) == searched);
}

TEST_CASE("training that is not deterministic has the losses of the one that is, up to the rounding of gradients") {
  const ModelSpec spec = model(false, 4);
  train::TrainOptions options;
  options.steps = 10;
  const std::vector<double> exact = losses_of(spec, options);
  options.deterministic = false;
  const std::vector<double> rounded = losses_of(spec, options);
  REQUIRE(rounded.size() == exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) CHECK(std::abs(exact[i] - rounded[i]) < 1e-2 * exact[i]);
}

TEST_CASE("a profile of the GPU has the rates of each precision once, and can be read again") {
  test::first_gpu();
  const Cluster cluster =
      value_or_throw(train::profile_gpus({.ranks = 1, .precisions = {Precision::bf16}, .time_budget{2}}));
  REQUIRE(cluster.device.rates.size() == 1);
  CHECK(cluster.device.rates[0].precision == Precision::bf16);
  CHECK(*cluster_from_json(cluster_to_json(cluster), "profile") == cluster);
}
