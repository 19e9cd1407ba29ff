#include <galvatron/search/solver.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <utility>

#include "random_problem.hpp"

using namespace galvatron::search;

namespace {

void check_valid(const Problem& p, const Assignment& plan) {
  REQUIRE(plan.first.size() == static_cast<std::size_t>(p.stages()) + 1);
  REQUIRE(plan.choice.size() == static_cast<std::size_t>(p.count()));
  CHECK(plan.first.front() == 0);
  CHECK(plan.first.back() == p.count());
  for (int i = 0; i < p.stages(); ++i) {
    const int movable = plan.first[static_cast<std::size_t>(i) + 1] - plan.first[static_cast<std::size_t>(i)] -
                        (i == 0 ? p.leading : 0) - (i + 1 == p.stages() ? p.trailing : 0);
    CHECK(movable >= 1);
  }
}

// The answer of a solver is the fastest plan, and its bound holds.
void check_fastest(const Problem& p, Solver<>& solver, const Solution& fastest, const testing::BruteForce& truth) {
  check_valid(p, fastest.plan);
  REQUIRE(solver.proven());
  REQUIRE(solver.bound() <= truth.seconds * (1 + 1e-9));
  for (const double enough : {1.001, 1.2, 3.0})
    REQUIRE(solver.bound(enough * truth.seconds) <= truth.seconds * (1 + 1e-9));
  REQUIRE(fastest.cost.peak <= p.budget);
  REQUIRE(fastest.cost.seconds == doctest::Approx(truth.seconds).epsilon(1e-9));
  REQUIRE(!Solver(p, {.labels = 4096}).fastest(truth.seconds));
}

}  // namespace

TEST_CASE("the solver finds what brute force finds on random problems") {
  int feasible = 0;
  int infeasible = 0;
  for (unsigned seed = 0; seed < 20000; ++seed) {
    std::mt19937 random(seed);
    const testing::Shape longer{.most_stages = 4, .most_layers = 8, .most_choices = 2};
    const Problem p = testing::random_problem(random, seed < 10000 ? testing::Shape{} : longer);
    const testing::BruteForce truth = testing::brute_force(p);
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);

    const auto least = smallest(p);
    if (truth.peak == std::numeric_limits<std::int64_t>::max()) {  // a tie that no choice can meet
      REQUIRE(!least);
      continue;
    }
    REQUIRE(least);
    REQUIRE(least->cost.peak == truth.peak);
    check_valid(p, least->plan);

    Solver<> solver(p, {.labels = 4096}, nullptr, static_cast<int>(seed % 4));
    const auto fastest = solver.fastest();
    REQUIRE(fastest.has_value() == (truth.peak <= p.budget));
    if (!fastest) {
      ++infeasible;
      continue;
    }
    ++feasible;
    check_fastest(p, solver, *fastest, truth);
    REQUIRE(Solver(p, {.labels = 4096}).fastest(truth.seconds * 1.0001 + 1e-9));
  }
  CHECK(feasible > 1000);
  CHECK(infeasible > 500);
}

TEST_CASE("the solver finds what brute force finds where stages have unequal devices") {
  const unsigned first = std::random_device()() % 1'000'000;
  MESSAGE("first seed ", first);
  int feasible = 0;
  for (unsigned seed = first; seed < first + 6000; ++seed) {
    std::mt19937 random(seed);
    const testing::Shape longer{.most_stages = 4, .most_layers = 6, .most_choices = 2};
    Problem p = testing::random_problem(random, seed % 2 == 0 ? testing::Shape{} : longer);
    if (p.chunks > 1) continue;
    p = testing::on_unequal_devices(std::move(p), random);
    const testing::BruteForce truth = testing::brute_force(p);
    CAPTURE(seed);
    const auto least = smallest(p);
    REQUIRE(least.has_value() == (truth.peak < std::numeric_limits<std::int64_t>::max()));
    if (!least) continue;  // a tie that no choice can meet
    REQUIRE(least->cost.peak == truth.peak);
    Solver<> solver(p, {.labels = 4096});
    const auto fastest = solver.fastest();
    REQUIRE(fastest.has_value() == (truth.peak <= p.budget));
    if (!fastest) continue;
    ++feasible;
    check_fastest(p, solver, *fastest, truth);
  }
  CHECK(feasible > 1000);
}

TEST_CASE("a layer that fits few stages does not hide the plans in which others have it") {
  // The bound of a stage that begins as late as it can may be infinite where an earlier one is fine.
  for (const unsigned seed : {200098U}) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(
        random, {.most_stages = 4, .most_layers = 7, .most_choices = 2, .further_terms = false});
    const testing::BruteForce truth = testing::brute_force(p);
    REQUIRE(truth.peak <= p.budget);
    for (const double more : {1.0001, 1.3, 1e300}) {
      CHECK(Solver(p).bound(truth.seconds * more) <= truth.seconds * (1 + 1e-9));
      const auto fastest = Solver(p).fastest(truth.seconds * more);
      REQUIRE(fastest);
      CHECK(fastest->cost.seconds == doctest::Approx(truth.seconds));
    }
  }
}

TEST_CASE("without dominated choices the answers are the same") {
  int dropped = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    Problem fewer = p;
    drop_dominated(fewer);
    for (std::size_t i = 0; i < p.types.size(); ++i) dropped += fewer.types[i].size() < p.types[i].size() ? 1 : 0;
    const testing::BruteForce all = testing::brute_force(p);
    const testing::BruteForce some = testing::brute_force(fewer);
    INFO("seed " << seed);
    CHECK(some.peak == all.peak);
    if (all.peak > p.budget)
      CHECK(some.peak > p.budget);
    else
      CHECK(some.seconds == doctest::Approx(all.seconds).epsilon(1e-12));
  }
  CHECK(dropped > 100);
}

TEST_CASE("a solver that may keep few labels is never better than brute force, and says that it proves nothing") {
  int truncated = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    Limits limits;
    limits.labels = 1;
    Solver solver(p, limits);
    const auto quick = solver.fastest();
    if (!quick) continue;
    INFO("seed " << seed);
    const double best = testing::brute_force(p).seconds;
    CHECK(quick->cost.seconds >= best - 1e-9);
    CHECK(quick->cost.peak <= p.budget);
    if (solver.proven()) CHECK(quick->cost.seconds == doctest::Approx(best));
    CHECK(std::min(solver.open(), quick->cost.seconds) <= best * (1 + 1e-9));
    truncated += solver.proven() ? 0 : 1;
  }
  CHECK(truncated > 10);
}
