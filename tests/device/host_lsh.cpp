// Hashing of rows and buckets of tokens on the host.
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "buckets.hpp"
#include "host_fixture.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::test;
using device::kernels::CrossPolytope;

// The first of the greatest among v and -v.
std::int32_t code_by_definition(const float* v, std::int64_t p) {
  std::vector<float> vertices(v, v + p);
  for (std::int64_t i = 0; i < p; ++i) vertices.push_back(-v[i]);
  return static_cast<std::int32_t>(std::max_element(vertices.begin(), vertices.end()) - vertices.begin());
}

template <class T>
void check_bucket_operations(std::mt19937& random, int threads, device::Isa isa, RoutedTokens routed,
                             std::int64_t width) {
  CAPTURE(routed.tokens);
  CAPTURE(routed.experts);
  CAPTURE(routed.active);
  CAPTURE(width);
  TestHost host(threads, isa);
  std::vector<std::int32_t> table(static_cast<std::size_t>(routed.table_places()), -7);
  RoutedTokens expected = routed;
  expected.number_by_definition();
  const device::TokenBuckets buckets = routed.buckets();
  host->number_buckets(routed.hashing, buckets, view(std::as_const(routed.codes)), view(table));
  CHECK(routed.bounds == expected.bounds);
  CHECK(routed.bucket == expected.bucket);
  CHECK(routed.members == expected.members);
  CHECK(routed.begins == expected.begins);

  const auto random_rows = [&](std::int64_t rows) { return random_tensor<T>(random, rows * width); };
  const std::vector<T> x = random_rows(routed.tokens);
  const std::vector<T> dy = random_rows(routed.tokens);
  const std::vector<T> e = random_rows(routed.count());
  const std::vector<T> dc = random_rows(routed.count());
  const std::vector<float> gains = random_tensor<float>(random, routed.experts);
  const auto in = [](const auto& values) { return view(values); };
  const std::vector<double> uniform(static_cast<std::size_t>(routed.experts), 1);

  std::vector<T> c(e.size());
  std::vector<T> s(e.size());
  {
    const BucketReference reference(routed, width, uniform);
    host->bucket_sums(buckets, width, true, View<const float>{}, in(x), view(c));
    CHECK(error_of(c, reference.sums(doubles(x), false, true)) < tolerance<T>);
    host->bucket_sums(buckets, width, false, in(routed.weights), in(dy), view(s));
    CHECK(error_of(s, reference.sums(doubles(dy), true, false)) < tolerance<T>);
    std::vector<float> d_gains(gains.size(), 0.5F);
    host->gain_backward(buckets, width, in(routed.weights), in(x), in(c), in(dy), view(d_gains));
    std::vector<double> wanted_gains = reference.gain_backward(doubles(x), doubles(c), doubles(dy));
    for (double& gain : wanted_gains) gain += 0.5;
    CHECK(error_of(d_gains, wanted_gains) < 1e-5);
    std::array<double, 4> squares{1, 2, 3, 4};
    host->bucket_distances(buckets, width, in(x), in(c), View<double>(squares.data(), 4));
    const auto wanted = reference.distances(doubles(x), doubles(c));
    CHECK(squares[0] == doctest::Approx(1 + wanted[0]).epsilon(1e-5));
    CHECK(squares[1] == doctest::Approx(2 + wanted[1]).epsilon(1e-5));
    CHECK(squares[2] == 3.0 + buckets.offsets[buckets.experts]);
    CHECK(squares[3] == 4.0 + buckets.bounds[buckets.experts]);
  }
  for (const device::ResidualGain& gain :
       {device::ResidualGain{1, {}}, device::ResidualGain{0, {}}, device::ResidualGain{-7, in(gains)}}) {
    CAPTURE(gain.of_all);
    const BucketReference reference(routed, width,
                                    gain.of_expert.empty()
                                        ? std::vector<double>(uniform.size(), static_cast<double>(gain.of_all))
                                        : doubles(gains));
    const std::vector<T> none;  // of what a gain of 0 does not read
    const bool reads = !gain.of_expert.empty() || gain.of_all != 0;
    const std::vector<T>& own = reads ? x : none;
    const std::vector<T>& means = reads ? c : none;
    std::vector<T> y(x.size());
    host->combine_buckets(buckets, routed.tokens, width, gain, in(routed.places), in(routed.weights), in(e), in(own),
                          in(means), view(y));
    CHECK(error_of(y, reference.combine(doubles(e), doubles(x), doubles(c))) < tolerance<T>);
    std::vector<float> d_weights(routed.places.size(), 7);
    host->bucket_weights_backward(buckets, routed.tokens, width, gain, in(routed.places), in(e), in(own), in(means),
                                  in(dy), view(d_weights));
    CHECK(error_of(d_weights, reference.weights_backward(doubles(e), doubles(x), doubles(c), doubles(dy))) < 4e-6);
    std::vector<T> dx(x.size());
    host->combine_buckets_backward(buckets, routed.tokens, width, gain, in(routed.places), in(routed.weights), in(dy),
                                   in(dc), in(s), view(dx));
    CHECK(error_of(dx, reference.combine_backward(doubles(dy), doubles(dc), doubles(s))) < 4 * tolerance<T>);
  }
}

}  // namespace

