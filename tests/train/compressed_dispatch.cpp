// Training with compressed dispatch: the same bits twice, the memory that was planned, and plain training where each
// choice has a bucket of its own.
#include <algorithm>

#include <doctest/doctest.h>

#include "check_plan.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;

namespace {

Plan compressing_plan(const ModelSpec& model, StrategySpec spec, const LshOptions& lsh, int count) {
  spec.dispatch = DispatchKind::lsh;
  Plan plan = toy::uniform(model, 1, spec, count, ScheduleKind::one_f_one_b);
  plan.lsh = lsh;
  return plan;
}

const StrategySpec spread_strategies[] = {
    {.data = 4, .expert = 4},
    {.data = 4, .zero = 3, .expert = 2, .recompute = RecomputeKind::full},
    {.tensor = 2, .data = 2, .zero = 1, .expert = 4, .expert_tensor = 1, .recompute = RecomputeKind::none},
    {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .expert = 2, .expert_tensor = 2},
    {.sequence = SequenceKind::ulysses, .context = 2, .data = 2, .zero = 2, .expert = 2},
};

}  // namespace

TEST_CASE("training with compressed dispatch takes the planned memory, and twice gives the same bits") {
  for (const ResidualKind residual : residual_kinds) {
    const LshOptions lsh{.hashes = 2, .width = 2, .residual = residual};
    const ModelSpec model = with_dispatch(toy::experts(4), lsh);
    for (const StrategySpec& spec : spread_strategies) {
      const Plan plan = compressing_plan(model, spec, lsh, 2);
      REQUIRE(why_unfit(plan, model) == "");
      INFO(toy::text(plan), ", residual ", name_of(residual));
      const toy::Outcome outcome = toy::run(plan, model, 12);
      CHECK(outcome.memory_as_planned);
      CHECK(outcome.copies_agree);
      CHECK(outcome.losses.back() < 0.98 * outcome.losses.front());
      toy::check_same_bits(plan, model, 3);
    }
  }
}

TEST_CASE("training whose tokens are too different to compress is plain training") {
  const ModelSpec model = toy::experts(4);
  const toy::Outcome reference = toy::run(toy::single_rank(model), model, 4);
  for (const StrategySpec& spec : spread_strategies)
    for (const double imbalance : {1.1, 2.0}) {
      Plan plan = compressing_plan(model, spec, {.hashes = 1, .width = 1, .most_rate = 0.0}, 2);
      plan.expert_imbalance = imbalance;
      toy::check_plan(plan, model, reference);
    }
}

TEST_CASE("a plan that scales residuals needs a model that does") {
  const LshOptions lsh{.residual = ResidualKind::scaled};
  const ModelSpec model = toy::experts(4);
  const Plan plan = compressing_plan(model, {.data = 4, .expert = 4}, lsh, 1);
  CHECK(why_unfit(plan, model).find("gains of experts") != std::string::npos);
  CHECK(why_unfit(plan, with_dispatch(model, lsh)) == "");
}
