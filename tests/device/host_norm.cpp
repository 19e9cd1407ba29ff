// Norms and column sums of the host, against their definitions.
#include <array>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/device/host/norm.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

struct Reference {
  std::vector<double> y, stats, dx, dgamma, dbeta;
};

/// A norm and its gradient by the definition, in double.
Reference reference(NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const std::vector<double>& x,
                    const std::vector<double>& gamma, const std::vector<double>& beta, const std::vector<double>& dy) {
  Reference r;
  r.y.resize(x.size());
  r.dx.resize(x.size());
  r.stats.resize(at(rows * 2));
  r.dgamma.assign(at(hidden), 0.0);
  r.dbeta.assign(at(hidden), 0.0);
  const auto h = static_cast<double>(hidden);
  const auto factor = [&](std::int64_t i) { return static_cast<double>(gamma_offset(kind)) + gamma[at(i)]; };
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t o = row * hidden;
    double mean = 0;
    if (kind == NormKind::layer_norm)
      for (std::int64_t i = 0; i < hidden; ++i) mean += x[at(o + i)] / h;
    double variance = 0;
    for (std::int64_t i = 0; i < hidden; ++i) variance += (x[at(o + i)] - mean) * (x[at(o + i)] - mean) / h;
    const double scale = 1.0 / std::sqrt(variance + epsilon);
    r.stats[at(2 * row)] = mean;
    r.stats[at(2 * row + 1)] = scale;
    double g_sum = 0;
    double g_xhat_sum = 0;
    for (std::int64_t i = 0; i < hidden; ++i) {
      const double xhat = (x[at(o + i)] - mean) * scale;
      r.y[at(o + i)] = xhat * factor(i) + (kind == NormKind::layer_norm ? beta[at(i)] : 0.0);
      r.dgamma[at(i)] += dy[at(o + i)] * xhat;
      r.dbeta[at(i)] += dy[at(o + i)];
      const double g = dy[at(o + i)] * factor(i);
      g_sum += g / h;
      g_xhat_sum += g * xhat / h;
    }
    if (kind != NormKind::layer_norm) g_sum = 0;
    for (std::int64_t i = 0; i < hidden; ++i) {
      const double xhat = (x[at(o + i)] - mean) * scale;
      r.dx[at(o + i)] = scale * (dy[at(o + i)] * factor(i) - g_sum - xhat * g_xhat_sum);
    }
  }
  return r;
}

template <class T>
void check(NormKind kind, std::int64_t rows, std::int64_t hidden, int threads, std::mt19937& random) {
  CAPTURE(static_cast<int>(kind));
  CAPTURE(rows);
  CAPTURE(hidden);
  CAPTURE(threads);
  const bool layer = kind == NormKind::layer_norm;
  auto x = random_tensor<T>(random, rows * hidden, 2.0F);
  for (auto& value : x) value = T(static_cast<float>(value) + 0.5F);
  const auto gamma = random_tensor<T>(random, hidden, 1.5F);
  const auto beta = random_tensor<T>(random, hidden);
  const auto dy = random_tensor<T>(random, rows * hidden);
  const auto residual = random_tensor<T>(random, rows * hidden);
  const auto expected = reference(kind, rows, hidden, 1e-5, doubles(x), doubles(gamma), doubles(beta), doubles(dy));

  TestHost host(threads);
  std::vector<T> y(x.size());
  std::vector<float> stats(static_cast<std::size_t>(2 * rows));
  host->norm_forward(kind, rows, hidden, 1e-5, view(x), view(gamma), layer ? view(beta) : View<const T>{}, view(y),
                     view(stats));
  CHECK(error_of(y, expected.y) < tolerance<T>);
  CHECK(error_of(stats, expected.stats) < 2e-6);
  std::vector<T> again(x.size());
  host->norm_recompute(kind, rows, hidden, view(x), view(gamma), layer ? view(beta) : View<const T>{}, view(stats),
                       view(again));
  CHECK(same_bits(y, again));

  // A residual and the norm of the sum, in new memory, in that of x, and in that of r: the bits of the two operations.
  std::vector<T> sum(x.size());
  std::vector<T> sum_y(x.size());
  std::vector<float> sum_stats(stats.size());
  host->add(rows * hidden, view(x), view(residual), view(sum));
  host->norm_forward(kind, rows, hidden, 1e-5, view(sum), view(gamma), layer ? view(beta) : View<const T>{},
                     view(sum_y), view(sum_stats));
  for (const int place : {0, 1, 2}) {
    CAPTURE(place);
    auto terms = std::array{std::vector<T>(x.size()), x, residual};
    auto& got = terms[static_cast<std::size_t>(place)];
    std::vector<T> apart(x.size());
    auto& got_y = place == 1 ? terms[2] : apart;
    std::vector<float> got_stats(stats.size());
    host->add_norm_forward(kind, rows, hidden, 1e-5, view(terms[1]), view(terms[2]), view(gamma),
                           layer ? view(beta) : View<const T>{}, view(got), view(got_y), view(got_stats));
    CHECK(same_bits(got, sum));
    CHECK(same_bits(got_y, sum_y));
    CHECK(same_bits(got_stats, sum_stats));
  }

  std::vector<T> dx(x.size());
  auto dgamma = random_tensor<float>(random, hidden);
  auto dbeta = random_tensor<float>(random, hidden);
  auto expected_dgamma = expected.dgamma;
  auto expected_dbeta = expected.dbeta;
  for (std::size_t i = 0; i < dgamma.size(); ++i) {
    expected_dgamma[i] += static_cast<double>(dgamma[i]);
    expected_dbeta[i] += static_cast<double>(dbeta[i]);
  }
  const auto before_gamma = dgamma;
  const auto before_beta = dbeta;
  host->norm_backward(kind, rows, hidden, view(dy), view(x), view(gamma), view(stats), View<const T>{}, view(dx),
                      view(dgamma), layer ? view(dbeta) : View<float>{});
  CHECK(error_of(dx, expected.dx) < tolerance<T>);
  CHECK(error_of(dgamma, expected_dgamma) < 5e-6);
  if (layer)
    CHECK(error_of(dbeta, expected_dbeta) < 5e-6);
  else
    CHECK(same_bits(dbeta, before_beta));

  // With a residual gradient, in place, and the same bits for the parameters again.
  auto in_place = residual;
  auto again_gamma = before_gamma;
  auto again_beta = before_beta;
  host->norm_backward(kind, rows, hidden, view(dy), view(x), view(gamma), view(stats), view(in_place), view(in_place),
                      view(again_gamma), layer ? view(again_beta) : View<float>{});
  auto with_residual = expected.dx;
  for (std::size_t i = 0; i < with_residual.size(); ++i)
    with_residual[i] += static_cast<double>(static_cast<float>(residual[i]));
  CHECK(error_of(in_place, with_residual) < tolerance<T>);
  CHECK(same_bits(again_gamma, dgamma));
  CHECK(same_bits(again_beta, dbeta));
}

}  // namespace