TEST_CASE("codes are the nearest vertices, the first of equal ones") {
  constexpr unsigned seed = 917;
  CAPTURE(seed);
  std::mt19937 random(seed);
  TestHost host(1);
  for (const std::int64_t p : {1, 2, 3, 8, 32}) {
    CAPTURE(p);
    const CrossPolytope hashing{3, p};
    constexpr std::int64_t rows = 200;
    std::vector<float> v;  // few values, so that many are equal
    for (std::int64_t i = 0; i < rows * 3 * p; ++i) v.push_back(static_cast<float>(static_cast<int>(random() % 7) - 3));
    std::fill_n(v.begin(), 3 * p, 0.0F);
    std::vector<std::int32_t> codes(static_cast<std::size_t>(rows * 3));
    host->hash_rows(hashing, rows, View<const float>(view(v)), view(codes));
    CHECK(codes[0] == 0);
    for (std::size_t i = 0; i < codes.size(); ++i)
      CHECK(codes[i] == code_by_definition(v.data() + static_cast<std::int64_t>(i) * p, p));
  }
  const CrossPolytope one{1, 4};
  for (const float nan_at : {0.0F, 1.0F, 3.0F}) {
    std::array<float, 4> v{1, -2, 3, -4};
    v[static_cast<std::size_t>(nan_at)] = NAN;
    CHECK(one.code(v.data()) == (nan_at == 3 ? 2 : 7));
  }
}

TEST_CASE("rotations by signs and Hadamard transforms are products with orthogonal matrices") {
  constexpr unsigned seed = 918;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const device::Isa isa : testable_isas())
    for (const std::int64_t width : {1, 5, 8, 33}) {
      CAPTURE(width);
      const std::int64_t padded = CrossPolytope::padded(width);
      const CrossPolytope hashing{2, padded};
      constexpr std::int64_t rows = 3;
      const auto x = random_tensor<float>(random, rows * width);
      std::vector<float> signs;
      for (std::int64_t i = 0; i < 2 * CrossPolytope::rounds * padded; ++i)
        signs.push_back(random() % 2 == 0 ? 1.0F : -1.0F);
      std::vector<double> expected;
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t h = 0; h < 2; ++h) {
          std::vector<double> y(static_cast<std::size_t>(padded));
          for (std::int64_t i = 0; i < width; ++i)
            y[static_cast<std::size_t>(i)] = static_cast<double>(x[static_cast<std::size_t>(row * width + i)]);
          for (int round = 0; round < CrossPolytope::rounds; ++round) {
            std::vector<double> next(y.size());
            for (std::size_t i = 0; i < y.size(); ++i)
              for (std::size_t j = 0; j < y.size(); ++j) {
                const auto sign = static_cast<double>(
                    signs[static_cast<std::size_t>((h * CrossPolytope::rounds + round) * padded) + j]);
                next[i] += (__builtin_popcountll(i & j) % 2 == 0 ? 1 : -1) * sign * y[j];
              }
            y = next;
          }
          expected.insert(expected.end(), y.begin(), y.end());
        }
      TestHost host(1, isa);
      std::vector<float> v(expected.size());
      host->rotate_by_signs(hashing, rows, width, View<const float>(view(x)), View<const float>(view(signs)), view(v));
      CHECK(error_of(v, expected) < 2e-6);
      // A hash of fewer numbers has the first of them.
      const CrossPolytope narrow{2, 1};
      std::vector<float> first(static_cast<std::size_t>(2 * rows));
      host->rotate_by_signs(narrow, rows, width, View<const float>(view(x)), View<const float>(view(signs)),
                            view(first));
      for (std::size_t i = 0; i < first.size(); ++i) CHECK(first[i] == v[i * static_cast<std::size_t>(padded)]);
    }
}

TEST_CASE("buckets, their means and what goes back to tokens equal their definitions") {
  constexpr unsigned seed = 919;
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (const device::Isa isa : testable_isas()) {
    CAPTURE(test::name_of(isa));
    check_bucket_operations<float>(random, 1, isa, RoutedTokens(random, 40, 4, 2, 2, 0), 24);
    check_bucket_operations<float>(random, 2, isa, RoutedTokens(random, 300, 5, 3, 3, 0.2), 130);
    check_bucket_operations<bfloat16>(random, 2, isa, RoutedTokens(random, 100, 3, 1, 2, 0.1), 70);
  }
  check_bucket_operations<float>(random, 1, device::best_isa(), RoutedTokens(random, 1, 1, 1, 1, 0), 1);
  check_bucket_operations<float>(random, 1, device::best_isa(), RoutedTokens(random, 7, 64, 2, 6, 0), 3);
  check_bucket_operations<float>(random, 1, device::best_isa(), RoutedTokens(random, 5, 2, 1, 1, 1), 3);
}

TEST_CASE("the number of threads does not change a bit of what buckets give") {
  constexpr unsigned seed = 920;
  CAPTURE(seed);
  std::mt19937 random(seed);
  RoutedTokens routed(random, 500, 4, 2, 2, 0);
  constexpr std::int64_t width = 100;
  const auto x = random_tensor<float>(random, routed.tokens * width);
  std::vector<std::vector<float>> results;
  std::vector<double> distances;
  for (const int threads : {1, 2, 3}) {
    TestHost host(threads);
    std::vector<std::int32_t> table(static_cast<std::size_t>(routed.table_places()));
    host->number_buckets(routed.hashing, routed.buckets(), view(std::as_const(routed.codes)), view(table));
    std::vector<float> c(static_cast<std::size_t>(routed.count() * width));
    host->bucket_sums(routed.buckets(), width, true, View<const float>{}, View<const float>(view(x)), view(c));
    std::array<double, 4> squares{};
    host->bucket_distances(routed.buckets(), width, View<const float>(view(x)), View<const float>(view(c)),
                           View<double>(squares.data(), 4));
    results.push_back(c);
    distances.push_back(squares[0]);
  }
  for (std::size_t i = 1; i < results.size(); ++i) {
    CHECK(same_bits(results[0], results[i]));
    CHECK(distances[0] == distances[i]);
  }
}
