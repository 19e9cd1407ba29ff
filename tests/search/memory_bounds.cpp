// What memory bounds say of assignments, against assignments.
#include <galvatron/search/memory_bounds.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "random_problem.hpp"

using namespace galvatron::search;

TEST_CASE("no assignment keeps less than memory bounds say, or begins a stage elsewhere") {
  int looked_at = 0;
  int met = 0;  // bounds that are what the assignment needs
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    Problem p = testing::random_problem(random);
    p.budget = std::numeric_limits<std::int64_t>::max();
    const MemoryBounds bounds(p);
    const std::int64_t least = bounds.least_peak();
    INFO("seed " << seed);
    CHECK(bounds.may_fit(least));
    CHECK((least == 1 || !bounds.may_fit(least - 1)));
    for (int i = 0; i < 10; ++i) {
      const std::optional<Assignment> plan = testing::random_assignment(p, random);
      if (!plan) continue;
      ++looked_at;
      const std::int64_t peak = evaluate(p, *plan).peak;
      const bool has_ends = p.leading > 0 && p.trailing > 0;
      const MemoryBounds own =
          has_ends ? bounds.with_ends(p.choice(0, plan->choice.front()), p.choice(p.count() - 1, plan->choice.back()))
                   : bounds;
      CHECK(least <= own.least_peak());
      CHECK(own.least_peak() <= std::max<std::int64_t>(peak, 1));
      met += own.least_peak() == peak ? 1 : 0;
      for (const MemoryBounds* each : {&bounds, &own}) {
        const std::optional<Windows> windows = each->windows(peak);
        REQUIRE(windows);
        for (std::size_t stage = 0; stage < plan->first.size(); ++stage) {
          CHECK(windows->low[stage] <= plan->first[stage]);
          CHECK(plan->first[stage] <= windows->high[stage]);
        }
      }
    }
  }
  CHECK(looked_at > 30000);
  CHECK(met > 1000);
}

TEST_CASE("layers that are whole leave room that no stage can use") {
  // 5 layers of 10 bytes in 2 stages: 25 bytes a stage would hold them if a layer could be cut in two.
  Problem p;
  p.objective.stages = 2;
  p.types = {{Choice{.states = 10}}};
  p.layers.assign(5, 0);
  p.slots.assign(2, {.flight = 0});
  const MemoryBounds bounds(p);
  CHECK(bounds.least_peak() == 30);
  CHECK(!bounds.may_fit(29));
  const std::optional<Windows> windows = bounds.windows(30);
  REQUIRE(windows);
  CHECK(windows->low == std::vector<int>{0, 2, 5});
  CHECK(windows->high == std::vector<int>{0, 3, 5});
}
