// Number formats of tensors.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace galvatron {

/// bfloat16: the upper half of an IEEE binary32. Storage only; arithmetic happens in float.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  /// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
  constexpr explicit bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    if ((u & 0x7fffffffU) > 0x7f800000U)
      bits = static_cast<std::uint16_t>((u >> 16) | 0x40U);
    else
      bits = static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
  constexpr operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

/// The compute format of a training run; masters and gradients are always binary32. With fp8, activations and working
/// parameters are bfloat16, and products of blocks have 8-bit operands (cost/product_8bit.hpp). Of an optimizer's
/// moments fp32 or bf16 is the format in which they are kept.
enum class Precision : std::uint8_t { fp32, bf16, fp8 };
inline constexpr int precisions = static_cast<int>(Precision::fp8) + 1;

constexpr const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::bf16:
      return "bf16";
    case Precision::fp8:
      return "fp8";
  }
  return "?";
}
/// The format of activations and working parameters.
constexpr Precision element_format(Precision precision) {
  return precision == Precision::fp32 ? Precision::fp32 : Precision::bf16;
}
/// Bytes of one activation or working parameter.
constexpr std::int64_t element_bytes(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }

template <class T>
inline constexpr Precision precision_of = std::is_same_v<T, float> ? Precision::fp32 : Precision::bf16;

}  // namespace galvatron
