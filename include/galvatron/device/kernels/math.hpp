// exp as branch-free arithmetic, so that loops over it become vector instructions.
#pragma once

#include <bit>
#include <cstdint>

#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::kernels {

namespace detail {
/// Added and subtracted, rounds a float of small magnitude to an integer, which stands in the low bits meanwhile.
inline constexpr float rounder = 12582912.0F;  // 1.5 * 2^23

/// 2^n for an integer n in [-126, 127] that `rounder + n` carries.
GALVATRON_HD GALVATRON_INLINE float power_of_two(float rounder_plus_n) {
  const auto n = std::bit_cast<std::int32_t>(rounder_plus_n) - std::bit_cast<std::int32_t>(rounder);
  return std::bit_cast<float>((n + 127) << 23);
}
}  // namespace detail

/// 2^x with a relative error of 1.5e-7; 0 below -126 (so for -inf too), 2^127 above 127.
GALVATRON_HD GALVATRON_INLINE float exponential2(float x) {
  const float bounded = x > 127.0F ? 127.0F : (x < -126.0F ? -126.0F : x);
  const float t = bounded + detail::rounder;
  const float r = bounded - (t - detail::rounder);  // in [-1/2, 1/2]
  // The polynomial with p(0) = 1 of the least greatest relative error on that interval: 2.6e-9.
  float p = 1.559467755e-4F;
  p = p * r + 1.340664391e-3F;
  p = p * r + 9.617692975e-3F;
  p = p * r + 5.550310551e-2F;
  p = p * r + 2.402265278e-1F;
  p = p * r + 6.931472150e-1F;
  p = p * r + 1.0F;
  return x < -126.0F ? 0.0F : p * detail::power_of_two(t);
}

/// e^x with a relative error of 1.5e-7; 0 below -87.3 (so for -inf too), e^88 above 88.
GALVATRON_HD GALVATRON_INLINE float exponential(float x) {
  const float bounded = x > 88.0F ? 88.0F : (x < -87.3F ? -87.3F : x);
  const float t = bounded * 1.44269504F + detail::rounder;
  const float n = t - detail::rounder;
  // ln 2 in two parts, of which the first times n is exact.
  const float r = (bounded - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.406124039e-3F;
  p = p * r + 8.379011162e-3F;
  p = p * r + 4.166477730e-2F;
  p = p * r + 1.666636544e-1F;
  p = p * r + 5.000000434e-1F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return x < -87.3F ? 0.0F : p * detail::power_of_two(t);
}

/// The square root of a number that is not negative, with a relative error of 2e-7; no library call and no errno, which
/// would keep loops from becoming vector instructions.
GALVATRON_HD GALVATRON_INLINE float square_root(float x) {
  const float half = 0.5F * x;
  float y = std::bit_cast<float>(0x5f3759df - (std::bit_cast<std::int32_t>(x) >> 1));  // 1/sqrt(x) to 4 %
  y = y * (1.5F - (half * y) * y);
  y = y * (1.5F - (half * y) * y);
  y = y * (1.5F - (half * y) * y);
  return x * y;
}

/// 1 / (1 + e^-x).
GALVATRON_HD GALVATRON_INLINE float logistic(float x) { return 1.0F / (1.0F + exponential(-x)); }

}  // namespace galvatron::device::kernels
