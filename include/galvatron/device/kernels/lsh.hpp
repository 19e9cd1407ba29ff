// Locality-sensitive hashing of rows with cross-polytopes (Andoni, Indyk, Laarhoven, Razenshteyn and Schmidt,
// "Practical and Optimal LSH for Angular Distance", NeurIPS 2015): a row x is rotated, v = x R, and its code is the
// vertex
// +-e_i that is nearest to v. Rows of a small angle have equal codes. The sign belongs to the code: x and -x differ.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// H hashes of p numbers each: a row has one of (2 p)^H tuples of codes.
struct CrossPolytope {
  std::int64_t hashes = 6;  ///< H
  std::int64_t width = 4;   ///< p

  /// Of the rotated rows.
  [[nodiscard]] constexpr std::int64_t columns() const { return hashes * width; }
  /// The vertex nearest to v (p): i for +e_i, p + i for -e_i; of several the lowest number. NaNs are far from all.
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE std::int32_t code(const float* v) const {
    float most = -std::numeric_limits<float>::infinity();
    float least = std::numeric_limits<float>::infinity();
    for (std::int64_t i = 0; i < width; ++i) {
      most = v[i] > most ? v[i] : most;
      least = v[i] < least ? v[i] : least;
    }
    const bool is_negative = -least > most;
    const float nearest = is_negative ? least : most;
    for (std::int64_t i = 0; i < width; ++i)
      if (v[i] == nearest) return static_cast<std::int32_t>(is_negative ? width + i : i);
    return 0;
  }
  /// Where a search for a tuple of codes (H) begins in a table.
  [[nodiscard]] GALVATRON_HD std::uint32_t mixed(const std::int32_t* codes) const {
    std::uint32_t h = 0x9E3779B9U;
    for (std::int64_t i = 0; i < hashes; ++i) {
      h = (h ^ static_cast<std::uint32_t>(codes[i])) * 0x85EBCA6BU;
      h ^= h >> 15U;
    }
    return h;
  }
  [[nodiscard]] GALVATRON_HD bool same(const std::int32_t* a, const std::int32_t* b) const {
    for (std::int64_t i = 0; i < hashes; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

  // Rotations by signs and Hadamard transforms: rounds of x -> transform(signs * x), of rows with zeros behind them.
  static constexpr int rounds = 3;
  /// The width of rows of `n` with those zeros: a power of two. At least p for a hash.
  static constexpr std::int64_t padded(std::int64_t n) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
  }
};

/// The step of a Hadamard transform that is not scaled, on elements that are a power of two apart.
GALVATRON_HD GALVATRON_INLINE void butterfly(float& low, float& high) {
  const float sum = low + high;
  high = low - high;
  low = sum;
}

}  // namespace galvatron::device::kernels
