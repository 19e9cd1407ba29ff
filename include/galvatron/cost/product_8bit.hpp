// Products of 8-bit operands: which products can be such, what rounding takes, and the memory that one takes while it
// works.
//
// Precision fp8 rounds the operands of a block's linear layers to 8 bits right before each product, scaled by what
// their magnitudes allow; recipes differ in what has a scale. Layers, which have the recipe tensorwise, and formulas
// ask the same functions here.
//
// Sources: Transformer Engine, docs/features/low_precision_training: reads of a tensor (fp8_delayed_scaling.rst),
// blocks, scales and extents (fp8_blockwise_scaling.rst, mxfp8.rst); torchao, Float8LinearRecipeName: rows.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::cost {

/// Of which the extents of 8-bit operands are multiples: what tensor cores take, or a block of a scale.
constexpr std::int64_t extent_multiple(Fp8Recipe recipe) {
  return recipe == Fp8Recipe::blockwise ? 128 : recipe == Fp8Recipe::mxfp8 ? 32 : 16;
}
/// Rounding reads a tensor for its greatest magnitudes, and once more to round it. Earlier steps have told those of
/// `delayed`, and blocks are small enough to be read once.
constexpr bool reads_twice(Fp8Recipe recipe) { return recipe == Fp8Recipe::tensorwise || recipe == Fp8Recipe::rowwise; }

/// True when a product (m, k) x (k, n) can have 8-bit operands. Others keep their operands' own format.
constexpr bool fits_8bit(std::int64_t m, std::int64_t n, std::int64_t k, Fp8Recipe recipe = Fp8Recipe::tensorwise) {
  const std::int64_t multiple = extent_multiple(recipe);
  return m > 0 && n > 0 && k > 0 && m % multiple == 0 && n % multiple == 0 && k % multiple == 0;
}

/// Bytes of the scales of both operands of a product that fits.
/// @param weight  the operand (n, k) is a weight; else both are activations or gradients
constexpr std::int64_t scale_bytes(std::int64_t m, std::int64_t n, std::int64_t k, Fp8Recipe recipe, bool weight) {
  switch (recipe) {
    case Fp8Recipe::rowwise:
      return 4 * (m + n);
    case Fp8Recipe::blockwise:
      return 4 * (m * k / 128 + n * k / (weight ? 128 * 128 : 128));
    case Fp8Recipe::mxfp8:
      return (m + n) * k / 32;
    default:
      return 4 * 2;
  }
}

/// Bytes of both rounded operands and of their scales, all on boundaries; those of two scales are 16 bytes apart.
constexpr std::int64_t buffer_bytes_8bit(std::int64_t m, std::int64_t n, std::int64_t k,
                                         Fp8Recipe recipe = Fp8Recipe::tensorwise, bool weight = true) {
  const std::int64_t scales = scale_bytes(m, n, k, recipe, weight);
  return aligned_bytes(m * k) + aligned_bytes(n * k) + aligned_bytes(scales < 2 * 16 ? 2 * 16 : scales);
}

/// Bytes that rounding `elements` of a bfloat16 tensor moves beside its scales: read once or twice, written.
constexpr std::int64_t rounding_bytes(std::int64_t elements, Fp8Recipe recipe = Fp8Recipe::tensorwise) {
  return (reads_twice(recipe) ? 5 : 3) * elements;
}
/// Operations that it takes: one for the greatest magnitudes, one to round.
constexpr int rounding_passes(Fp8Recipe recipe) { return reads_twice(recipe) ? 2 : 1; }

}  // namespace galvatron::cost
