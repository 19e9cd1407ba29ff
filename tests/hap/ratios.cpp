// Ratios of programs that are given: equal to a simplex method on the whole linear program; whole sizes; factors.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/hap/factors.hpp>
#include <galvatron/hap/ratios.hpp>
#include <galvatron/hap/sizes.hpp>

#include "random_graph.hpp"

namespace {

using namespace galvatron;

// max c x with A x <= b, x >= 0 and b >= 0: the simplex method with Bland's rule.
double simplex(std::vector<std::vector<double>> a, std::vector<double> b, std::vector<double> c) {
  constexpr double zero = 1e-11;
  double value = 0;
  for (;;) {
    std::size_t in = 0;
    while (in < c.size() && c[in] <= zero) ++in;
    if (in == c.size()) return value;
    std::size_t out = a.size();
    for (std::size_t i = 0; i < a.size(); ++i)
      if (a[i][in] > zero && (out == a.size() || b[i] / a[i][in] < b[out] / a[out][in])) out = i;
    if (out == a.size()) return std::numeric_limits<double>::infinity();
    // The slack of the row takes the column of the variable.
    const double pivot = a[out][in];
    for (double& entry : a[out]) entry /= pivot;
    a[out][in] = 1 / pivot;
    b[out] /= pivot;
    const auto clear = [&](std::vector<double>& row, double& right) {
      const double times = row[in];
      row[in] = 0;
      for (std::size_t k = 0; k < row.size(); ++k) row[k] -= times * a[out][k];
      right -= times * b[out];
    };
    for (std::size_t i = 0; i < a.size(); ++i)
      if (i != out) clear(a[i], b[i]);
    double right = 0;
    clear(c, right);
    value -= right;
  }
}

// The least seconds of stages of one segment: the dual of
//   min sum_i t_i + M v   with   t_i F_j >= r_i + s_i B_j,  v >= B_j,  sum_j B_j >= 1.
double by_simplex(const std::vector<double>& flops, const std::vector<hap::Stage>& stages) {
  const std::size_t n = stages.size();
  const std::size_t m = flops.size();
  double horizontal = 0;
  double constant = 0;
  for (const hap::Stage& stage : stages) {
    horizontal += stage.ratio_seconds;
    constant += stage.seconds;
  }
  const std::size_t columns = n * m + m + 1;
  std::vector<std::vector<double>> a(n + 1 + m, std::vector<double>(columns, 0.0));
  std::vector<double> b(n + 1 + m, 0.0);
  std::vector<double> c(columns, 0.0);
  c.back() = 1;
  for (std::size_t i = 0; i < n; ++i) {
    b[i] = 1;
    for (std::size_t j = 0; j < m; ++j) {
      a[i][i * m + j] = 1;
      a[n + 1 + j][i * m + j] = -stages[i].sharded_flops / flops[j];
      c[i * m + j] = stages[i].replicated_flops / flops[j];
    }
  }
  b[n] = horizontal;
  for (std::size_t j = 0; j < m; ++j) {
    a[n][n * m + j] = 1;
    a[n + 1 + j][n * m + j] = -1;
    a[n + 1 + j].back() = 1;
  }
  return constant + simplex(a, b, c);
}

std::vector<hap::Stage> random_stages(test::Random& random) {
  std::vector<hap::Stage> out;
  for (int i = test::draw(random, 0, 5); i >= 0; --i) {
    hap::Stage stage;
    if (test::draw(random, 0, 1) == 1) stage.seconds = test::draw_between(random, 1e-3, 1);
    if (test::draw(random, 0, 1) == 1) stage.ratio_seconds = test::draw_between(random, 1e-2, 10);
    if (test::draw(random, 0, 2) == 0) stage.replicated_flops = test::draw_between(random, 1e-2, 10);
    if (test::draw(random, 0, 3) != 0) stage.sharded_flops = test::draw_between(random, 1e-2, 10);
    out.push_back(stage);
  }
  return out;
}

}  // namespace

