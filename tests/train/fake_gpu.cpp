// Training with the GPU's kernels, emulated: losses, gradients and memory of the cores, on one rank and on several that
// share the GPU.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "check_plan.hpp"
#include "fake_gpu_compiled.hpp"
#include "packed_cases.hpp"
#include "random_plan.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace galvatron;
using namespace toy;

Outcome on_gpu(const Plan& plan, const ModelSpec& model, RunOptions options) {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  Outcome out;
  std::mutex mutex;
  const auto samples = options.source == nullptr ? source_of(model, plan.sequence_length) : nullptr;
  if (samples != nullptr) options.source = samples.get();
  test::on_fake_gpu(plan.ranks(), seed, [&](test::FakeGpuWorld& world, const test::FakeGpuPlatform& platform) {
    run_rank_in_precision(world, plan, model, options, out, mutex, platform);
  });
  return out;
}

}  // namespace

TEST_CASE("every family trains on the GPU as on the cores") {
  constexpr int steps = 3;  // done, recorded, done from the record
  for (const ModelSpec& spec : {model(false, 1), model(true, 1), bert(1), vit(1), t5(2, true), swin({1, 2, 1, 1}),
                                experts(8), attention_kinds(4), decoder_kinds(2)}) {
    CAPTURE(spec.name);
    const Plan plan = single_rank(spec);
    const Outcome cores = run(plan, spec, steps);
    const Outcome gpu = on_gpu(plan, spec, {steps});
    CHECK(difference(gpu.losses, cores.losses) < 1e-5);
    CHECK(difference(gpu.norms, cores.norms) < 1e-4);
    CHECK(difference(gpu.gradients, cores.gradients) < 1e-5);
    CHECK(gpu.memory_as_planned);
  }
}

// Sums of bfloat16 activations in another order round differently, and what is rounded differently may fall to another
// 8-bit number.
TEST_CASE("8-bit products train on the GPU as on the cores") {
  if (!device::Host::supports(Precision::fp8)) {
    MESSAGE("skipped: this processor has no bf16 arithmetic");
    return;
  }
  constexpr int steps = 2;
  const ModelSpec spec = model(true, 1);
  for (const Plan& one : {single_rank(spec), uniform(spec, 1, {.tensor = 2}, 1, ScheduleKind::one_f_one_b)}) {
    Plan plan = one;
    plan.precision = Precision::bf16;
    const Outcome plain = run(plan, spec, steps);
    plan.precision = Precision::fp8;
    const Outcome cores = run(plan, spec, steps);
    const Outcome gpu = on_gpu(plan, spec, {steps});
    INFO(text(plan));
    MESSAGE("gradients of GPU and cores differ by " << difference(gpu.gradients, cores.gradients)
                                                    << ", of fp8 and bf16 by "
                                                    << difference(cores.gradients, plain.gradients));
    CHECK(difference(gpu.losses, cores.losses) < 1e-3);
    CHECK(difference(gpu.gradients, cores.gradients) < 0.5 * difference(cores.gradients, plain.gradients));
    CHECK(gpu.memory_as_planned);
  }
}

TEST_CASE("ranks that share the GPU train as one does") {
  constexpr int steps = 2;
  const ModelSpec spec = model(true, 2);
  const Outcome reference = run(single_rank(spec), spec, steps);
  for (const Plan& plan :
       {uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1}, 1,
                ScheduleKind::one_f_one_b),
        uniform(spec, 2, {.data = 2, .zero = 3, .recompute = RecomputeKind::full}, 2, ScheduleKind::one_f_one_b),
        uniform(spec, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .recompute = RecomputeKind::none}, 2,
                ScheduleKind::zb_h1),
        uniform(spec, 1, {.sequence = SequenceKind::ring, .context = 2, .data = 1, .zero = 2}, 1, ScheduleKind::gpipe),
        uniform(spec, 2, {.sequence = SequenceKind::ulysses, .context = 2}, 2, ScheduleKind::zb_h1),
        uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .zero = 3}, 2,
                ScheduleKind::one_f_one_b)})
    check_plan(plan, spec, reference, on_gpu);
}

TEST_CASE("tensor ranks and context ranks with unequal shares train on the GPU as one rank does") {
  const RandomPlanBudget budget(4);
  std::mt19937 random(budget.seed);
  const std::vector<ModelSpec> models{model(true, 2), attention_kinds(2)};
  std::vector<Outcome> references;
  for (const ModelSpec& spec : models) references.push_back(run(single_rank(spec), spec, 2));
  UnevenTally tally;
  int done = 0;
  const auto begin = std::chrono::steady_clock::now();
  while (budget.goes_on(done, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())) {
    const std::size_t chosen = random() % models.size();
    const std::optional<Plan> plan = random_uneven_plan(random, models[chosen]);
    if (!plan || plan->ranks() > 8) continue;
    INFO("GALVATRON_RANDOM_SEED=" << budget.seed << ", plan " << done);
    check_plan(*plan, models[chosen], references[chosen], on_gpu);
    tally.add(*plan, models[chosen]);
    ++done;
  }
  MESSAGE("seed " << budget.seed << ", " << done << " plans; " << tally.text());
}

TEST_CASE("ranks that share the GPU train a model with experts as one does") {
  const ModelSpec spec = experts(4);
  const Outcome reference = run(single_rank(spec), spec, 2);
  for (const Plan& plan :
       {uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1}, 1,
                ScheduleKind::one_f_one_b),
        uniform(spec, 2, {.data = 2, .zero = 3, .recompute = RecomputeKind::full}, 2, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.data = 2, .expert = 2}, 1, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.data = 4, .expert = 4, .expert_nodes = 2}, 1, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .expert = 2, .expert_tensor = 1},
                1, ScheduleKind::one_f_one_b)})
    check_plan(plan, spec, reference, on_gpu);
}

TEST_CASE("packed documents train on the GPU as one by one on the cores, whatever shares them") {
  check_packed_documents(model(true, 2), on_gpu, false);
}