TEST_CASE("norms and their gradients equal their definitions for any row length and number of threads") {
  constexpr unsigned seed = 101;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm, NormKind::rms_norm_from_one}) {
    for (const int threads : {1, 2}) {
      check<float>(kind, 1, 5, threads, random);
      check<float>(kind, 3, 7, threads, random);
      check<float>(kind, 129, 768, threads, random);
      check<float>(kind, 70, 1001, threads, random);
      check<bfloat16>(kind, 65, 640, threads, random);
      check<bfloat16>(kind, 5, 33, threads, random);
    }
  }
}

TEST_CASE("the gradient of a norm is the slope of its output") {
  std::mt19937 random(103);
  const std::int64_t hidden = 24;
  TestHost host(1);
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm, NormKind::rms_norm_from_one}) {
    auto x = random_tensor<float>(random, hidden);
    const auto gamma = random_tensor<float>(random, hidden);
    const auto beta = random_tensor<float>(random, hidden);
    const auto dy = random_tensor<float>(random, hidden);
    std::vector<float> y(x.size()), dx(x.size()), dgamma(x.size()), dbeta(x.size()), stats(2);
    const auto loss = [&] {
      host->norm_forward(kind, 1, hidden, 1e-5, view(x), view(gamma), view(beta), view(y), view(stats));
      double sum = 0;
      for (std::size_t i = 0; i < y.size(); ++i) sum += static_cast<double>(y[i]) * static_cast<double>(dy[i]);
      return sum;
    };
    loss();
    host->norm_backward(kind, 1, hidden, view(dy), view(x), view(gamma), view(stats), View<const float>{}, view(dx),
                        view(dgamma), view(dbeta));
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float kept = x[i];
      x[i] = kept + 1e-2F;
      const double above = loss();
      x[i] = kept - 1e-2F;
      const double below = loss();
      x[i] = kept;
      CHECK(dx[i] == doctest::Approx((above - below) / 2e-2).epsilon(0.01).scale(1.0));
    }
  }
}

TEST_CASE("bias gradients are column sums that accumulate") {
  std::mt19937 random(107);
  for (const int threads : {1, 2}) {
    TestHost host(threads);
    for (const auto& [rows, n] : {std::pair<std::int64_t, std::int64_t>{1, 5}, {7, 1}, {130, 515}, {1000, 64}}) {
      const auto dy = random_tensor<float>(random, rows * n);
      const auto half = random_tensor<bfloat16>(random, rows * n);
      auto db = random_tensor<float>(random, n);
      auto expected = doubles(db);
      for (std::int64_t i = 0; i < rows * n; ++i)
        expected[static_cast<std::size_t>(i % n)] +=
            static_cast<double>(dy[static_cast<std::size_t>(i)]) +
            static_cast<double>(static_cast<float>(half[static_cast<std::size_t>(i)]));
      host->bias_gradient(rows, n, view(dy), view(db));
      host->bias_gradient(rows, n, view(half), view(db));
      CHECK(error_of(db, expected) < 5e-6);
    }
  }
}

TEST_CASE("column sums of rows that exceed the workspace are refused with the numbers") {
  TestHost host(1);
  const std::int64_t n = device::Host::workspace_bytes_per_thread / 4 + 1;
  const std::vector<float> dy(static_cast<std::size_t>(n));
  std::vector<float> db(static_cast<std::size_t>(n));
  CHECK_THROWS_AS(host->bias_gradient(1, n, view(dy), view(db)), DeviceFailure);
}
