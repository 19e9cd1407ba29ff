// Locality-sensitive hashing of rows with cross-polytopes (Andoni, Indyk, Laarhoven, Razenshteyn and Schmidt,
// "Practical and Optimal LSH for Angular Distance", NeurIPS 2015): a row x is rotated, v = x R, and its code is the
// vertex
// +-e_i that is nearest to v. Rows of a small angle have equal codes. The sign belongs to the code: x and -x differ.
#pragma once

#include <bit>
#include <cstdint>

#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// H hashes of p numbers each: a row has one of (2 p)^H tuples of codes.
struct CrossPolytope {
  std::int64_t hashes = 6;  ///< H
  std::int64_t width = 4;   ///< p

  /// Of the rotated rows.
  [[nodiscard]] constexpr std::int64_t columns() const { return hashes * width; }
  /// The vertex nearest to v (p): i for +e_i, p + i for -e_i; of several the lowest number. NaNs are far from all.
  [[nodiscard]] GALVATRON_HD std::int32_t code(const float* v) const {
    float most = v[0];
    float least = v[0];
    std::int64_t most_at = 0;
    std::int64_t least_at = 0;
    for (std::int64_t i = 1; i < width; ++i) {
      if (v[i] > most || most != most) {
        most = v[i];
        most_at = i;
      }
      if (v[i] < least || least != least) {
        least = v[i];
        least_at = i;
      }
    }
    return static_cast<std::int32_t>(-least > most ? width + least_at : most_at);
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

/// One butterfly of a Hadamard transform that is not scaled: pair i of those `distance` apart, a power of two.
GALVATRON_HD GALVATRON_INLINE void butterfly(float* x, std::int64_t i, std::int64_t distance) {
  const std::int64_t low = 2 * i - (i & (distance - 1));
  const float a = x[low];
  const float b = x[low + distance];
  x[low] = a + b;
  x[low + distance] = a - b;
}

}  // namespace galvatron::device::kernels
