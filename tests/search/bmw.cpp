#include <galvatron/search/bmw.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "random_problem.hpp"

using namespace galvatron::search;

namespace {

// `layers` layers of one kind with a fast choice and a small one.
Problem simple(int stages, int layers, std::int64_t budget) {
  Problem p;
  p.objective = {.stages = stages, .microbatches = 8, .weights = {1, 7, 0}};
  p.types = {{{.forward = 1, .backward = 2, .states = 10, .stash = 10},
              {.forward = 1, .backward = 3, .states = 10, .stash = 2, .tag = 1}}};
  p.layers.assign(static_cast<std::size_t>(layers), 0);
  for (int i = 0; i < stages; ++i) p.slots.push_back({stages - i});
  p.moves = {{.relayout = {0}, .input = {0}, .output = {0}}};
  p.budget = budget;
  return p;
}

// How evenly stages are loaded, as the paper has it; each in [0, 1 - 1/P].
struct Balance {
  double time = 0;    // alpha_t
  double memory = 0;  // alpha_m
};

Balance balance_of(const Evaluation& plan) {
  double slowest = 0;
  double seconds = 0;
  double fullest = 0;
  double bytes = 0;
  for (const StageCost& stage : plan.stages) {
    slowest = std::max(slowest, stage.seconds());
    seconds += stage.seconds();
    fullest = std::max(fullest, static_cast<double>(stage.peak));
    bytes += static_cast<double>(stage.peak);
  }
  return {seconds > 0 ? 1 - slowest / seconds : 0, bytes > 0 ? 1 - fullest / bytes : 0};
}

}  // namespace

TEST_CASE("memory-balanced cuts give the first stages fewer layers, time-balanced ones equally many") {
  const Problem p = simple(4, 16, 1000);
  CHECK(Bmw(p).time_balanced() == std::vector<int>{0, 4, 8, 12, 16});
  const std::vector<int> cuts = Bmw(p).memory_balanced();
  const auto bytes = [&](const std::vector<int>& c) {
    int most = 0;
    for (int i = 0; i < 4; ++i)
      most = std::max(most, (c[static_cast<std::size_t>(i) + 1] - c[static_cast<std::size_t>(i)]) * (10 + (4 - i) * 2));
    return most;
  };
  CHECK(bytes(cuts) < bytes({0, 4, 8, 12, 16}));
  for (int a = 1; a < 14; ++a)
    for (int b = a + 1; b < 15; ++b)
      for (int c = b + 1; c < 16; ++c) CHECK(bytes(cuts) <= bytes({0, a, b, c, 16}));
}

TEST_CASE("with memory enough the search ends where time is balanced; with little of it between the two") {
  const Problem roomy = simple(4, 16, 100'000);
  const auto best = Bmw(roomy).run();
  REQUIRE(best);
  CHECK(best->plan.first == std::vector<int>{0, 4, 8, 12, 16});
  const Balance even = balance_of(best->cost);
  CHECK(even.time == doctest::Approx(0.75));
  CHECK(even.memory < 0.75);

  const Problem tight = simple(4, 16, 90);
  const auto balanced = Bmw(tight).run();
  REQUIRE(balanced);
  CHECK(balanced->cost.peak <= 90);
  CHECK(balance_of(balanced->cost).memory > even.memory);
}

TEST_CASE("on random problems BMW's plans fit, are never faster than the exact search's, and often as fast") {
  int found = 0;
  int as_fast = 0;
  for (unsigned seed = 0; seed < 3000; ++seed) {
    std::mt19937 random(seed);
    const Problem p = testing::random_problem(random);
    INFO("seed " << seed);
    const auto exact = Solver(p).fastest();
    const auto bmw = Bmw(p).run();
    if (!bmw) continue;
    REQUIRE(exact);
    ++found;
    CHECK(bmw->cost.peak <= p.budget);
    CHECK(bmw->cost.seconds >= exact->cost.seconds * (1 - 1e-9));
    const Balance balance = balance_of(bmw->cost);
    CHECK(balance.time >= 0);
    CHECK(balance.time <= 1 - 1.0 / p.stages() + 1e-9);
    CHECK(balance.memory >= 0);
    CHECK(balance.memory <= 1 - 1.0 / p.stages() + 1e-9);
    as_fast += bmw->cost.seconds <= exact->cost.seconds * (1 + 1e-9) ? 1 : 0;
  }
  CHECK(found > 500);
  CHECK(as_fast > found / 2);
}
