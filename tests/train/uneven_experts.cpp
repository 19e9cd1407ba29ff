// labels: tsan
// Ranks with unequal numbers of samples, or none, that exchange the tokens of experts.
#include <chrono>
#include <cstddef>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "check_plan.hpp"
#include "compressed.hpp"
#include "random_plan.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace toy;

/// A plan of one strategy by ratio, with random samples of its ranks; of no micro-batch where it does not suit the
/// model.
Plan unequal_plan(std::mt19937& random, const ModelSpec& model) {
  StrategySpec spec{.tensor = one_of(random, std::array{1, 1, 2}),
                    .data = one_of(random, std::array{2, 3, 4, 8}),
                    .zero = one_of(random, std::array{0, 1, 2, 3}),
                    .expert = one_of(random, std::array{1, 2, 4}),
                    .expert_tensor = one_of(random, std::array{0, 1, 2, 4}),
                    .expert_nodes = one_of(random, std::array{1, 1, 2}),
                    .shard_kind = ShardKind::by_ratio,
                    .recompute = one_of(random, recompute_kinds)};
  if (spec.tensor == 1 && random() % 2 == 0)
    spec = {.sequence = SequenceKind::ulysses,
            .context = 2,
            .data = spec.data,
            .zero = spec.zero,
            .expert = spec.expert,
            .expert_tensor = spec.expert_tensor,
            .shard_kind = ShardKind::by_ratio,
            .recompute = spec.recompute};
  if (spec.tensor > 1 && random() % 2 == 0) spec.sequence = SequenceKind::megatron;
  if (spec.expert_nodes == 1 && random() % 3 == 0) spec.dispatch = DispatchKind::lsh;
  Plan plan;
  plan.microbatches = 0;
  const int stages = one_of(random, std::array{1, 1, 2});
  if (!is_legal(spec) || !spec.exchanges_tokens() || spec.ranks() * stages > 16) return plan;
  plan = uniform(model, stages, spec, one_of(random, std::array{1, 2, 4}), ScheduleKind::one_f_one_b);
  plan.lsh = compresses_nothing;
  plan.expert_imbalance = one_of(random, std::array{1.0, 1.5, 4.0});
  for (PlanStage& stage : plan.stages) {
    stage.sample_ratios = random_ratios(random, stage.rank_count);
    if (random() % 2 == 0) stage.state_ratios = random_ratios(random, stage.rank_count);
  }
  if (!why_inconsistent(plan).empty() || !why_unfit(plan, model).empty()) plan.microbatches = 0;
  return plan;
}

}  // namespace

TEST_CASE("ranks with unequal samples exchange the tokens of experts, and train as one rank does") {
  constexpr int steps = 3;
  const RandomPlanBudget budget(6);
  std::mt19937 random(budget.seed);
  const ModelSpec model = experts(4);
  const Outcome reference = run(single_rank(model), model, steps);
  int done = 0;
  int empty = 0;  // ranks without samples
  const auto begin = std::chrono::steady_clock::now();
  while (budget.goes_on(done, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count())) {
    const Plan plan = unequal_plan(random, model);
    if (plan.microbatches == 0) continue;
    INFO("GALVATRON_RANDOM_SEED=" << budget.seed << ", plan " << done << ": " << text(plan));
    const Outcome outcome = run(plan, model, steps);
    CHECK(difference(outcome.losses, reference.losses) < 1e-5);
    CHECK(difference(outcome.gradients, reference.gradients) < 1e-5);
    CHECK(outcome.copies_agree);
    CHECK(outcome.memory_as_planned);
    const PlanStage& stage = plan.stages.front();
    const ActivationLayout layout =
        activation_layout(plan.layers.front(), 0, plan.microbatch(), plan.sequence_length, stage.ratios());
    for (int i = 0; i < layout.data; ++i) empty += layout.samples().count(i) == 0;
    ++done;
  }
  MESSAGE("seed " << budget.seed << ", " << done << " plans, " << empty << " data ranks without samples");
}

TEST_CASE("ranks with unequal samples that exchange tokens train as one rank does") {
  const ModelSpec model = experts(4);
  const Outcome reference = run(single_rank(model), model, 3);
  for (StrategySpec spec : {StrategySpec{.data = 4, .zero = 1, .expert = 4, .expert_nodes = 2},
                            StrategySpec{.data = 4, .zero = 3, .expert = 2, .expert_tensor = 2}}) {
    spec.shard_kind = ShardKind::by_ratio;
    Plan plan = uniform(model, 1, spec, 2, ScheduleKind::one_f_one_b);
    plan.stages.front().sample_ratios = {2, 0, 1, 1};
    check_plan(plan, model, reference);
  }
}
