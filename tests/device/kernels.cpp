#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>

#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/device/kernels/math.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/device/kernels/softmax.hpp>

using namespace galvatron;
using namespace galvatron::device;

TEST_CASE("the hyperbolic tangent is accurate to 3e-7 of its value, and its ends are 1") {
  double worst = 0;
  for (const float end : {1e-6F, 0.1F, 1.0F, 12.0F})
    for (int i = -20000; i <= 20000; ++i) {
      const float x = end * static_cast<float>(i) / 20000.0F;
      float y = 0;
      kernels::hyperbolic_tangent(x, y);
      if (x == 0)
        CHECK(y == 0.0F);
      else
        worst = std::max(worst, std::abs(static_cast<double>(y) / std::tanh(static_cast<double>(x)) - 1.0));
    }
  CAPTURE(worst);
  CHECK(worst < 3e-7);
  for (const float sign : {-1.0F, 1.0F})
    for (const float size : {20.0F, 1e30F, INFINITY}) {
      float y = 0;
      kernels::hyperbolic_tangent(sign * size, y);
      CHECK(y == sign);
    }
  float y = 0;
  kernels::hyperbolic_tangent(NAN, y);
  CHECK(std::isnan(y));
}

TEST_CASE("exponentials are accurate to 2e-7 over their range and end where they say") {
  double worst = 0;
  double worst2 = 0;
  for (int i = -870000; i <= 870000; i += 7) {
    const float x = static_cast<float>(i) * 1e-4F;
    const double exact = std::exp(static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(kernels::exponential(x)) / exact - 1.0));
    const double exact2 = std::exp2(static_cast<double>(x));
    worst2 = std::max(worst2, std::abs(static_cast<double>(kernels::exponential2(x)) / exact2 - 1.0));
  }
  CHECK(worst < 2e-7);
  CHECK(worst2 < 2e-7);
  CHECK(kernels::exponential(0.0F) == 1.0F);
  CHECK(kernels::exponential2(0.0F) == 1.0F);
  CHECK(kernels::exponential(-INFINITY) == 0.0F);
  CHECK(kernels::exponential2(-INFINITY) == 0.0F);
  CHECK(kernels::exponential(-1000.0F) == 0.0F);
  CHECK(std::isfinite(kernels::exponential(1000.0F)));
  CHECK(kernels::exponential2(INFINITY) == 0x1p127F);
  CHECK(std::isnan(kernels::exponential(NAN)));
  CHECK(std::isnan(kernels::exponential2(NAN)));
}

TEST_CASE("the square root is accurate to 3e-7 from the smallest normal number to the largest") {
  const auto square_root = [](float x) {
    kernels::square_root(x, x);
    return x;
  };
  double worst = 0;
  for (int e = -125; e < 127; ++e)
    for (int i = 0; i < 64; ++i) {
      const float x = std::ldexp(1.0F + static_cast<float>(i) / 64.0F, e);
      worst = std::max(worst, std::abs(static_cast<double>(square_root(x)) / std::sqrt(static_cast<double>(x)) - 1.0));
    }
  CHECK(worst < 3e-7);
  CHECK(square_root(0.0F) == 0.0F);
  CHECK(square_root(1e-42F) < 1e-20F);
  square_root(-1.5e30F);  // means nothing, and does not overflow
}

TEST_CASE("softmax statistics merge in any order, with empty pieces too") {
  kernels::SoftmaxStatistics a;
  a.maximum = 1.0F;
  a.sum = 2.0F;
  kernels::SoftmaxStatistics b;
  b.maximum = 3.0F;
  b.sum = 1.5F;
  b.target = 0.25F;
  const kernels::SoftmaxStatistics empty;
  auto ab = empty;
  ab.merge(a);
  ab.merge(b);
  auto ba = b;
  ba.merge(empty);
  ba.merge(a);
  CHECK(ab.maximum == 3.0F);
  CHECK(ab.sum == doctest::Approx(1.5 + 2.0 * std::exp(-2.0)));
  CHECK(ab.sum == doctest::Approx(ba.sum));
  CHECK(ab.target == 0.25F);
  CHECK(ba.target == 0.25F);
  CHECK(ab.log_sum() == doctest::Approx(std::log(2.0 * std::exp(1.0) + 1.5 * std::exp(3.0))));
}

TEST_CASE("rotary frequencies fall from one to nearly 1 / theta") {
  CHECK(kernels::rotary_frequency(10000.0, 0, 64) == 1.0);
  CHECK(kernels::rotary_frequency(10000.0, 16, 64) == doctest::Approx(0.01));
  CHECK(kernels::rotary_frequency(10000.0, 32, 64) == doctest::Approx(1e-4));
}

TEST_CASE("the cosine and sine of turns are those of doubles, however many turns") {
  constexpr unsigned seed = 71;
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  constexpr double pi = 3.14159265358979323846;
  double worst = 0;
  const auto check = [&](double turns) {
    const kernels::Turn turn = kernels::turn(turns);
    const double left = turns - std::rint(turns);
    worst = std::max({worst, std::abs(static_cast<double>(turn.cosine) - std::cos(2 * pi * left)),
                      std::abs(static_cast<double>(turn.sine) - std::sin(2 * pi * left))});
  };
  for (const double range : {1e-6, 0.2, 1.0, 1e3, 131072.0})
    for (int i = 0; i < 20000; ++i) check(range * uniform(random));
  for (int eighth = -16; eighth <= 16; ++eighth) check(eighth / 8.0);
  CHECK(worst < 1.2e-7);
  CHECK(kernels::turn(0.0).cosine == 1.0F);
  CHECK(kernels::turn(0.25).sine == 1.0F);
  CHECK(kernels::turn(-0.5).cosine == -1.0F);
}

TEST_CASE("stochastic rounding goes to one of the two neighbours, with the number as the mean") {
  const float low = 1.0F;
  const float high = 1.0078125F;  // the next bfloat16
  int up = 0;
  constexpr int quarter = 16384;
  for (std::uint32_t random = 0; random < 65536; ++random) {
    bfloat16 x;
    kernels::put_stochastically(x, low + 0.25F * (high - low), random | 0xabcd0000U);
    REQUIRE((static_cast<float>(x) == low || static_cast<float>(x) == high));
    up += static_cast<float>(x) == high ? 1 : 0;
  }
  CHECK(up == quarter);
  for (const float exact : {0.0F, -1.5F, INFINITY, -INFINITY}) {
    bfloat16 x;
    kernels::put_stochastically(x, exact, 0xffffU);
    CHECK(static_cast<float>(x) == exact);
  }
  bfloat16 x;
  kernels::put_stochastically(x, NAN, 0xffffU);
  CHECK(std::isnan(static_cast<float>(x)));
}
