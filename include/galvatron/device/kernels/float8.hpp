// The arithmetic of rounding a tensor to 8 bits: its scale, and its elements.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// The bits of |x| as a float: they order as the magnitudes do, infinity and NaN above all numbers.
GALVATRON_HD GALVATRON_INLINE std::uint32_t magnitude_bits(const bfloat16& x) {
  return static_cast<std::uint32_t>(x.bits & 0x7fffU) << 16;
}

/// What a tensor is multiplied with before it is rounded, and after it.
struct Scaling {
  float scale, unscale;
};

/// The greatest power of two, at most 2^60, with which numbers up to that magnitude stay within format F; so scaling is
/// exact, and only the rounding errs. A tensor that is not finite gets NaN to be multiplied with after it: infinities,
/// which rounding would hide, come out as NaN.
template <class F>
GALVATRON_HD GALVATRON_INLINE Scaling scaling_of(std::uint32_t greatest_magnitude_bits) {
  constexpr std::uint32_t fraction = 0x7fffffU;
  F most;
  most.bits = static_cast<std::uint8_t>(F::greatest_code);
  const auto limit = std::bit_cast<std::uint32_t>(static_cast<float>(most));
  const std::uint32_t bits = greatest_magnitude_bits;
  if (bits >= 0x7f800000U) return {1.0F, std::bit_cast<float>(0x7fc00000U)};
  const int above = (bits & fraction) > (limit & fraction) ? 1 : 0;
  int exponent = static_cast<int>(limit >> 23) - static_cast<int>(bits >> 23) - above;
  exponent = exponent < 60 ? exponent : 60;
  return {std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23),
          std::bit_cast<float>(static_cast<std::uint32_t>(127 - exponent) << 23)};
}

template <class F>
GALVATRON_HD GALVATRON_INLINE std::uint8_t code_of(const bfloat16& x, float scale) {
  return F(get(x) * scale).bits;
}

/// The codes of four floats side by side, the first in the lowest byte.
template <class F>
GALVATRON_HD GALVATRON_INLINE std::uint32_t four_codes(const float (&x)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  std::uint16_t low = 0;
  std::uint16_t high = 0;
  if constexpr (std::is_same_v<F, float8_e4m3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
  } else {
    static_assert(std::is_same_v<F, float8_e5m2>);
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
  }
  return std::uint32_t{high} << 16 | low;
#else
  std::uint32_t four = 0;
  for (int j = 0; j < 4; ++j) four |= std::uint32_t{F(x[j]).bits} << (8 * j);
  return four;
#endif
}

}  // namespace galvatron::device::kernels
