// exp as branch-free arithmetic, so that loops over it become vector instructions. A GPU has instructions of its own.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// Added to a float of small magnitude, rounds it to an integer n, and leaves n + 127 in the low bits of the sum.
inline constexpr float rounder = 12583039.0F;  // 1.5 * 2^23 + 127

/// 2^n from `rounder + n`, n in [-126, 127]; 0 for n = -127.
GALVATRON_HD GALVATRON_INLINE float power_of_two(float rounder_plus_n) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounder_plus_n) << 23);
}

/// p = 2^r for r in [-1/2, 1/2]: the polynomial with p(0) = 1 of the least greatest relative error there, 2.6e-9.
template <class V>
GALVATRON_HD GALVATRON_INLINE void exponential2_polynomial(const V& r, V& p) {
  p = 1.559467755e-4F * r + 1.340664391e-3F;
  p = p * r + 9.617692975e-3F;
  p = p * r + 5.550310551e-2F;
  p = p * r + 2.402265278e-1F;
  p = p * r + 6.931472150e-1F;
  p = p * r + 1.0F;
}

#if defined(__CUDA_ARCH__)
/// 2^min(x, most), 0 below -126; NaN stays NaN.
GALVATRON_HD GALVATRON_INLINE float bounded_power(float x, float most) {
  float power = 0;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(power) : "f"(x), "f"(most));
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(power));
  return power;
}
#endif

/// 2^x with a relative error of 1.5e-7; 0 below -126.5 (and for -inf), 2^127 above 127. On a GPU 2.4e-7; 0 below -126.
GALVATRON_HD GALVATRON_INLINE float exponential2(float x) {
#if defined(__CUDA_ARCH__)
  return bounded_power(x, 127.0F);
#else
  const float bounded = x > 127.0F ? 127.0F : (x < -127.0F ? -127.0F : x);
  const float t = bounded + rounder;
  float p = 0;
  exponential2_polynomial(bounded - (t - rounder), p);
  return p * power_of_two(t);
#endif
}

/// Integers as wide as a float or as the lanes of a vector of floats.
template <class V>
using Integers = std::conditional_t<std::is_same_v<V, float>, std::int32_t, decltype(V{} < V{})>;

GALVATRON_HD GALVATRON_INLINE float exponential(float x);

/// y = e^x; V is float, or a vector of floats. On a host x is at most 88.
template <class V>
GALVATRON_HD GALVATRON_INLINE void exponential(const V& x, V& y) {
#if defined(__CUDA_ARCH__)
  y = exponential(x);
#else
  const V bounded = x < -88.0F ? V{} - 88.0F : x;
  const V t = bounded * 1.44269504F + rounder;
  const V n = t - rounder;
  // ln 2 in two parts, of which the first times n is exact.
  const V r = (bounded - n * 0.693359375F) + n * 2.12194440e-4F;
  V p = 1.406124039e-3F * r + 8.379011162e-3F;
  p = p * r + 4.166477730e-2F;
  p = p * r + 1.666636544e-1F;
  p = p * r + 5.000000434e-1F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  y = p * __builtin_bit_cast(V, __builtin_bit_cast(Integers<V>, t) << 23);
#endif
}

/// e^x with a relative error of 1.5e-7; 0 below -87.7 (so for -inf too), e^88 above 88. On a GPU the error is 2.4e-7 +
/// 6e-8 |x|, from the rounding of x * log2(e): 1e-6 at 13, 6e-6 at the ends; and 0 comes below -87.3.
GALVATRON_HD GALVATRON_INLINE float exponential(float x) {
#if defined(__CUDA_ARCH__)
  return bounded_power(x * 1.44269504F, 126.955162F);
#else
  exponential<float>(x > 88.0F ? 88.0F : x, x);
  return x;
#endif
}

/// y = the square root of x >= 0 with a relative error of 2e-7, V a float or a vector; without a library call and
/// errno, which would keep loops from becoming vector instructions.
template <class V>
GALVATRON_HD GALVATRON_INLINE void square_root(const V& x, V& y) {
  const V half = 0.5F * x;
  const auto bits = __builtin_bit_cast(Integers<V>, x) & 0x7fffffff;  // with a sign the difference would overflow
  V inverse = __builtin_bit_cast(V, 0x5f3759df - (bits >> 1));        // 1/sqrt(x) to 4 %
  inverse = inverse * (1.5F - (half * inverse) * inverse);
  inverse = inverse * (1.5F - (half * inverse) * inverse);
  inverse = inverse * (1.5F - (half * inverse) * inverse);
  y = x * inverse;
}

/// y = 1 / (1 + e^-x); V is float, or a vector of floats. On a GPU with the relative error of e^-x there and 2.4e-7 of
/// its own; 0 below -87.3.
template <class V>
GALVATRON_HD GALVATRON_INLINE void logistic(const V& x, V& y) {
#if defined(__CUDA_ARCH__)
  float e = x * -1.44269504F;
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(e));  // infinity becomes 0
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0F + e));
#else
  V e = -x;
  e = e > 88.0F ? V{} + 88.0F : e;
  exponential<V>(e, e);
  y = 1.0F / (1.0F + e);
#endif
}

/// y = tanh(x) with a relative error of 3e-7, on a GPU 1e-6; V is float, or a vector of floats. Up to 0.55 a polynomial
/// of the least greatest relative error there, 1e-9; above, (1 - e^-2|x|) / (1 + e^-2|x|).
template <class V>
GALVATRON_HD GALVATRON_INLINE void hyperbolic_tangent(const V& x, V& y) {
  const V size = x < 0.0F ? -x : x;
  V e;
  exponential<V>(-2.0F * size, e);
  V far = (1.0F - e) / (1.0F + e);
  far = x < 0.0F ? -far : far;
  const V square = x * x;
  V near = -6.27423944e-3F * square + 2.107167894e-2F;
  near = near * square - 5.385230986e-2F;
  near = near * square + 1.333258614e-1F;
  near = near * square - 3.333331756e-1F;
  near = near * square * x + x;
  y = size < 0.55F ? near : far;
}

}  // namespace galvatron::device::kernels
