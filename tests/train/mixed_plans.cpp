// labels: ranks
// Plans whose layers differ: random strategies for every layer, stages of unequal length, both schedules.
#include <array>
#include <random>

#include <doctest/doctest.h>

#include <galvatron/device/host/host.hpp>
#include "random_strategy.hpp"
#include "toy.hpp"

namespace {

using namespace toy;

Plan random_plan(std::mt19937& random, const ModelSpec& model) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  const int layers = static_cast<int>(model.blocks.size());
  const int ranks = std::array{2, 4, 8}[static_cast<std::size_t>(pick(3))];
  const int stages = std::array{1, 1, 2, 2, 4}[static_cast<std::size_t>(pick(5))];
  Plan plan = single_rank(model);
  if (ranks % stages != 0) return random_plan(random, model);
  plan.microbatches = std::array{1, 2, 4}[static_cast<std::size_t>(pick(3))];
  plan.schedule = pick(2) == 0 ? ScheduleKind::gpipe : ScheduleKind::one_f_one_b;
  const std::int64_t microbatch = plan.global_batch / plan.microbatches;
  if (microbatch < 2) return random_plan(random, model);
  plan.stages.clear();
  int first = 0;
  for (int i = 0; i < stages; ++i) {
    const int left = stages - i - 1;
    const int count = left == 0 ? layers - first : 1 + pick(layers - first - left);
    plan.stages.push_back({first, first + count - 1, i * (ranks / stages), ranks / stages});
    first += count;
  }
  spread_at_random(random, plan, model);
  return plan;
}

}  // namespace

TEST_CASE("layers of different strategies train as one rank does, and use the memory that was predicted") {
  constexpr int steps = 6;
  constexpr int plans = 60;
  const auto seed = std::random_device{}();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 6);
    const Outcome reference = run(single_rank(spec), spec, steps);
    for (int i = 0; i < plans / 2; ++i) {
      const Plan plan = random_plan(random, spec);
      INFO("seed " << seed << ", plan " << i << ": " << text(plan));
      const Outcome outcome = run(plan, spec, steps);
      CHECK(difference(outcome.losses, reference.losses) < 1e-5);
      CHECK(difference(outcome.gradients, reference.gradients) < 1e-5);
      CHECK(outcome.memory_as_planned);
    }
  }
}

TEST_CASE("a plan that runs twice gives the same bits") {
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 4);
    const Plan plan = uniform(spec, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2}, 2,
                              ScheduleKind::one_f_one_b);
    const Outcome first = run(plan, spec, 8);
    const Outcome second = run(plan, spec, 8);
    CHECK(first.losses == second.losses);
    CHECK(first.norms == second.norms);
    CHECK(first.gradients == second.gradients);
  }
}

TEST_CASE("bf16 trains like fp32 to its precision, on one rank and on many") {
  if (!device::Host::supports(Precision::bf16)) {
    MESSAGE("skipped: this CPU has no bf16 arithmetic");
    return;
  }
  constexpr int steps = 10;
  const ModelSpec spec = model(false, 4);
  const Outcome reference = run(single_rank(spec), spec, steps);
  Plan single = single_rank(spec, Precision::bf16);
  CHECK(difference(run(single, spec, steps).losses, reference.losses) < 1e-2);
  for (const int zero : {0, 1, 2, 3}) {
    Plan plan = uniform(spec, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = zero}, 2,
                        ScheduleKind::one_f_one_b);
    plan.precision = Precision::bf16;
    INFO(text(plan));
    const Outcome outcome = run(plan, spec, steps);
    CHECK(difference(outcome.losses, reference.losses) < 1e-2);
    CHECK(outcome.memory_as_planned);
  }
}
