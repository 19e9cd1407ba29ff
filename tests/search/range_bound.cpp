#include <galvatron/search/range_bound.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <random>

#include "random_problem.hpp"

using namespace galvatron::search;

TEST_CASE("a bound of many numbers of bytes says of each what a single question says, wherever it looked before") {
  int finite = 0;
  int several = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    INFO("seed " << seed);
    const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
    for (const double share : {0.0, 0.5}) {
      const RangeBound ranges(p, share);
      for (int round = 0; round < 5; ++round) {
        const int stage = upto(p.stages() - 1);
        const int begin = upto(p.count());
        const int end = begin + upto(p.count() - begin);
        const PiecewiseLinear bound = ranges.bound(stage, begin, end);
        std::size_t at = 0;
        std::size_t furthest = 0;
        for (int question = 0; question < 20; ++question) {
          const double bytes = upto(400);
          const double expected = ranges.seconds_within(ranges.classes() - 1, stage, begin, end, bytes);
          const double seconds = bound.seconds(bytes, at);
          furthest = std::max(furthest, at);
          if (expected == infinite) {
            CHECK(seconds == expected);
            continue;
          }
          CHECK(seconds == doctest::Approx(expected).epsilon(1e-12));
          ++finite;
        }
        several += furthest > 0 ? 1 : 0;
      }
    }
  }
  CHECK(finite > 10000);
  CHECK(several > 100);
}

TEST_CASE("with classes of workspaces no stage takes less than without, and many take longer") {
  int nearer = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    INFO("seed " << seed);
    const RangeBound all(p, 0);
    const RangeBound classes(p, 0, 4);
    for (int stage = 0; stage < p.stages(); ++stage)
      for (int begin = 0; begin < p.count(); ++begin)
        for (int end = begin + 1; end <= p.count(); ++end) {
          const double seconds = classes.seconds(stage, {begin, end});
          CHECK(seconds >= all.seconds(stage, {begin, end}) - 1e-9);
          nearer += seconds > all.seconds(stage, {begin, end}) * (1 + 1e-9) ? 1 : 0;
        }
  }
  CHECK(nearer > 500);
}
