#include <galvatron/search/core_problem.hpp>

#include <doctest/doctest.h>

#include <string>

#include "random_problem.hpp"

using namespace galvatron::search;
using galvatron::Team;

TEST_CASE("the core's plan is one of the whole problem, and with all choices the best") {
  int found = 0;
  int best = 0;
  Team* const alone = nullptr;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    const testing::BruteForce truth = testing::brute_force(p);
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);
    std::int64_t work = 0;
    for (const std::size_t most : {std::size_t{1}, std::size_t{2}, std::size_t{100}}) {
      const auto plan = fastest_of_core(p, most, infinite, {}, alone, work);
      if (most == 100 && truth.peak != std::numeric_limits<std::int64_t>::max())
        REQUIRE(plan.has_value() == (truth.peak <= p.budget));
      if (!plan) continue;
      const Evaluation again = evaluate(p, plan->plan);
      CHECK(again.seconds == plan->cost.seconds);
      CHECK(again.peak <= p.budget);
      CHECK(again.seconds >= truth.seconds * (1 - 1e-9));
      if (most == 100) CHECK(again.seconds == doctest::Approx(truth.seconds).epsilon(1e-9));
      if (most == 2) {
        ++found;
        best += again.seconds <= truth.seconds * (1 + 1e-9) ? 1 : 0;
      }
    }
  }
  CHECK(best > found / 2);
}

TEST_CASE("a bound that knows the largest workspace holds, and is nearer than the least workspace gives") {
  int nearer = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    if (p.stages() > 1) continue;
    const testing::BruteForce truth = testing::brute_force(p);
    if (truth.peak > p.budget) continue;
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);
    const auto of_stage = [&](double seconds) { return p.objective({seconds, seconds}); };
    const RangeBound all(p, 0);
    const RangeBound classes(p, 0, 8);
    const double plain = of_stage(all.seconds(0, {0, p.count()}));
    const double least = of_stage(classes.seconds(0, {0, p.count()}));
    CHECK(least <= truth.seconds * (1 + 1e-9));
    CHECK(least >= plain * (1 - 1e-9));
    nearer += least > plain * (1 + 1e-9) ? 1 : 0;
  }
  CHECK(nearer > 50);
}
