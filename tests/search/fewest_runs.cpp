#include <galvatron/search/fewest_runs.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "random_problem.hpp"

using namespace galvatron;
using namespace galvatron::search;

namespace {

// Strategies whose tensor degrees are two to the power of their tag.
const std::vector<StrategySpec> by_degree = [] {
  std::vector<StrategySpec> out;
  for (int tag = 0; tag < 8; ++tag) out.push_back({.tensor = 1 << tag});
  return out;
}();

Case case_of(Problem problem) {
  Case out;
  out.specs = by_degree;
  out.problem = std::move(problem);
  return out;
}

int runs_of(const Case& c, const Assignment& plan) {
  const std::vector<StrategySpec> all = strategies_of(c, plan);
  int runs = 1;
  for (std::size_t i = 1; i < all.size(); ++i) runs += all[i] == all[i - 1] ? 0 : 1;
  return runs;
}

// Ends and blocks with two choices, of which the faster one needs more memory.
Problem two_choices(int stages, int blocks) {
  Problem p;
  p.objective.stages = stages;
  p.objective.microbatches = 2 * stages;
  p.objective.weights = cost::pipeline_weights(ScheduleKind::one_f_one_b, stages, 2 * stages);
  Choice fast{.forward = 1, .backward = 2, .stash = 10, .tag = 0};
  Choice small{.forward = 1, .backward = 3, .stash = 1, .tag = 1};
  p.types = {{fast, small}, {fast, small}, {fast, small}};
  p.layers.assign(static_cast<std::size_t>(blocks) + 2, 1);
  p.layers.front() = 0;
  p.layers.back() = 2;
  p.leading = p.trailing = 1;
  p.slots.assign(static_cast<std::size_t>(stages), Slots{});
  p.moves.assign(3, {{0}, {0}, {0}});
  return p;
}

}  // namespace

TEST_CASE("layers of a stage exchange choices until equal ones are neighbours") {
  Case c = case_of(two_choices(1, 6));
  Solution mixed{{{0, 8}, {0, 1, 0, 1, 0, 1, 0, 0}}, {}};
  mixed.cost = evaluate(c.problem, mixed.plan);
  c.problem.budget = mixed.cost.peak;
  const Solution merged = with_fewest_runs(c, mixed);
  CHECK(runs_of(c, mixed.plan) == 7);
  CHECK(runs_of(c, merged.plan) == 2);
  CHECK(merged.cost.seconds == doctest::Approx(mixed.cost.seconds).epsilon(1e-12));
  CHECK(merged.cost.peak <= c.problem.budget);
}

TEST_CASE("layers of two stages exchange choices where neither gets too slow or too large") {
  Case c = case_of(two_choices(2, 10));
  c.problem.slots = {{.flight = 2}, {.flight = 1}};
  Solution mixed{{{0, 5, 12}, {1, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 0}}, {}};
  mixed.cost = evaluate(c.problem, mixed.plan);
  REQUIRE(mixed.cost.peak == 61);
  c.problem.budget = 70;  // the second stage may be fast in all layers, the first in three of five
  const Solution merged = with_fewest_runs(c, mixed);
  CHECK(runs_of(c, merged.plan) == 2);
  CHECK(merged.cost.seconds <= mixed.cost.seconds);
  c.problem.budget = 61;  // the second stage may not
  CHECK(runs_of(c, with_fewest_runs(c, mixed).plan) == 3);
  // Nor may a layer become slower in the stage that is the slowest.
  mixed = {{{0, 6, 12}, {1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 0}}, {}};
  mixed.cost = evaluate(c.problem, mixed.plan);
  REQUIRE(mixed.cost.stages[0].seconds() > mixed.cost.stages[1].seconds());
  c.problem.budget = 60;
  const Solution tight = with_fewest_runs(c, mixed);
  CHECK(runs_of(c, tight.plan) < runs_of(c, mixed.plan));
  CHECK(tight.cost.seconds <= mixed.cost.seconds);
  CHECK(tight.cost.peak <= 60);
}

TEST_CASE("recomputation of ends, which have nothing to recompute, is that of the blocks beside them") {
  Case c = case_of(two_choices(1, 2));
  std::vector<StrategySpec> specs{{.tensor = 2, .recompute = RecomputeKind::full},
                                  {.tensor = 2, .recompute = RecomputeKind::none}};
  c.specs = specs;
  const auto words = [&](std::vector<int> choices) {
    std::vector<RecomputeKind> out;
    for (const StrategySpec& spec : strategies_of(c, {{0, 4}, std::move(choices)})) out.push_back(spec.recompute);
    return out;
  };
  using enum RecomputeKind;
  CHECK(words({0, 1, 0, 1}) == std::vector{none, none, full, full});
  c.problem.tied = true;
  CHECK(words({0, 1, 0, 0}) == std::vector{none, none, full, none});
  specs[1].tensor = 4;
  CHECK(words({0, 1, 0, 0}) == std::vector{full, none, full, full});
}

TEST_CASE("of random problems no plan gets slower, larger or longer, and nearly all are the shortest of their time") {
  int before = 0;
  int after = 0;
  int least = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    Problem problem = testing::random_problem(random);
    if (problem.leading == 0 || problem.trailing == 0) continue;
    const Case c = case_of(std::move(problem));
    const Problem& p = c.problem;
    const auto given = testing::random_assignment(p, random);
    if (!given) continue;
    const Solution start{*given, evaluate(p, *given)};
    const Solution merged = with_fewest_runs(c, start);
    const Evaluation cost = evaluate(p, merged.plan);
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);
    REQUIRE(merged.plan.first == given->first);
    REQUIRE(cost.seconds <= start.cost.seconds * (1 + 1e-9));
    REQUIRE(cost.peak <= p.budget);
    REQUIRE(cost.seconds == merged.cost.seconds);
    if (p.tied)
      REQUIRE(p.choice(0, merged.plan.choice.front()).tag == p.choice(p.count() - 1, merged.plan.choice.back()).tag);
    int shortest = std::numeric_limits<int>::max();
    testing::for_every_assignment(p, [&](const Assignment& plan) {
      if (plan.first != given->first) return;
      const Evaluation e = evaluate(p, plan);
      if (e.seconds <= start.cost.seconds && e.peak <= p.budget) shortest = std::min(shortest, runs_of(c, plan));
    });
    REQUIRE(runs_of(c, merged.plan) <= runs_of(c, *given));
    before += runs_of(c, *given) - shortest;
    after += runs_of(c, merged.plan) - shortest;
    least += shortest;
  }
  MESSAGE("runs beyond the fewest: " << before << ", then " << after << " beside " << least);
  CHECK(before > 500);
  CHECK(after < before / 10);
}
