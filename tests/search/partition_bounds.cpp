// What partition bounds say of assignments, against assignments.
#include <galvatron/search/partition_bounds.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "random_problem.hpp"

using namespace galvatron::search;

TEST_CASE("no assignment is faster or smaller than partition bounds say, whatever is known of it") {
  int several = 0;
  int nearer = 0;
  int met = 0;  // bounds that are what the assignment needs
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    Problem p = testing::random_problem(random);
    p.budget *= 2;
    INFO("seed " << seed);
    const auto plan = p.stages() > 1 ? testing::random_assignment(p, random) : std::nullopt;
    if (!plan) continue;
    const Relaxation relaxation(p, 1 + static_cast<int>(seed % 3));
    PartitionBounds bounds(p, relaxation);
    const Evaluation cost = evaluate(p, *plan);
    const double limit = cost.seconds * (1 + 1e-9) + 1e-9;
    for (const double further : {1.1 * limit, infinite}) {
      REQUIRE(bounds.narrow(further));
      CHECK(bounds.least() <= limit);
    }

    TiedEnds ends;
    if (p.tied)
      ends = {p.choice(0, plan->choice.front()).tag, p.choice(0, plan->choice.front()),
              p.choice(p.count() - 1, plan->choice.back())};
    double least = 0;
    for (const TiedEnds& known : {TiedEnds{}, ends}) {
      REQUIRE(bounds.narrow(limit, known));
      CHECK(bounds.least_peak() <= std::max<std::int64_t>(cost.peak, 1));
      met += bounds.least_peak() == cost.peak ? 1 : 0;
      CHECK(bounds.least() <= limit);
      nearer += bounds.least() > least * (1 + 1e-9) && least > 0 ? 1 : 0;
      least = bounds.least();
      const StageLimit within = bounds.stage_limit();
      Terms all;
      for (int stage = 0; stage < p.stages(); ++stage) {
        const int begin = plan->first[static_cast<std::size_t>(stage)];
        REQUIRE(begin >= bounds.earliest(stage));
        REQUIRE(begin <= bounds.latest(stage));
        CHECK(bounds.with_stages(stage, begin, all) <= limit);
        const StageCost& own = cost.stages[static_cast<std::size_t>(stage)];
        for (std::size_t k = 0; k < relaxation.size(); ++k)
          CHECK(own.seconds() + relaxation.share(k) * own.per_iteration() <= within.most[k] + 1e-9);
        const double fill = own.seconds() - p.objective.weights.deferred * own.weights;
        all = joined(all, {own.seconds(), fill, own.per_iteration(), own.link, own.kinds});
      }
      for (std::size_t k = 0; k < relaxation.size(); ++k)
        CHECK(relaxation.seconds(k, all, p.stages(), within.fills[k], within.slowest[k]) <= limit);
    }
    ++several;
  }
  CHECK(several > 1000);
  CHECK(nearer > 50);
  CHECK(met > 20);
}

TEST_CASE("layers that are whole leave room that no stage can use") {
  // 5 layers of 10 bytes in 2 stages: 25 bytes a stage would hold them if a layer could be cut in two.
  Problem p;
  p.objective.stages = 2;
  p.types = {{Choice{.states = 10}}};
  p.layers.assign(5, 0);
  p.slots.assign(2, {.flight = 0});
  p.moves.assign(1, {.relayout = {0}, .input = {0}, .output = {0}});
  const Relaxation relaxation(p);
  PartitionBounds bounds(p, relaxation);
  CHECK(bounds.least_peak() == 30);
  p.budget = 29;
  CHECK(!bounds.narrow(infinite));
  p.budget = 30;
  REQUIRE(bounds.narrow(infinite));
  CHECK(bounds.earliest(1) == 2);
  CHECK(bounds.latest(1) == 3);
}
