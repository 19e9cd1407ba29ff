#include <doctest/doctest.h>

#include <galvatron/device/host/softmax.hpp>

#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;

/// Logits (rows, vocabulary) in `shards` shards of padded columns, through statistics, merge and gradient.
template <class T>
void check(std::mt19937& random, int threads, std::int64_t rows, std::int64_t vocabulary, std::int64_t shards,
           std::int64_t columns, float range, float cap = 0) {
  CAPTURE(threads);
  CAPTURE(rows);
  CAPTURE(vocabulary);
  CAPTURE(shards);
  CAPTURE(cap);
  TestHost host(threads);
  const float scale = 0.25F;
  std::vector<std::vector<T>> logits;
  for (std::int64_t s = 0; s < shards; ++s) logits.push_back(random_tensor<T>(random, rows * columns, range));
  auto targets = random_tokens(random, rows, static_cast<std::int32_t>(vocabulary));
  for (std::int64_t row = 2; row < rows; row += 4) targets[at(row)] = -1;  // has none
  const auto logit = [&](std::int64_t row, std::int64_t token) {
    const double x = static_cast<double>(logits[at(token / columns)][at(row * columns + token % columns)]);
    return cap > 0 ? static_cast<double>(cap) * std::tanh(x / static_cast<double>(cap)) : x;
  };
  const auto slope = [&](double capped) { return cap > 0 ? 1 - std::pow(capped / static_cast<double>(cap), 2) : 1.0; };
  const auto valid_of = [&](std::int64_t s) { return std::clamp<std::int64_t>(vocabulary - s * columns, 0, columns); };
  std::vector<double> expected_lse(at(rows));
  double expected_loss = 1.5;
  for (std::int64_t row = 0; row < rows; ++row) {
    double maximum = -INFINITY;
    for (std::int64_t t = 0; t < vocabulary; ++t) maximum = std::max(maximum, logit(row, t));
    double sum = 0;
    for (std::int64_t t = 0; t < vocabulary; ++t) sum += std::exp(logit(row, t) - maximum);
    expected_lse[at(row)] = maximum + std::log(sum);
    if (targets[at(row)] >= 0) expected_loss += expected_lse[at(row)] - logit(row, targets[at(row)]);
  }
  std::vector<float> stats(at(shards * rows * 3));
  for (std::int64_t s = 0; s < shards; ++s)
    host->softmax_statistics(rows, columns, valid_of(s), s * columns, view(logits[at(s)]), view(targets),
                             view(stats).slice(s * rows * 3, rows * 3), cap);
  std::vector<float> lse(at(rows));
  double loss = 1.5;
  host->softmax_merge(rows, shards, view(stats), view(lse), View<double>{&loss, 1});
  CHECK(error_of(lse, expected_lse) < 1e-6);
  CHECK(loss == doctest::Approx(expected_loss).epsilon(1e-6));
  for (std::int64_t s = 0; s < shards; ++s) {
    std::vector<double> expected(at(rows * columns), 0.0);
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t i = 0; i < valid_of(s) && targets[at(row)] >= 0; ++i) {
        const std::int64_t token = s * columns + i;
        expected[at(row * columns + i)] =
            static_cast<double>(scale) * slope(logit(row, token)) *
            (std::exp(logit(row, token) - expected_lse[at(row)]) - (token == targets[at(row)] ? 1.0 : 0.0));
      }
    host->softmax_backward(rows, columns, valid_of(s), s * columns, view(lse), view(targets), scale,
                           shards == 1 && cap == 0, view(logits[at(s)]), cap);
    double magnitude = 0;
    double difference = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      magnitude = std::max(magnitude, std::abs(expected[i]));
      difference = std::max(difference, std::abs(static_cast<double>(logits[at(s)][i]) - expected[i]));
    }
    CHECK(difference <= (std::is_same_v<T, float> ? 5e-6 : 5e-3) * static_cast<double>(scale));
  }
}

}  // namespace

TEST_CASE("cross-entropy over shards of the vocabulary equals that over the whole, with its gradient") {
  constexpr unsigned seed = 401;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const int threads : {1, 2}) {
    check<float>(random, threads, 3, 7, 1, 7, 4.0F);
    check<float>(random, threads, 17, 5003, 1, 5003, 8.0F);
    check<float>(random, threads, 9, 5003, 2, 2560, 8.0F);
    check<float>(random, threads, 5, 130, 4, 64, 30.0F);  // the third shard has two columns, the fourth none
    check<bfloat16>(random, threads, 9, 3001, 2, 1504, 8.0F);
  }
}

