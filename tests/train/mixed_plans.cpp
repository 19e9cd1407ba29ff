// labels: ranks
// Plans whose layers differ: random strategies for every layer, stages of unequal length, both schedules.
#include <array>
#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/host/host.hpp>
#include <galvatron/strategy/legality.hpp>

#include "random_strategy.hpp"
#include "toy.hpp"

namespace {

using namespace toy;

int pick(std::mt19937& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

// A valid plan on up to 16 ranks; none where the numbers drawn do not go together.
std::optional<Plan> random_plan(std::mt19937& random, const ModelSpec& model) {
  const int layers = static_cast<int>(model.blocks.size());
  const int stages = one_of(random, std::array{1, 1, 2, 2, 3, 4});
  const int ranks = one_of(random, std::array{1, 2, 2, 4, 4, 8, 8, 16});
  Plan plan = single_rank(model);
  if (stages * ranks > 16) return std::nullopt;
  plan.overlap = random() % 2 == 0;
  plan.microbatches = one_of(random, std::array{1, 2, 4, 8});
  plan.schedule = one_of(random, schedule_kinds);
  if (plan.schedule == ScheduleKind::interleaved) plan.virtual_stages = one_of(random, std::array{1, 2, 3});
  plan.stages.clear();
  int first = 0;
  for (int i = 0; i < stages; ++i) {
    const int left = stages - i - 1;
    const bool even = plan.schedule == ScheduleKind::interleaved;
    const int count = left == 0 ? layers - first : even ? layers / stages : 1 + pick(random, layers - first - left);
    plan.stages.push_back({first, first + count - 1, i * ranks, ranks});
    first += count;
  }
  spread_at_random(random, plan, model);
  if (!why_inconsistent(plan).empty() || !why_unfit(plan, model).empty()) return std::nullopt;
  return plan;
}

// A number that the environment may set.
double setting(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

}  // namespace

// GALVATRON_RANDOM_PLANS: how many plans, whatever the time; GALVATRON_RANDOM_SEED: repeats a run.
TEST_CASE("random plans of all that is runnable train as one rank does, and use the memory that was predicted") {
  constexpr int steps = 4;
  constexpr double seconds = 20;
  const auto plans = static_cast<int>(setting("GALVATRON_RANDOM_PLANS", 0));
  const auto seed = static_cast<unsigned>(setting("GALVATRON_RANDOM_SEED", std::random_device{}()));
  std::mt19937 random(seed);
  const std::array models{model(false, 6), model(true, 6)};
  const std::array references{run(single_rank(models[0]), models[0], steps),
                              run(single_rank(models[1]), models[1], steps)};
  std::map<SequenceKind, int> layers;
  int done = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto goes_on = [&] {
    if (plans > 0) return done < plans;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() < seconds;
  };
  while (goes_on()) {
    const auto llama = static_cast<std::size_t>(random() % 2);
    const std::optional<Plan> plan = random_plan(random, models[llama]);
    if (!plan) continue;
    INFO("GALVATRON_RANDOM_SEED=" << seed << ", plan " << done << ": " << text(*plan));
    const Outcome outcome = run(*plan, models[llama], steps);
    CHECK(difference(outcome.losses, references[llama].losses) < 1e-5);
    CHECK(difference(outcome.gradients, references[llama].gradients) < 1e-5);
    CHECK(outcome.memory_as_planned);
    for (const StrategySpec& spec : plan->layers) ++layers[spec.sequence];
    ++done;
  }
  MESSAGE("seed " << seed << ", " << done << " plans; layers with Megatron " << layers[SequenceKind::megatron]
                  << ", Ulysses " << layers[SequenceKind::ulysses] << ", ring " << layers[SequenceKind::ring]);
  CHECK(done > 5);
}

TEST_CASE("a plan that runs twice gives the same bits") {
  for (const bool llama : {false, true}) {
    const ModelSpec spec = model(llama, 4);
    for (const StrategySpec& strategy :
         {StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2},
          StrategySpec{.sequence = SequenceKind::ulysses, .context = 4, .zero = 3, .recompute = RecomputeKind::full},
          StrategySpec{.sequence = SequenceKind::ring, .context = 4, .recompute = RecomputeKind::selective}}) {
      const Plan plan = uniform(spec, 2, strategy, 2, ScheduleKind::one_f_one_b);
      INFO(text(plan));
      const Outcome first = run(plan, spec, 8);
      const Outcome second = run(plan, spec, 8);
      CHECK(first.losses == second.losses);
      CHECK(first.norms == second.norms);
      CHECK(first.gradients == second.gradients);
    }
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
  std::vector<StrategySpec> strategies;
  for (const int zero : {0, 1, 2, 3})
    strategies.push_back({.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = zero});
  for (const SequenceKind kind : {SequenceKind::ulysses, SequenceKind::ring})
    for (const RecomputeKind recompute : recompute_kinds)
      strategies.push_back({.sequence = kind, .context = 4, .zero = 1, .recompute = recompute});
  for (const StrategySpec& strategy : strategies) {
    Plan plan = uniform(spec, 2, strategy, 2, ScheduleKind::one_f_one_b);
    plan.precision = Precision::bf16;
    INFO(text(plan));
    const Outcome outcome = run(plan, spec, steps);
    CHECK(difference(outcome.losses, reference.losses) < 1e-2);
    CHECK(outcome.memory_as_planned);
  }
}
