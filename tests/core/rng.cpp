#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/crc32c.hpp>
#include <galvatron/core/rng.hpp>

using namespace galvatron;

namespace {
using Words = std::array<std::uint32_t, 4>;
// Known answers published with the Random123 paper (philox4x32, 10 rounds).
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U});
static_assert(philox4x32({~0U, ~0U, ~0U, ~0U}, {~0U, ~0U}) ==
              Words{0x408f276dU, 0x41c83b0eU, 0xa20bc7c6U, 0x6d5451fdU});
static_assert(philox4x32({0x243f6a88U, 0x85a308d3U, 0x13198a2eU, 0x03707344U}, {0xa4093822U, 0x299f31d0U}) ==
              Words{0xd16cfe09U, 0x94fdccebU, 0x5001e420U, 0x24126ea1U});
static_assert(uniform_of(0) == 0.0F && uniform_of(~0U) < 1.0F);
}  // namespace

TEST_CASE("a number depends on seed, stream and index, upper halves included") {
  const std::uint32_t base = bits_at(1, 2, 3);
  CHECK(base == bits_at(1, 2, 3));
  const std::uint64_t high = std::uint64_t{1} << 40;
  for (const std::uint32_t other : {bits_at(1 + high, 2, 3), bits_at(1, 2 + high, 3), bits_at(1, 2, 3 + high),
                                    bits_at(2, 2, 3), bits_at(1, 3, 3), bits_at(1, 2, 4)})
    CHECK(other != base);
}

TEST_CASE("uniform numbers have the moments of the uniform distribution") {
  constexpr int n = 1 << 16;
  double sum = 0, squares = 0;
  std::array<int, 16> histogram{};
  for (int i = 0; i < n; ++i) {
    const float u = uniform_of(bits_at(7, 0, static_cast<std::uint64_t>(i)));
    REQUIRE(u >= 0.0F);
    REQUIRE(u < 1.0F);
    sum += u;
    squares += double{u} * u;
    ++histogram[static_cast<std::size_t>(u * 16)];
  }
  CHECK(sum / n == doctest::Approx(0.5).epsilon(0.01));
  CHECK(squares / n == doctest::Approx(1.0 / 3).epsilon(0.01));
  double chi = 0;
  for (const int count : histogram) chi += std::pow(count - n / 16.0, 2) / (n / 16.0);
  CHECK(chi < 37.7);  // 15 degrees of freedom, 1 in 1000
}

TEST_CASE("normal numbers have the moments of the normal distribution and neighbours do not correlate") {
  constexpr int n = 1 << 16;
  double sum = 0, squares = 0, fourth = 0, lagged = 0;
  float last = 0;
  for (int i = 0; i < n; ++i) {
    const float z = normal_at(11, 5, static_cast<std::uint64_t>(i));
    REQUIRE(std::abs(z) < 5.8F);
    sum += z;
    squares += double{z} * z;
    fourth += std::pow(double{z}, 4);
    lagged += double{z} * last;
    last = z;
  }
  CHECK(std::abs(sum / n) < 0.015);
  CHECK(squares / n == doctest::Approx(1).epsilon(0.02));
  CHECK(fourth / n == doctest::Approx(3).epsilon(0.05));
  CHECK(std::abs(lagged / n) < 0.015);
}

TEST_CASE("the extreme words give finite normal numbers") {
  for (const std::uint32_t a : {0U, ~0U})
    for (const std::uint32_t b : {0U, ~0U})
      for (const float z : normal_pair(a, b)) CHECK(std::isfinite(z));
}

TEST_CASE("every angle has a cosine and a sine of known bits") {
  std::vector<CosineAndSine> all(std::size_t{1} << 24);
  double worst = 0;
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    all[i] = normal_direction(i << 8);
    if (i % 64 != 0) continue;
    const double angle = 6.28318530717958648F * uniform_of(i << 8);
    worst = std::max({worst, std::abs(all[i].cosine - std::cos(angle)), std::abs(all[i].sine - std::sin(angle))});
  }
  CHECK(worst < 0x1.2p-25);
  // Of std::cos and std::sin of glibc 2.36, with which the numbers were once made.
  CHECK(crc32c(std::as_bytes(std::span(all))) == 0x8F8E9F99U);
}

TEST_CASE("a filled vector equals the numbers one by one, wherever it starts and ends") {
  for (std::uint64_t first : {0ULL, 1ULL, 2ULL, 3ULL, 1001ULL, (1ULL << 34) - 2})
    for (std::int64_t count : {0, 1, 2, 3, 4, 5, 7, 8, 33, 256, 519}) {
      std::vector<float> v(static_cast<std::size_t>(count) + 1, -9.0F);
      fill_normal({v.data(), count}, 42, 3, first, 0.02F);
      for (std::int64_t i = 0; i < count; ++i)
        CHECK(v[static_cast<std::size_t>(i)] == 0.02F * normal_at(42, 3, first + static_cast<std::uint64_t>(i)));
      CHECK(v.back() == -9.0F);
    }
}
