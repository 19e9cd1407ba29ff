// Curves, contraction, and the continuous optimum: against a fine grid of times, and the data of its definition.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/spindle/contract.hpp>
#include <galvatron/spindle/curve.hpp>
#include <galvatron/spindle/levels.hpp>
#include <galvatron/spindle/relaxation.hpp>

#include "random_problem.hpp"

namespace {

using namespace galvatron;

constexpr std::uint64_t relaxation_seed = 20261127;

// The continuous optimum as Spindle has it: bisection of C, speed-ups interpolated between neighbouring counts. For
// curves whose speed-up is concave from (0, 0) on.
double bisected(const spindle::Problem& level) {
  const auto devices_at = [&](const spindle::MetaOp& metaop, double seconds) {
    const spindle::Curve& curve = metaop.curve;
    const double need = metaop.operators * curve.seconds[0] / seconds;
    double below = 0;
    int count = 0;
    for (std::size_t i = 0; i < curve.size(); ++i) {
      const double speed = curve.seconds[0] / curve.seconds[i];
      if (need <= speed) return count + (need - below) / (speed - below) * (curve.devices[i] - count);
      below = speed;
      count = curve.devices[i];
    }
    return std::numeric_limits<double>::infinity();
  };
  double low = 0;
  double high = 0;
  for (const spindle::MetaOp& metaop : level.metaops) high += metaop.operators * metaop.curve.seconds[0];
  for (int turn = 0; turn < 200; ++turn) {
    const double middle = (low + high) / 2;
    double devices = 0;
    for (const spindle::MetaOp& metaop : level.metaops) devices += devices_at(metaop, middle);
    (devices > level.devices ? low : high) = middle;
  }
  return high;
}

// Least C at which a choice of seconds for every MetaOp, out of `steps` of them, has room: for two MetaOps in a row and
// one beside them.
double by_grid(const spindle::Problem& problem, int steps) {
  const auto area_within = [&](const spindle::MetaOp& metaop, double seconds) {
    double out = std::numeric_limits<double>::infinity();
    const spindle::Curve& curve = metaop.curve;
    for (std::size_t i = 0; i < curve.size(); ++i)
      for (std::size_t j = 0; j < curve.size(); ++j)
        for (const double part : {0.0, 1.0}) {
          // operators x on count i, the rest on count j: one count alone, or both with the seconds used up
          const double ti = curve.seconds[i];
          const double tj = curve.seconds[j];
          const double all = metaop.operators;
          const double x = part == 1 ? all : ti == tj ? 0 : std::clamp((seconds - all * tj) / (ti - tj), 0.0, all);
          if (x * ti + (all - x) * tj > seconds * (1 + 1e-12)) continue;
          out = std::min(out, x * ti * curve.devices[i] + (all - x) * tj * curve.devices[j]);
        }
    return out;
  };
  double low = 0;
  double high = 0;
  for (const spindle::MetaOp& metaop : problem.metaops) high += metaop.operators * metaop.curve.seconds[0];
  for (int turn = 0; turn < 40; ++turn) {
    const double middle = (low + high) / 2;
    double area = std::numeric_limits<double>::infinity();
    for (int k = 1; k < steps; ++k) {
      const double first = middle * k / steps;
      area = std::min(area, area_within(problem.metaops[0], first) + area_within(problem.metaops[1], middle - first));
    }
    area += area_within(problem.metaops[2], middle);
    (area > problem.devices * middle ? low : high) = middle;
  }
  return high;
}

}  // namespace

