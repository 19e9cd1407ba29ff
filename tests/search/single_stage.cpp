#include <galvatron/search/solver.hpp>

#include <doctest/doctest.h>

#include <random>

#include "random_problem.hpp"

using namespace galvatron::search;

TEST_CASE("with one stage the solver finds what brute force finds on random problems") {
  int feasible = 0;
  int infeasible = 0;
  for (unsigned seed = 0; seed < 4000; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random, {.most_stages = 1, .most_layers = 6, .most_choices = 4});
    const testing::BruteForce truth = testing::brute_force(p);
    INFO("seed " << seed);
    const auto found = Solver(p).fastest();
    REQUIRE(found.has_value() == (truth.peak <= p.budget));
    if (!found) {
      ++infeasible;
      continue;
    }
    ++feasible;
    const Evaluation& cost = found->cost;
    REQUIRE(cost.peak <= p.budget);
    REQUIRE(cost.seconds == doctest::Approx(truth.seconds).epsilon(1e-9));
    if (p.tied)
      REQUIRE(p.choice(0, found->plan.choice.front()).tag == p.choice(p.count() - 1, found->plan.choice.back()).tag);
  }
  CHECK(feasible > 1000);
  CHECK(infeasible > 500);
}