TEST_CASE("cross-entropy of soft-capped logits, with its gradient") {
  constexpr unsigned seed = 403;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const float cap : {1.0F, 5.0F, 30.0F}) {
    check<float>(random, 1, 3, 7, 1, 7, 4.0F, cap);
    check<float>(random, 2, 9, 5003, 2, 2560, 40.0F, cap);
    check<float>(random, 1, 5, 130, 4, 64, 90.0F, cap);
    check<bfloat16>(random, 2, 9, 3001, 2, 1504, 8.0F, cap);
  }
}

TEST_CASE("logits far apart neither overflow nor vanish") {
  TestHost host(1);
  std::vector<float> logits{-1e4F, 1e4F, 9.999e3F, -INFINITY};
  const std::vector<std::int32_t> targets{1};
  std::vector<float> stats(3);
  std::vector<float> lse(1);
  double loss = 0;
  host->softmax_statistics(1, 4, 4, 0, view(logits), view(targets), view(stats));
  host->softmax_merge(1, 1, view(stats), view(lse), View<double>{&loss, 1});
  CHECK(lse[0] == doctest::Approx(1e4 + std::log(1.0 + std::exp(-1.0))));
  CHECK(loss == doctest::Approx(std::log(1.0 + std::exp(-1.0))).epsilon(1e-2));
  host->softmax_backward(1, 4, 4, 0, view(lse), view(targets), 1.0F, false, view(logits));
  CHECK(logits[0] == 0.0F);
  CHECK(logits[3] == 0.0F);
  CHECK(std::isfinite(logits[1]));
}

TEST_CASE("balanced gradients of large logits that are near each other sum to zero") {
  constexpr unsigned seed = 402;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const std::int64_t n : {2, 6, 33, 96, 1000}) {
    CAPTURE(n);
    TestHost host(1);
    double worst[2] = {};
    for (const bool balanced : {false, true}) {
      std::vector<float> logits = random_tensor<float>(random, n * n, 0.05F);
      for (float& logit : logits) logit += 13.7F;
      std::vector<std::int32_t> targets(at(n));
      for (std::int64_t row = 0; row < n; ++row) targets[at(row)] = static_cast<std::int32_t>(row);
      std::vector<float> stats(at(3 * n)), lse(at(n));
      host->softmax_statistics(n, n, n, 0, view(logits), view(targets), view(stats));
      host->softmax_merge(n, 1, view(stats), view(lse), View<double>{});
      host->softmax_backward(n, n, n, 0, view(lse), view(targets), 1.0F, balanced, view(logits));
      for (std::int64_t row = 0; row < n; ++row) {
        double sum = 0;
        for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(logits[at(row * n + i)]);
        worst[balanced ? 1 : 0] = std::max(worst[balanced ? 1 : 0], std::abs(sum));
      }
    }
    CHECK(worst[1] < 2.4e-7);  // four roundings of a sum of about 1
    CHECK(worst[0] > 2 * worst[1]);
  }
}

TEST_CASE("a piece of a row that has nothing but -inf counts for nothing") {
  TestHost host(1);
  std::vector<float> logits(3000, -INFINITY);
  logits[2999] = 3.0F;
  const std::vector<std::int32_t> targets{2999};
  std::vector<float> stats(3);
  host->softmax_statistics(1, 3000, 3000, 0, view(logits), view(targets), view(stats));
  CHECK(stats == std::vector<float>{3.0F, 1.0F, 3.0F});
}

TEST_CASE("a row without a target has no loss, but numbers that are none do not go unseen") {
  TestHost host(1);
  const std::vector<std::int32_t> targets{-1};
  for (const float logit : {1.0F, INFINITY, NAN}) {
    CAPTURE(logit);
    std::vector<float> logits(3000, 0.5F);
    logits[7] = 2.0F;  // of an earlier piece than the number that may be none
    logits[2999] = logit;
    std::vector<float> stats(3);
    std::vector<float> lse(1);
    double loss = 0;
    host->softmax_statistics(1, 3000, 3000, 0, view(logits), view(targets), view(stats));
    host->softmax_merge(1, 1, view(stats), view(lse), View<double>{&loss, 1});
    if (std::isfinite(logit))
      CHECK(loss == 0.0);
    else
      CHECK_FALSE(std::isfinite(loss));
  }
}