TEST_CASE("the continuous optimum is that of bisection, and its allocations add up") {
  MESSAGE("seed " << relaxation_seed);
  test::Random random(relaxation_seed);
  for (int turn = 0; turn < 300; ++turn) {
    CAPTURE(turn);
    spindle::Problem problem{test::draw(random, 1, 64), {}};
    for (int m = test::draw(random, 1, 8); m > 0; --m)
      problem.metaops.push_back(
          {"m",
           test::draw(random, 1, 50),
           spindle::linear_curve(test::draw(random, 1, 128), test::draw_between(random, 1e-5, 1e-3),
                                 test::draw_between(random, 1e-5, 1e-3), problem.devices),
           {},
           0});
    const spindle::Relaxation relaxation(problem);
    const spindle::Relaxation::Answer answer = relaxation.answer(spindle::operators_of(problem));
    CHECK(answer.seconds == doctest::Approx(bisected(problem)).epsilon(1e-10));
    double devices = 0;
    double priced = 0;
    for (std::size_t m = 0; m < problem.count(); ++m) {
      const spindle::MetaOp& metaop = problem.metaops[m];
      const spindle::Allocation allocation = spindle::allocation_of(metaop, answer.seconds);
      devices += allocation.devices;
      CHECK(allocation.lower_operators + allocation.upper_operators == doctest::Approx(metaop.operators));
      CHECK(allocation.lower <= allocation.devices * (1 + 1e-12));
      CHECK(allocation.upper >= allocation.devices * (1 - 1e-12));
      priced += answer.prices[m] * metaop.operators;
    }
    CHECK(devices <= problem.devices * (1 + 1e-9));
    CHECK(priced <= answer.seconds * (1 + 1e-12));
  }
}

TEST_CASE("MetaOps in a row: the bound is that of a grid of times") {
  constexpr std::uint64_t seed = relaxation_seed + 1;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  for (int turn = 0; turn < 40; ++turn) {
    CAPTURE(turn);
    spindle::Problem problem = test::random_problem(random, test::draw(random, 2, 16), 3, 20);
    problem.metaops[1].after = {0};
    problem.metaops[1].level = 1;
    const double bound = spindle::Relaxation(problem).bound(spindle::operators_of(problem));
    const double grid = by_grid(problem, 2000);
    CHECK(bound <= grid * (1 + 1e-9));
    CHECK(bound >= grid * (1 - 2e-3));
  }
}

TEST_CASE("prices of operators bound what any wave can do") {
  constexpr std::uint64_t seed = relaxation_seed + 2;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  for (int turn = 0; turn < 200; ++turn) {
    CAPTURE(turn);
    const spindle::Problem problem =
        test::random_problem(random, test::draw(random, 1, 32), test::draw(random, 1, 10), 20, turn % 2 == 0 ? 1 : 3);
    const auto answer = spindle::Relaxation(problem).answer(spindle::operators_of(problem));
    for (int k = 0; k < 20; ++k) {  // a random wave of MetaOps without predecessors
      int free = problem.devices;
      double length = 0;
      double price = 0;
      for (std::size_t m = 0; m < problem.count(); ++m) {
        const spindle::Curve& curve = problem.metaops[m].curve;
        const auto i = static_cast<std::size_t>(test::draw(random, 0, static_cast<int>(curve.size()) - 1));
        if (!problem.metaops[m].after.empty() || curve.devices[i] > free) continue;
        free -= curve.devices[i];
        const int operators = test::draw(random, 1, problem.metaops[m].operators);
        length = std::max(length, operators * curve.seconds[i]);
        price += operators * answer.prices[m];
      }
      CHECK(price <= length * (1 + 1e-9));
    }
  }
}