TEST_CASE("ratios of 10,000 random problems equal the simplex method's") {
  constexpr std::uint64_t seed = 20261126;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  int mixed = 0;  // problems whose best ratios are none of the corners
  for (int turn = 0; turn < 10'000; ++turn) {
    CAPTURE(turn);
    std::vector<double> flops;
    const bool kinds = test::draw(random, 0, 2) == 0;
    for (int j = test::draw(random, 1, 7); j > 0; --j)
      flops.push_back(kinds ? 1.0 + test::draw(random, 0, 2)
                            : test::draw_between(random, 0.1, turn % 7 == 0 ? 1e3 : 3));
    const std::vector<hap::Stage> stages = random_stages(random);
    const hap::Ratios ratios = hap::optimal_ratios(flops, stages).front();
    CHECK(std::accumulate(ratios.begin(), ratios.end(), 0.0) == doctest::Approx(1).epsilon(1e-12));
    CHECK(std::ranges::min(ratios) >= 0);
    double seconds = 0;
    for (const hap::Stage& stage : stages) seconds += hap::seconds_of(stage, flops, ratios);
    CHECK(seconds == doctest::Approx(by_simplex(flops, stages)).epsilon(1e-9));
    const bool corner = std::ranges::any_of(hap::corner_ratios(flops), [&](const hap::Ratios& one) {
      double other = 0;
      for (const hap::Stage& stage : stages) other += hap::seconds_of(stage, flops, one);
      return other <= seconds * (1 + 1e-9);
    });
    mixed += corner ? 0 : 1;
  }
  MESSAGE(mixed << " of 10,000 have their best ratios at no corner");
  CHECK(mixed > 1000);
}

TEST_CASE("segments have ratios of their own, and one without work any") {
  const std::vector<double> flops{4, 1};
  const std::vector<hap::Stage> stages{{0, 0, 0, 0, 1}, {2, 0, 1, 0, 0}};
  const auto ratios = hap::optimal_ratios(flops, stages, 3);
  REQUIRE(ratios.size() == 3);
  CHECK(ratios[0][0] == doctest::Approx(0.8));
  CHECK(ratios[1][0] + ratios[1][1] == doctest::Approx(1));
  CHECK(ratios[2][0] == doctest::Approx(0.5));
}

TEST_CASE("whole sizes add up, are none below 0, and differ from the ratios by less than 1.5 or 1") {
  constexpr std::uint64_t seed = 20261127;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  for (int turn = 0; turn < 10'000; ++turn) {
    CAPTURE(turn);
    const hap::Ratios ratios = test::random_ratios(random, static_cast<std::size_t>(test::draw(random, 1, 12)));
    const std::int64_t length = test::draw(random, 0, 100);
    const hap::Sizes paper = hap::nearest_sizes(length, ratios);
    const hap::Sizes released = hap::released_sizes(length, ratios);
    CHECK(std::accumulate(paper.begin(), paper.end(), std::int64_t{0}) == length);
    for (std::size_t j = 0; j < ratios.size(); ++j) {
      CHECK(paper[j] >= 0);
      CHECK(std::abs(static_cast<double>(paper[j]) - static_cast<double>(length) * ratios[j]) < 1.5 + 1e-9);
      if (length == 1) {
        CHECK(released[j] == 1);
        continue;
      }
      CHECK(std::abs(static_cast<double>(released[j]) - static_cast<double>(length) * ratios[j]) < 1 + 1e-9);
    }
    if (length != 1) CHECK(std::accumulate(released.begin(), released.end(), std::int64_t{0}) == length);
  }
  CHECK(hap::nearest_sizes(3, {0.5, 0.5}) == hap::Sizes{1, 2});  // both round up to 2, and the first steps back
}

TEST_CASE("factors of a weight's gradient win below their break-even batch") {
  constexpr std::uint64_t seed = 20261128;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  int always = 0;
  for (int turn = 0; turn < 1000; ++turn) {
    const hap::Devices devices = test::random_devices(random);
    const hap::Ratios ratios = test::random_ratios(random, devices.count());
    hap::WeightGradient gradient{1, test::draw_between(random, 8, 8192), test::draw_between(random, 8, 8192)};
    const auto threshold = hap::choose_factors(gradient, devices, ratios).threshold_batch;
    if (!threshold) {
      ++always;
      gradient.batch = 1e9;
      CHECK(hap::choose_factors(gradient, devices, ratios).chooses_factors());
      continue;
    }
    gradient.batch = *threshold * 0.999;
    CHECK(hap::choose_factors(gradient, devices, ratios).chooses_factors());
    gradient.batch = *threshold * 1.001;
    CHECK(!hap::choose_factors(gradient, devices, ratios).chooses_factors());
  }
  CHECK(always < 1000);
}
