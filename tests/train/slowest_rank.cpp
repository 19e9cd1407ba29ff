// Which rank is the slowest of a run, and why.
#include <galvatron/train/slowest_rank.hpp>

#include <doctest/doctest.h>

#include <vector>

using namespace galvatron;
using namespace galvatron::train;

TEST_CASE("a rank that works longer than the others is told with its cause") {
  const std::vector<RankSeconds> alike{{1.00, 0.1}, {1.02, 0.1}, {1.01, 0.1}, {1.00, 0.1}};
  CHECK_FALSE(slowest_rank(alike, {}));
  CHECK_FALSE(slowest_rank(std::vector<RankSeconds>{{1, 1}}, {}));

  const std::vector<RankSeconds> measured{{1.0, 0.1}, {1.5, 0.1}, {1.0, 0.1}, {1.0, 0.1}};
  const auto unknown = slowest_rank(measured, {});
  REQUIRE(unknown);
  CHECK(unknown->rank == 1);
  CHECK(unknown->seconds == doctest::Approx(1.6));
  CHECK(unknown->others == doctest::Approx(1.1));
  CHECK(unknown->predicted == 0);
  CHECK(unknown->cause == SlowCause::passes);

  // The plan gives it half as much again; all are 25 % slower than predicted.
  const std::vector<RankSeconds> planned{{0.8, 0.08}, {1.2, 0.08}, {0.8, 0.08}, {0.8, 0.08}};
  const auto by_share = slowest_rank(measured, planned);
  REQUIRE(by_share);
  CHECK(by_share->cause == SlowCause::share);
  CHECK(by_share->predicted == doctest::Approx(1.28));
  CHECK(by_share->predicted_others == doctest::Approx(0.88));

  const std::vector<RankSeconds> even(4, {0.8, 0.08});
  CHECK(slowest_rank(measured, even)->cause == SlowCause::passes);
  const std::vector<RankSeconds> late_update{{1.0, 0.1}, {1.0, 0.1}, {1.0, 0.4}, {1.0, 0.1}};
  const auto update = slowest_rank(late_update, even);
  CHECK(update->rank == 2);
  CHECK(update->cause == SlowCause::update);
}

TEST_CASE("measured work is that of the steps under the last plan, as medians") {
  TrainReport report;
  for (int i = 0; i < 6; ++i) {
    StepReport& step = report.steps.emplace_back();
    step.step = i;
    if (i % 2 == 1) step.ranks = {{1.0 + i, 0.5}, {2.0, 0.25}};
  }
  const auto all = measured_work(report);
  REQUIRE(all.size() == 2);
  CHECK(all[0].passes == 4);
  CHECK(all[1].update == 0.25);
  report.adaptations.emplace_back().step = 4;
  CHECK(measured_work(report)[0].passes == 6);
  CHECK(measured_work({}).empty());
}
