// 8-bit numbers: all codes, and rounding against a search of the nearest one.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include <doctest/doctest.h>

#include <galvatron/core/dtype.hpp>

using namespace galvatron;

namespace {

// A format as its specification words it, in doubles.
struct Worded {
  int exponent_bits, mantissa_bits;
  bool infinities;

  // The value of a code without its sign.
  [[nodiscard]] double value(int code) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    if (infinities && exponent == (1 << exponent_bits) - 1)
      return mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    if (!infinities && code == 0x7f) return std::nan("");
    const double fraction = std::ldexp(mantissa, -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  }
  // The code of the nearest number, of two the even one.
  [[nodiscard]] int nearest(double magnitude) const {
    int best = 0;
    magnitude = std::min(magnitude, 1e6);  // beyond every number, and near enough to tell distances apart
    for (int code = 0; code < 0x80 && std::isfinite(value(code)); ++code) {
      const double far = std::abs(value(code) - magnitude);
      const double best_far = std::abs(value(best) - magnitude);
      if (far < best_far || (far == best_far && code % 2 == 0)) best = code;
    }
    return best;
  }
};

template <class F>
void check_codes(const Worded& worded) {
  for (int code = 0; code < 256; ++code) {
    CAPTURE(code);
    F x;
    x.bits = static_cast<std::uint8_t>(code);
    const auto value = static_cast<float>(x);
    const double expected = (code < 128 ? 1 : -1) * worded.value(code & 0x7f);
    if (std::isnan(expected)) {
      CHECK(std::isnan(value));
      CHECK((F(value).bits & 0x7f) == F::nan_code);
      continue;
    }
    CHECK(static_cast<double>(value) == expected);
    CHECK(std::signbit(value) == (code >= 128));
    CHECK(static_cast<float>(bfloat16(value)) == value);
    if (std::isfinite(value))
      CHECK(F(value).bits == code);
    else
      CHECK((F(value).bits & 0x7f) == F::greatest_code);
  }
}

// Returns how many floats were rounded.
template <class F>
int check_rounding(const Worded& worded) {
  int checked = 0;
  const auto check = [&](float x) {
    ++checked;
    const int expected =
        (std::isinf(x) ? static_cast<int>(F::greatest_code) : worded.nearest(std::abs(static_cast<double>(x)))) |
        (std::signbit(x) ? 0x80 : 0);
    if (F(x).bits != expected) FAIL_CHECK("wrong code " << int{F(x).bits} << " of " << x << ", not " << expected);
  };
  // Every number, every middle of two, and their neighbours.
  for (int code = 0; std::isfinite(worded.value(code)); ++code)
    for (const double way : {0.0, 0.5}) {
      const double next = std::isfinite(worded.value(code + 1)) ? worded.value(code + 1) : 2 * worded.value(code);
      const auto x = static_cast<float>(worded.value(code) + way * (next - worded.value(code)));
      for (const float near : {x, std::nextafter(x, 1e30F), std::nextafter(x, -1e30F)}) {
        check(near);
        check(-near);
      }
    }
  std::mt19937 random(20250);
  for (int i = 0; i < 20000; ++i) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isnan(x)) check(x);
    check(std::ldexp(std::uniform_real_distribution<float>(-1, 1)(random), static_cast<int>(random() % 40) - 22));
  }
  for (const float x : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),
                        std::numeric_limits<float>::max(), std::numeric_limits<float>::infinity()}) {
    check(x);
    check(-x);
  }
  CHECK((F(std::numeric_limits<float>::quiet_NaN()).bits & 0x7f) == F::nan_code);
  CHECK((F(std::bit_cast<float>(0xff800001U)).bits & 0x7f) == F::nan_code);
  return checked;
}

}  // namespace

TEST_CASE("8-bit codes have the values of their format, which are bfloat16 too") {
  check_codes<float8_e4m3>({4, 3, false});
  check_codes<float8_e5m2>({5, 2, true});
}

TEST_CASE("Floats round to the nearest 8-bit number, ties to even, beyond the greatest to it") {
  CHECK(check_rounding<float8_e4m3>({4, 3, false}) > 30000);
  CHECK(check_rounding<float8_e5m2>({5, 2, true}) > 30000);
  static_assert(float8_e4m3(0.0625F).bits == 0x18 && float8_e4m3(-464.0F).bits == 0xfe);
  static_assert(float8_e5m2(1.5F).bits == 0x3e && float8_e5m2(7.7e-6F).bits == 0x01);
}
