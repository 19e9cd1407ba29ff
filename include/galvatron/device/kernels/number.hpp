// The macros of the functors that host loops and CUDA kernels share, and elements in memory as floats.
#pragma once

#include <bit>
#include <cstdint>

#include <galvatron/core/dtype.hpp>

/// GALVATRON_HD marks a function that host and device may call, GALVATRON_INLINE an inline function that must take the
/// instruction set of its caller (device/host/loops.hpp). GALVATRON_HD_OF_EITHER is for templates that call functions
/// of their arguments, which may be those of the device alone.
#if defined(__CUDACC__)
#define GALVATRON_HD __host__ __device__
#define GALVATRON_HD_OF_EITHER _Pragma("nv_exec_check_disable") __host__ __device__
#define GALVATRON_INLINE __forceinline__
#else
#define GALVATRON_HD
#define GALVATRON_HD_OF_EITHER
#define GALVATRON_INLINE inline __attribute__((always_inline))
#endif

/// Goes behind the parameters of a lambda that must take the instruction set of its caller.
#define GALVATRON_INLINE_LAMBDA __attribute__((always_inline))

/// 1 where functions can be compiled for x86 instruction sets of their own.
#if defined(__x86_64__) && defined(__GNUC__)
#define GALVATRON_X86 1
#else
#define GALVATRON_X86 0
#endif

namespace galvatron::device::kernels {

GALVATRON_HD GALVATRON_INLINE float get(const float& x) { return x; }
GALVATRON_HD GALVATRON_INLINE float get(const bfloat16& x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16);
}

GALVATRON_HD GALVATRON_INLINE void put(float& x, float value) { x = value; }
/// Rounds as the constructor of bfloat16 does, without a branch; a GPU gives every NaN the same bits.
GALVATRON_HD GALVATRON_INLINE void put(bfloat16& x, float value) {
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(x.bits) : "f"(value));
#else
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const std::uint32_t quiet = (u >> 16) | 0x40U;
  x.bits = static_cast<std::uint16_t>((u & 0x7fffffffU) > 0x7f800000U ? quiet : rounded);
#endif
}

/// Two bfloat16 side by side, rounded the same way: the first in the low half.
GALVATRON_HD GALVATRON_INLINE std::uint32_t two_rounded(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t both = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
#else
  bfloat16 low, high;
  put(low, first);
  put(high, second);
  return std::uint32_t{high.bits} << 16 | low.bits;
#endif
}

/// Rounds to a neighbour at random, by the low 16 of these bits, so that the mean of many roundings is `value`.
GALVATRON_HD GALVATRON_INLINE void put_stochastically(bfloat16& x, float value, std::uint32_t random) {
  // Without a branch, into which compilers would move the making of random bits, anew for each element.
  const auto u = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t added = (u & 0x7f800000U) == 0x7f800000U ? 0 : random & 0xffffU;
  const std::uint32_t quiet = (u & 0x7fffffffU) > 0x7f800000U ? 0x40U : 0;
  x.bits = static_cast<std::uint16_t>((u + added) >> 16 | quiet);
}

}  // namespace galvatron::device::kernels
