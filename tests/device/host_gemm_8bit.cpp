// Products of 8-bit operands on the host, against the definition in doubles; scales; what is not finite.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/dtype.hpp>
#include <galvatron/cost/product_8bit.hpp>

#include "host_fixture.hpp"
#include "product_8bit.hpp"

using namespace galvatron;
using namespace galvatron::test;

TEST_CASE("products of 8-bit operands are those of the rounded tensors, in every layout") {
  constexpr unsigned seed = 17;
  CAPTURE(seed);
  std::mt19937 random(seed);
  TestHost host(2);
  for (const Product8bit s : {Product8bit{16, 16, 16}, {96, 128, 256}, {112, 144, 272}, {32, 48, 528}, {208, 16, 64}})
    for (const op::Kind kind : op::gemms)
      for (const auto& [accumulate, with_bias] : {std::pair{false, false}, {true, false}, {false, true}}) {
        CAPTURE(s.m);
        CAPTURE(s.n);
        CAPTURE(s.k);
        CAPTURE(static_cast<int>(kind));
        const auto a = random_tensor<bfloat16>(random, s.m * s.k, 3e-4F);
        const auto b = random_tensor<bfloat16>(random, s.n * s.k, 7.0F);
        const auto bias = random_tensor<bfloat16>(random, with_bias ? s.n : 0, 1e-3F);
        const auto check = [&]<class C>(double bound) {
          auto c = random_tensor<C>(random, s.m * s.n, 1e-3F);
          const auto expected = expected_8bit(kind, s, a, b, c, accumulate, bias);
          multiply_8bit(*host, kind, s, a, b, c, accumulate, bias);
          CHECK(error_of(c, expected) < bound);
        };
        check.operator()<float>(2e-6);
        check.operator()<bfloat16>(8e-3);
      }
}

TEST_CASE("an 8-bit product has the same bits on any number of threads, on every instruction set to rounding") {
  std::mt19937 random(4);
  const Product8bit s{208, 272, 320};
  const auto a = random_tensor<bfloat16>(random, s.m * s.k);
  const auto b = random_tensor<bfloat16>(random, s.n * s.k);
  for (const device::Isa isa : testable_isas()) {
    std::vector<float> alone(static_cast<std::size_t>(s.m * s.n));
    auto together = alone;
    TestHost one(1, isa);
    TestHost three(3, isa);
    multiply_8bit(*one, op::Kind::gemm_nn, s, a, b, alone, false, {});
    multiply_8bit(*three, op::Kind::gemm_nn, s, a, b, together, false, {});
    CHECK(same_bits(alone, together));
    CHECK(error_of(alone, expected_8bit(op::Kind::gemm_nn, s, a, b, alone, false, {})) < 2e-6);
  }
}

TEST_CASE("rounding to 8 bits errs by a few per cent of a product") {
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 1);
  const Product8bit s{128, 128, 512};
  std::vector<bfloat16> a(static_cast<std::size_t>(s.m * s.k));
  auto b = std::vector<bfloat16>(static_cast<std::size_t>(s.n * s.k));
  for (bfloat16& x : a) x = bfloat16(normal(random));
  for (bfloat16& x : b) x = bfloat16(normal(random));
  std::vector<float> c(static_cast<std::size_t>(s.m * s.n));
  TestHost host(1);
  const auto error = [&](op::Kind kind) {
    multiply_8bit(*host, kind, s, a, b, c, false, {});
    return relative_difference(c, product_of(kind, s, doubles(a), doubles(b)));
  };
  // A number of 3 mantissa bits errs by 2^-4 / sqrt(3) of itself at most in the mean square, one of 2 bits by twice
  // that; the errors of both operands add up in squares.
  const double e4m3 = 0.0625 / std::sqrt(3.0);
  const double forward = error(op::Kind::gemm_nt);
  const double backward = error(op::Kind::gemm_tn);
  MESSAGE("forward " << forward << ", backward " << backward);
  CHECK(forward < std::sqrt(2.0) * e4m3);
  CHECK(forward > 0.3 * e4m3);
  CHECK(backward < std::sqrt(5.0) * e4m3);
  CHECK(backward > forward);
}

TEST_CASE("scales are the greatest powers of two that keep a tensor within the format") {
  const auto check = [](auto format, float most) {
    using F = decltype(format);
    for (int exponent = -126; exponent < 127; ++exponent)
      for (const float fraction : {1.0F, 1.5F, 1.75F, 1.7578125F, 1.9921875F}) {
        int ignored = 0;
        const float greatest = std::ldexp(fraction, exponent);
        const auto scaling = device::kernels::scaling_of<F>(std::bit_cast<std::uint32_t>(greatest));
        CHECK(scaling.scale * scaling.unscale == 1.0F);
        CHECK(greatest * scaling.scale <= most);
        CHECK((2 * greatest * scaling.scale > most || scaling.scale == std::ldexp(1.0F, 60)));
        CHECK(std::frexp(scaling.scale, &ignored) == 0.5F);
      }
  };
  check(float8_e4m3{}, 448);
  check(float8_e5m2{}, 57344);
}

TEST_CASE("tensors of zeros give zeros; what is not finite gives NaN") {
  const Product8bit s{32, 16, 48};
  TestHost host(1);
  std::mt19937 random(2);
  for (const op::Kind kind : op::gemms) {
    auto a = random_tensor<bfloat16>(random, s.m * s.k);
    const std::vector<bfloat16> zeros(static_cast<std::size_t>(s.n * s.k), bfloat16(-0.0F));
    std::vector<float> c(static_cast<std::size_t>(s.m * s.n), 5.0F);
    multiply_8bit(*host, kind, s, a, zeros, c, false, {});
    CHECK(error_of(c, std::vector<double>(c.size(), 0.0)) == 0);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      a[77] = bfloat16(bad);
      std::fill(c.begin(), c.end(), 5.0F);
      multiply_8bit(*host, kind, s, a, zeros, c, false, {});
      CHECK(std::all_of(c.begin(), c.end(), [](float x) { return std::isnan(x); }));
    }
  }
}

TEST_CASE("extents of 8-bit products are multiples of 16") {
  CHECK(cost::fits_8bit(16, 32, 48));
  for (const auto& [m, n, k] : {std::tuple{8, 32, 48}, {16, 0, 16}, {16, 24, 16}, {16, 16, 100}})
    CHECK_FALSE(cost::fits_8bit(m, n, k));
  CHECK(cost::buffer_bytes_8bit(16, 32, 48) == 48 * 48 + 64);
}
