// Products of small matrices that lie in a core's caches: the inner loops of attention.
//
//   c (rows, columns) = [scale (rows) *] c + a (rows, depth) * b (depth, columns)
//
// Rows come in groups of four and columns in vectors: four rows of up to four vectors of c stay in registers while
// depth runs. All tiles are float and padded: rows to a multiple of 4, columns to a multiple of 16.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/device/host/isa.hpp>
#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::host {

inline constexpr std::int64_t tile_rows = 4;      ///< rows of a tile come in multiples of this
inline constexpr std::int64_t tile_columns = 16;  ///< columns likewise

namespace detail {

typedef float Vector16 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float Vector32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float Vector64 __attribute__((vector_size(64), aligned(4), may_alias));

template <Isa isa>
struct VectorOf {
  using type = Vector16;
};
template <>
struct VectorOf<Isa::avx2> {
  using type = Vector32;
};
template <>
struct VectorOf<Isa::avx512> {
  using type = Vector64;
};

/// What c is before a product is added to it.
enum class Start : std::uint8_t { zero, keep, scale };

/// Four rows of `vectors` vectors. Element (r, p) of a is a[r * row_step + p * depth_step].
template <class V, int vectors>
GALVATRON_INLINE void multiply_group(std::int64_t depth, const float* a, std::int64_t row_step, std::int64_t depth_step,
                                     const float* b, std::int64_t b_stride, Start start, const float* scale, float* c,
                                     std::int64_t c_stride) {
  constexpr int rows = static_cast<int>(tile_rows);
  constexpr int lanes = static_cast<int>(sizeof(V) / sizeof(float));
  V sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      if (start == Start::zero)
        sum[r][v] = V{};
      else
        sum[r][v] = *reinterpret_cast<const V*>(c + r * c_stride + v * lanes);
      if (start == Start::scale) sum[r][v] *= scale[r];
    }
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    V line[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) line[v] = *reinterpret_cast<const V*>(b + p * b_stride + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const float factor = a[r * row_step + p * depth_step];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] += line[v] * factor;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) *reinterpret_cast<V*>(c + r * c_stride + v * lanes) = sum[r][v];
  }
}

}  // namespace detail

using detail::Start;

/// Four rows and `columns` columns (a multiple of 16) of a product.
template <Isa isa>
GALVATRON_INLINE void multiply_rows(std::int64_t columns, std::int64_t depth, const float* a, std::int64_t row_step,
                                    std::int64_t depth_step, const float* b, std::int64_t b_stride, Start start,
                                    const float* scale, float* c, std::int64_t c_stride) {
  using V = typename detail::VectorOf<isa>::type;
  constexpr std::int64_t lanes = sizeof(V) / sizeof(float);
  // AVX-512 has 32 registers: 16 sums, 4 of b. The others have 16: 8 sums, 2 of b.
  constexpr int most = isa == Isa::avx512 ? 4 : 2;
  std::int64_t at = 0;
  for (; at + most * lanes <= columns; at += most * lanes)
    detail::multiply_group<V, most>(depth, a, row_step, depth_step, b + at, b_stride, start, scale, c + at, c_stride);
  if constexpr (most == 4) {
    if (at + 2 * lanes <= columns) {
      detail::multiply_group<V, 2>(depth, a, row_step, depth_step, b + at, b_stride, start, scale, c + at, c_stride);
      at += 2 * lanes;
    }
  }
  if (at < columns)
    detail::multiply_group<V, 1>(depth, a, row_step, depth_step, b + at, b_stride, start, scale, c + at, c_stride);
}

/// to (rows, columns) = factor * from; rows from `rows` to `padded_rows` and columns from `columns` to `to_stride`
/// become zero.
template <class T>
GALVATRON_INLINE void pack_rows(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const T* from,
                                std::int64_t from_stride, float factor, float* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < padded_rows; ++r) {
    float* line = to + r * to_stride;
    const std::int64_t valid = r < rows ? columns : 0;
#pragma omp simd
    for (std::int64_t i = 0; i < valid; ++i) line[i] = factor * kernels::get(from[r * from_stride + i]);
    for (std::int64_t i = valid; i < to_stride; ++i) line[i] = 0;
  }
}

/// to (columns, to_stride) = the transpose of from (rows, columns); columns of `to` from `rows` on become zero.
template <class T>
GALVATRON_INLINE void pack_transposed(std::int64_t rows, std::int64_t columns, const T* from, std::int64_t from_stride,
                                      float* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = 0; i < columns; ++i) to[i * to_stride + r] = kernels::get(from[r * from_stride + i]);
  if (rows < to_stride)
    for (std::int64_t i = 0; i < columns; ++i)
      for (std::int64_t r = rows; r < to_stride; ++r) to[i * to_stride + r] = 0;
}

/// to (rows, columns) = factor * from, rounded to T; added to what `to` holds when `add`.
template <class T>
GALVATRON_INLINE void unpack_rows(std::int64_t rows, std::int64_t columns, const float* from, std::int64_t from_stride,
                                  float factor, bool add, T* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* line = from + r * from_stride;
    T* out = to + r * to_stride;
    if (add) {
#pragma omp simd
      for (std::int64_t i = 0; i < columns; ++i) kernels::put(out[i], kernels::get(out[i]) + factor * line[i]);
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < columns; ++i) kernels::put(out[i], factor * line[i]);
    }
  }
}

}  // namespace galvatron::device::host
