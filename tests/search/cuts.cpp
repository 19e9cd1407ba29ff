// What cuts say of assignments, against assignments.
#include <galvatron/search/cuts.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>

#include "random_problem.hpp"

using namespace galvatron::search;

TEST_CASE("no assignment is faster than cuts say, whatever is known of it") {
  int several = 0;
  int nearer = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    Problem p = testing::random_problem(random);
    p.budget *= 2;
    INFO("seed " << seed);
    const auto plan = p.stages() > 1 ? testing::random_assignment(p, random) : std::nullopt;
    if (!plan) continue;
    const Bounds bounds(p);
    const Weighings weighings(p, bounds, 1 + static_cast<int>(seed % 3));
    Cuts cuts(p, weighings, bounds);
    const Evaluation cost = evaluate(p, *plan);
    const double limit = cost.seconds * (1 + 1e-9) + 1e-9;
    CHECK(cuts.bound() <= limit);
    CHECK(cuts.bound(1.1 * limit) <= limit);

    Tie ends;
    if (p.tied)
      ends = {p.choice(0, plan->choice.front()).tag, p.choice(0, plan->choice.front()),
              p.choice(p.count() - 1, plan->choice.back()), 0};
    double least = 0;
    for (const Tie& known : {Tie{}, ends}) {
      REQUIRE(cuts.narrow(limit, known));
      CHECK(cuts.least() <= limit);
      nearer += cuts.least() > least * (1 + 1e-9) && least > 0 ? 1 : 0;
      least = cuts.least();
      const StageLimit within = cuts.stage_limit();
      double sum = 0;
      double slowest = 0;
      double once = 0;
      for (int stage = 0; stage < p.stages(); ++stage) {
        const int begin = plan->first[static_cast<std::size_t>(stage)];
        REQUIRE(begin >= cuts.earliest(stage));
        REQUIRE(begin <= cuts.latest(stage));
        CHECK(cuts.with_stages(stage, begin, sum, slowest, once) <= limit);
        const StageCost& own = cost.stages[static_cast<std::size_t>(stage)];
        for (std::size_t k = 0; k < weighings.size(); ++k)
          CHECK(own.seconds() + weighings.share(k) * own.once() <= within.most[k] + 1e-9);
        sum += own.seconds() - p.objective.weights.deferred * own.weights;
        slowest = std::max(slowest, own.seconds());
        once = std::max(once, own.once());
      }
      for (std::size_t k = 0; k < weighings.size(); ++k)
        CHECK(weighings.seconds_with(k, once, sum, within.ramps[k], p.stages(), slowest, within.slowest[k]) <= limit);
    }
    ++several;
  }
  CHECK(several > 1000);
  CHECK(nearer > 50);
}
