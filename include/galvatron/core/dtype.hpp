// Number formats of tensors.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
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
inline constexpr std::array precisions{Precision::fp32, Precision::bf16, Precision::fp8};

constexpr const char* name_of(Precision precision) {
  return precision == Precision::fp32 ? "fp32" : precision == Precision::bf16 ? "bf16" : "fp8";
}
/// What has a scale of its own among the 8-bit operands of precision fp8, and from which magnitudes
/// (docs/precision.md, "Recipes").
enum class Fp8Recipe : std::uint8_t {
  tensorwise,  ///< a tensor, from its own: this library's runtime
  delayed,     ///< a tensor, from those of earlier steps
  rowwise,     ///< a row along the sum, from its own
  blockwise,   ///< 128 elements along the sum of activations and gradients, 128 x 128 of weights
  mxfp8,       ///< 32 elements along the sum: powers of two
};
inline constexpr std::array fp8_recipes{Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::rowwise,
                                        Fp8Recipe::blockwise, Fp8Recipe::mxfp8};
constexpr const char* name_of(Fp8Recipe recipe) {
  return std::array{"tensorwise", "delayed", "rowwise", "blockwise", "mxfp8"}[static_cast<std::size_t>(recipe)];
}

/// The format of activations and working parameters.
constexpr Precision element_format(Precision precision) {
  return precision == Precision::fp32 ? Precision::fp32 : Precision::bf16;
}
/// Bytes of one activation or working parameter.
constexpr std::int64_t element_bytes(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }

template <class T>
inline constexpr Precision precision_of = std::is_same_v<T, float> ? Precision::fp32 : Precision::bf16;

/// 8-bit floating-point numbers of the Open Compute Project ("OCP 8-bit Floating Point Specification", revision 1.0).
/// Storage only: every value is a bfloat16 and a float too. A sign, `exponent_bits` and `mantissa_bits`. With
/// `infinities` the highest exponent is that of infinity and NaN as in IEEE formats; without, only the highest code is
/// NaN, and there is no infinity.
template <int exponent_bits, int mantissa_bits, bool infinities>
struct Float8 {
  static_assert(exponent_bits + mantissa_bits == 7);
  static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
  /// Codes of the greatest number and of a NaN, without a sign.
  static constexpr std::uint32_t greatest_code = infinities ? (0x7fU >> mantissa_bits << mantissa_bits) - 1U : 0x7eU;
  static constexpr std::uint32_t nan_code = 0x7f;

  std::uint8_t bits = 0;

  Float8() = default;
  /// Rounds to nearest, ties to even; numbers beyond the greatest one, and infinities, become it. A NaN stays one.
  constexpr explicit Float8(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = u & 0x7fffffffU;
    constexpr int cut = 23 - mantissa_bits;
    constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << 23;
    // Below the smallest normal number all steps are one: the last place of this number is such a step.
    constexpr std::uint32_t magic = static_cast<std::uint32_t>(127 + 24 - bias - mantissa_bits) << 23;
    const bool subnormal = magnitude < rebias + (1U << 23);
    const float shifted = std::bit_cast<float>(subnormal ? magnitude : 0U) + std::bit_cast<float>(magic);
    const std::uint32_t small = std::bit_cast<std::uint32_t>(shifted) - magic;
    const std::uint32_t normal = (magnitude - rebias + ((1U << (cut - 1)) - 1U) + ((magnitude >> cut) & 1U)) >> cut;
    std::uint32_t code = subnormal ? small : normal;
    code = code < greatest_code ? code : greatest_code;
    code = magnitude > 0x7f800000U ? nan_code : code;
    bits = static_cast<std::uint8_t>((u >> 24 & 0x80U) | code);
  }
  constexpr operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
    const std::uint32_t code = bits & 0x7fU;
    constexpr std::uint32_t beyond = greatest_code + 1U;
    constexpr std::uint32_t step = static_cast<std::uint32_t>(127 + 1 - bias - mantissa_bits) << 23;
    std::uint32_t out = (code << (23 - mantissa_bits)) + (static_cast<std::uint32_t>(127 - bias) << 23);
    if (code < 1U << mantissa_bits)
      out = std::bit_cast<std::uint32_t>(static_cast<float>(code) * std::bit_cast<float>(step));
    if (code >= beyond) out = infinities && code == beyond ? 0x7f800000U : 0x7fc00000U;
    return std::bit_cast<float>(sign | out);
  }
};

/// 4 bits of exponent, 3 of mantissa: up to 448, for operands whose precision matters more than their range.
using float8_e4m3 = Float8<4, 3, false>;
/// 5 bits of exponent, 2 of mantissa: up to 57,344, for gradients.
using float8_e5m2 = Float8<5, 2, true>;

static_assert(static_cast<float>(float8_e4m3(1e9F)) == 448.0F && static_cast<float>(float8_e5m2(1e9F)) == 57344.0F);
static_assert(sizeof(float8_e4m3) == 1 && std::is_trivially_copyable_v<float8_e5m2>);

}  // namespace galvatron
