// Products of 8-bit operands: which products can be such, and the memory that one takes while it works.
//
// Precision fp8 rounds the operands of a block's linear layers to 8 bits right before each product, scaled by what
// their own greatest magnitude allows. Layers and formulas ask the same two functions here.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>

namespace galvatron::cost {

/// True when a product (m, k) x (k, n) can have 8-bit operands: tensor cores take them in multiples of 16. Others keep
/// their operands' own format.
constexpr bool fits_8bit(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m > 0 && n > 0 && k > 0 && (m | n | k) % 16 == 0;
}

/// Bytes of both rounded operands and of their two scales, which lie on 16-byte boundaries.
constexpr std::int64_t buffer_bytes_8bit(std::int64_t m, std::int64_t n, std::int64_t k) {
  return aligned_bytes(m * k) + aligned_bytes(n * k) + aligned_bytes(2 * 16);
}

/// Bytes that rounding `elements` of a bfloat16 tensor moves: read for the greatest magnitude, read again, written.
constexpr std::int64_t rounding_bytes(std::int64_t elements) { return 5 * elements; }
/// Operations that it takes: one for the greatest magnitude, one to round.
inline constexpr int rounding_passes = 2;

}  // namespace galvatron::cost
