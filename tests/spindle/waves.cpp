// Plans of waves: equal to brute force on small problems, valid and above the bound on all.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/spindle/greedy.hpp>
#include <galvatron/spindle/solve.hpp>

#include "random_problem.hpp"

namespace {

using namespace galvatron;

constexpr std::uint64_t waves_seed = 20261126;

void check_plan(const spindle::Problem& problem, const spindle::Plan& plan) {
  CHECK(spindle::wrong_with(problem, plan.waves) == "");
  double seconds = 0;
  for (const spindle::Wave& wave : plan.waves) {
    CHECK(wave.seconds == spindle::wave_seconds(problem, wave.parts));
    seconds += wave.seconds;
  }
  CHECK(plan.seconds == doctest::Approx(seconds).epsilon(1e-12));
  CHECK(plan.bound <= plan.seconds);
  CHECK(plan.bound > 0);
}

}  // namespace

TEST_CASE("small problems: plans equal the best of all plans of waves, and are proven") {
  MESSAGE("seed " << waves_seed);
  test::Random random(waves_seed);
  int greedy_is_worse = 0;
  int without_barriers = 0;  // problems that are faster than level after level
  for (int turn = 0; turn < 400; ++turn) {
    CAPTURE(turn);
    const int metaops = test::draw(random, 1, 3);
    const int depth = turn % 2 == 0 ? 1 : 3;
    const spindle::Problem problem =
        test::random_problem(random, test::draw(random, 1, 9), metaops, metaops == 3 ? 3 : 6, depth);
    REQUIRE(spindle::problem_of(problem) == "");
    const double best = test::BruteForce(problem)();
    const spindle::Plan plan = spindle::best_plan(problem);
    check_plan(problem, plan);
    CHECK(plan.proven);
    CHECK(plan.seconds == doctest::Approx(best).epsilon(1e-12));
    CHECK(plan.bound <= best * (1 + 1e-12));
    if (spindle::waves_seconds(spindle::greedy_waves(problem, true)) > best * (1 + 1e-9)) ++greedy_is_worse;
    double levels = 0;
    for (const spindle::Level& level : spindle::levels_of(problem)) levels += test::BruteForce(level.problem)();
    CHECK(best <= levels * (1 + 1e-12));
    if (best < levels * (1 - 1e-9)) ++without_barriers;
  }
  MESSAGE("of 400 problems the greedy waves are slower on " << greedy_is_worse << ", levels as barriers on "
                                                            << without_barriers);
  CHECK(greedy_is_worse > 0);
  CHECK(without_barriers > 0);
}

TEST_CASE("plans of random graphs are valid, above the bound, and never slower than the greedy waves") {
  constexpr std::uint64_t seed = waves_seed + 1;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  double gap = 0;
  for (int turn = 0; turn < 60; ++turn) {
    CAPTURE(turn);
    constexpr int devices[] = {1, 2, 5, 8, 12, 16, 32, 64, 100};
    const spindle::Problem problem = test::random_problem(random, devices[turn % 9], test::draw(random, 1, 24),
                                                          turn % 7 == 0 ? 200 : 20, turn % 3 + 1);
    REQUIRE(spindle::problem_of(problem) == "");
    const spindle::Plan plan = spindle::best_plan(problem, {.steps = 3'000'000});
    check_plan(problem, plan);
    for (const bool extend : {false, true}) {
      const std::vector<spindle::Wave> greedy = spindle::greedy_waves(problem, extend);
      CHECK(spindle::wrong_with(problem, greedy) == "");
      CHECK(plan.seconds <= spindle::waves_seconds(greedy) * (1 + 1e-12));
    }
    if (turn % 3 == 0) CHECK(plan.bound == doctest::Approx(spindle::continuous_seconds(problem)).epsilon(1e-12));
    gap += plan.seconds / plan.bound - 1;
    if (turn % 10 == 0) {
      const spindle::Plan again = spindle::best_plan(problem, {.steps = 3'000'000});
      CHECK(again.seconds == plan.seconds);
      CHECK(spindle::best_plan(problem, {.steps = 30'000'000}).seconds <= plan.seconds * 1.02);
    }
  }
  MESSAGE("on average " << gap / 60 * 100 << " % above the bound");
}

TEST_CASE("more tasks than devices, prime batches and a single device have plans") {
  spindle::Problem problem;
  problem.devices = 4;
  for (int m = 0; m < 9; ++m)
    problem.metaops.push_back(
        {text_of("m", m), 3 + m, spindle::linear_curve(m % 2 == 0 ? 13 : 7, 1e-4, 1e-4, 4), {}, 0});
  const spindle::Plan plan = spindle::best_plan(problem);
  check_plan(problem, plan);
  for (const spindle::Wave& wave : plan.waves)
    for (const spindle::Part& part : wave.parts) CHECK(part.devices == 1);
  problem.devices = 1;
  const spindle::Plan alone = spindle::best_plan(problem);
  check_plan(problem, alone);
  CHECK(alone.seconds == doctest::Approx(alone.bound).epsilon(1e-12));
}

TEST_CASE("problems and plans that are none are named") {
  using spindle::MetaOp;
  const spindle::Curve curve = spindle::linear_curve(4, 1e-3, 1e-3, 4);
  spindle::Problem problem{4, {{"a", 2, curve, {}, 0}, {"b", 2, curve, {0}, 1}}};
  CHECK(spindle::problem_of(problem) == "");
  const auto wrong = [&](const std::vector<spindle::Wave>& waves) { return spindle::wrong_with(problem, waves); };
  CHECK(wrong({{{{0, 4, 2}}, 0}, {{{1, 4, 2}}, 0}}) == "");
  CHECK(wrong({{{{0, 4, 2}}, 0}}) == "\"b\": 2 operators are in no wave");
  CHECK(wrong({{{{0, 2, 2}, {1, 2, 2}}, 0}}) == "wave 0: \"b\" starts before its predecessors end");
  CHECK(wrong({{{{0, 3, 2}}, 0}}) == "wave 0: \"a\": 3 devices are not valid");
  CHECK(wrong({{{{0, 1, 3}}, 0}}) == "wave 0: \"a\": 3 operators of 2");
  CHECK(wrong({{{{0, 1, 1}, {0, 1, 1}}, 0}}) == "wave 0: \"a\" has two parts");
  problem.metaops[1].after.clear();
  CHECK(wrong({{{{0, 4, 2}, {1, 1, 2}}, 0}}) == "wave 0: 5 devices of 4");
  CHECK(wrong({{{{2, 4, 2}}, 0}}) == "wave 0: a part is of no MetaOp");
  problem.metaops[0].after = {1};
  problem.metaops[1].after = {0};
  CHECK(spindle::problem_of(problem).find("cycle") != std::string::npos);
  problem.metaops[0].after.clear();
  problem.metaops[1].level = 0;
  CHECK(spindle::problem_of(problem).find("must be above") != std::string::npos);
  problem.metaops[1] = {"b", 0, curve, {}, 0};
  CHECK(spindle::problem_of(problem).find("no operators") != std::string::npos);
  problem.metaops[1] = {"b", 1, {}, {}, 0};
  CHECK(spindle::problem_of(problem).find("no number of devices") != std::string::npos);
  problem.metaops[1] = {"b", 1, curve, {7}, 1};
  CHECK(spindle::problem_of(problem).find("unknown") != std::string::npos);
}
