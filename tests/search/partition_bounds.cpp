// What partition bounds say of assignments, against assignments.
#include <galvatron/search/partition_bounds.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>

#include "random_problem.hpp"

using namespace galvatron::search;

TEST_CASE("no assignment is faster than partition bounds say, whatever is known of it") {
  int several = 0;
  int nearer = 0;
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
    CHECK(bounds.bound(tied_ends(p)) <= limit);
    CHECK(bounds.bound(tied_ends(p), 1.1 * limit) <= limit);

    TiedEnds ends;
    if (p.tied)
      ends = {p.choice(0, plan->choice.front()).tag, p.choice(0, plan->choice.front()),
              p.choice(p.count() - 1, plan->choice.back())};
    double least = 0;
    for (const TiedEnds& known : {TiedEnds{}, ends}) {
      REQUIRE(bounds.narrow(limit, known));
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
        all.fill += own.seconds() - p.objective.weights.deferred * own.weights;
        all.time = std::max(all.time, own.seconds());
        all.per_iteration = std::max(all.per_iteration, own.per_iteration());
      }
      for (std::size_t k = 0; k < relaxation.size(); ++k)
        CHECK(relaxation.seconds(k, all.per_iteration, p.stages(), all.fill, all.time, within.fills[k],
                                 within.slowest[k]) <= limit);
    }
    ++several;
  }
  CHECK(several > 1000);
  CHECK(nearer > 50);
}
