// Training with 8-bit products: beside bfloat16 on real text, under several plans, and twice.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/data/data.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"
#include "toy.hpp"

namespace {

using namespace toy;

bool skipped() {
  if (device::Host::supports(Precision::fp8)) return false;
  MESSAGE("skipped: this processor has no bf16 arithmetic");
  return true;
}

Plan with_8bit(Plan plan) {
  plan.precision = Precision::fp8;
  return plan;
}

double mean_of_last(const std::vector<train::StepReport>& steps, std::size_t count) {
  double sum = 0;
  for (std::size_t i = steps.size() - count; i < steps.size(); ++i) sum += steps[i].loss;
  return sum / static_cast<double>(count);
}

}  // namespace

TEST_CASE("a GPT learns this project's pages with 8-bit products as it does with bfloat16") {
  if (skipped()) return;
  std::vector<std::filesystem::path> pages;
  for (const char* name : {"architecture", "clusters", "data", "export", "hetu", "performance", "checkpoints"})
    pages.push_back(std::filesystem::path(galvatron::test::tests_dir) / "../docs" / (std::string(name) + ".md"));
  const ModelSpec spec = gpt("gpt", {.layers = 2, .hidden = 64, .heads = 4, .vocabulary = 256, .positions = 64});
  const auto data = value_or_throw(train::Data::open(pages, spec, {.sequence = 64, .seed = 3}));
  const auto train_in = [&](Precision precision) {
    Plan plan = single_rank(spec, precision);
    plan.sequence_length = 64;
    const auto batches = data.batches(plan.global_batch);
    train::TrainOptions options;
    options.steps = 200;
    options.threads_per_rank = 1;
    options.learning_rate = {.peak = 1e-3, .floor = 1e-4, .warmup_steps = 20, .steps = 200};
    return train::train(plan, spec, *batches, options);
  };
  const auto begin = std::chrono::steady_clock::now();
  const train::TrainReport plain = train_in(Precision::bf16);
  const train::TrainReport rounded = train_in(Precision::fp8);
  const double bf16 = mean_of_last(plain.steps, 10);
  const double fp8 = mean_of_last(rounded.steps, 10);
  MESSAGE("loss " << plain.steps.front().loss << " at first; of the last 10 of 200 steps " << bf16 << " in bf16, "
                  << fp8 << " in fp8; "
                  << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() << " s");
  CHECK(bf16 < 3.3);  // of log 256 = 5.5
  CHECK(std::abs(fp8 / bf16 - 1) < 0.01);
  CHECK(fp8 != bf16);
  CHECK(rounded.measured_memory == rounded.planned_memory);
  CHECK(rounded.planned_memory.front().workspace > plain.planned_memory.front().workspace);
  CHECK(rounded.planned_memory.front().states == plain.planned_memory.front().states);
}

TEST_CASE("gradients of 8-bit products differ from bfloat16's by the rounding of the formats") {
  if (skipped()) return;
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 2);
    const Outcome plain = run(single_rank(spec, Precision::bf16), spec, 1);
    const Outcome rounded = run(single_rank(spec, Precision::fp8), spec, 1);
    double worst = 0;
    for (const auto& [key, reference] : plain.gradients) {
      const double error = difference(Gradients{{key, rounded.gradients.at(key)}}, Gradients{{key, reference}});
      worst = std::max(worst, error);
      INFO("layer " << key.first << ", tensor " << static_cast<int>(key.second));
      CHECK(error < 0.12);
    }
    MESSAGE(spec.name << ": loss " << plain.losses[0] << " and " << rounded.losses[0]
                      << ", worst relative difference of a gradient " << worst);
    CHECK(worst > 0.01);
    CHECK(difference(rounded.losses, plain.losses) < 2e-3);
    CHECK(rounded.memory_as_planned);
  }
}

// Every rank scales what it has: of a cut weight its part, of a batch its samples. Where a part's greatest element is
// less than half of the whole's, its numbers are rounded with another scale, and those that were too small for the
// format before may not be now. The others are rounded as on one rank, for scales are powers of two, so that the plans
// differ by less than the rounding itself.
TEST_CASE("plans of several ranks train in fp8 as one rank does, but for scales, in the memory that was planned") {
  if (skipped()) return;
  constexpr int steps = 6;
  const ModelSpec spec = model(true, 4);
  const Outcome plain = run(single_rank(spec, Precision::bf16), spec, steps);
  const Outcome reference = run(single_rank(spec, Precision::fp8), spec, steps);
  double worst = 0;
  for (const Plan& plan :
       {uniform(spec, 1, {.data = 2}, 1, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.data = 2, .zero = 3, .recompute = RecomputeKind::full}, 2, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.tensor = 2, .data = 2, .zero = 1}, 1, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2}, 2,
                ScheduleKind::one_f_one_b),
        uniform(spec, 2, {.data = 2, .zero = 3, .recompute = RecomputeKind::selective}, 2, ScheduleKind::gpipe),
        uniform(spec, 2, {.tensor = 2}, 2, ScheduleKind::zb_h1),
        uniform(spec, 1, {.sequence = SequenceKind::ulysses, .context = 2, .data = 2}, 1, ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2}, 1,
                ScheduleKind::one_f_one_b),
        uniform(spec, 1, {.sequence = SequenceKind::ring, .context = 2, .data = 2}, 1, ScheduleKind::one_f_one_b)}) {
    INFO(text(plan));
    const Outcome outcome = run(with_8bit(plan), spec, steps);
    worst = std::max(worst, difference(outcome.gradients, reference.gradients));
    CHECK(difference(outcome.losses, reference.losses) < 5e-3);
    CHECK(difference(outcome.gradients, reference.gradients) < 0.12);
    CHECK(outcome.memory_as_planned);
    const Outcome again = run(with_8bit(plan), spec, steps);
    CHECK(differences(again, outcome) == "");
  }
  MESSAGE("worst relative difference of a gradient between plans " << worst << ", of bf16 to fp8 "
                                                                   << difference(plain.gradients, reference.gradients));
}