TEST_CASE("curves: divisors, multiples of a degree, pieces through measured points") {
  CHECK(spindle::valid_counts(12, 8) == std::vector<int>{1, 2, 3, 4, 6});
  CHECK(spindle::valid_counts(12, 16, 4) == std::vector<int>{4, 8, 12, 16});
  CHECK(spindle::valid_counts(13, 8) == std::vector<int>{1});
  const spindle::Curve line = spindle::linear_curve(8, 0.5, 0.25, 8);
  CHECK(line.devices == std::vector<int>{1, 2, 4, 8});
  CHECK(line.seconds == std::vector<double>{2.5, 1.5, 1, 0.75});
  // The same line through three of its points; 16 goes on the last piece.
  const auto pieces = spindle::piecewise_curve({{1, 2.5}, {2, 1.5}, {8, 0.75}}, {1, 2, 4, 8, 16});
  REQUIRE(pieces);
  CHECK(pieces->devices == std::vector<int>{1, 2, 4, 8, 16});
  CHECK(pieces->seconds[2] == doctest::Approx(1).epsilon(1e-12));
  CHECK(pieces->seconds[4] == doctest::Approx(0.625).epsilon(1e-12));
  // A count that is no faster is left out.
  const auto flat = spindle::piecewise_curve({{1, 2}, {2, 1}, {4, 1.5}}, {1, 2, 4});
  REQUIRE(flat);
  CHECK(flat->devices == std::vector<int>{1, 2});
  CHECK_FALSE(spindle::piecewise_curve({}, {1}));
  CHECK_FALSE(spindle::piecewise_curve({{2, 1}, {2, 1}}, {2}));
  CHECK_FALSE(spindle::piecewise_curve({{2, 1}}, {2, 4}));
  CHECK(spindle::piecewise_curve({{2, 1}}, {2}));
  // Two ways to run an operator: one device each, or pairs that share it.
  const spindle::FastestCurve fastest = spindle::fastest_of({{{1, 3, 4}, {5, 3, 2}}, {{2, 4, 8}, {4, 1.5, 1}}});
  CHECK(fastest.curve.devices == std::vector<int>{1, 2, 3, 4, 8});
  CHECK(fastest.curve.seconds == std::vector<double>{5, 4, 3, 1.5, 1});
  CHECK(fastest.choices == std::vector<int>{0, 1, 0, 1, 1});
  // A count on which parallel work costs more than it gains is no part of the convex border.
  spindle::Curve bent;
  bent.add(1, 1);
  bent.add(2, 0.9);
  bent.add(3, 0.3);
  CHECK(spindle::convex_counts(bent) == std::vector<std::size_t>{2});
}

TEST_CASE("contraction: runs of equal operators that only read each other") {
  //  0 - 1 - 2 (text) \ .
  //                     5 - 6 (model) ; 5 reads both, 7 reads 1 too
  //  3 - 4 (image)    /
  const std::vector<spindle::Operator> graph = {{"text", 8, {}},   {"text", 8, {0}},  {"text", 8, {1}},
                                                {"image", 8, {}},  {"image", 8, {3}}, {"model", 8, {2, 4}},
                                                {"model", 8, {5}}, {"model", 4, {6}}};
  const auto runs = spindle::contract(graph);
  REQUIRE(runs);
  REQUIRE(runs->size() == 4);
  CHECK((*runs)[0].operators == std::vector<int>{0, 1, 2});
  CHECK((*runs)[1].operators == std::vector<int>{3, 4});
  CHECK((*runs)[2].operators == std::vector<int>{5, 6});
  CHECK((*runs)[2].after == std::vector<int>{0, 1});
  CHECK((*runs)[2].level == 1);
  CHECK((*runs)[3].operators == std::vector<int>{7});  // of another input size
  CHECK((*runs)[3].level == 2);
  // A second reader cuts a run behind its operator.
  std::vector<spindle::Operator> forked = graph;
  forked.push_back({"head", 8, {0}});
  const auto cut = spindle::contract(forked);
  REQUIRE(cut);
  CHECK(cut->size() == 6);
  CHECK((*cut)[0].operators == std::vector<int>{0});
  // Operators may stand in any order.
  const auto backwards = spindle::contract({{"a", 1, {1}}, {"a", 1, {2}}, {"a", 1, {}}});
  REQUIRE(backwards);
  REQUIRE(backwards->size() == 1);
  CHECK(backwards->front().operators == std::vector<int>{2, 1, 0});
  CHECK_FALSE(spindle::contract({{"a", 1, {1}}, {"a", 1, {0}}}));
  CHECK_FALSE(spindle::contract({{"a", 1, {3}}}));
}
