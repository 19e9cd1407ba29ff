// Products of small matrices that lie in a core's caches: the inner loops of attention.
//
//   c (rows, columns) = [scale (rows) *] c + a (rows, depth) * b (depth, columns)
//
// Rows come in groups of six and columns in vectors: six rows of up to four vectors of c stay in registers while depth
// runs. All tiles are float and padded: rows to a multiple of 6, columns to a multiple of 16.
#pragma once

#include <cstdint>

#include <galvatron/device/host/loops.hpp>

namespace galvatron::device::host {

inline constexpr std::int64_t tile_rows = 6;      ///< rows of a tile come in multiples of this
inline constexpr std::int64_t tile_columns = 16;  ///< columns likewise

/// What c is before a product is added to it.
enum class Start : std::uint8_t { zero, keep, scale };

/// Six rows of `vectors` vectors. Element (r, p) of a is a[r * row_step + p * depth_step].
template <class S, int vectors>
GALVATRON_INLINE void multiply_group(std::int64_t depth, const float* a, std::int64_t row_step, std::int64_t depth_step,
                                     const float* b, std::int64_t b_stride, Start start, const float* scale, float* c,
                                     std::int64_t c_stride) {
  constexpr int rows = static_cast<int>(tile_rows);
  using V = typename S::Float;
  constexpr std::int64_t lanes = S::lanes;
  V sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      if (start == Start::zero)
        sum[r][v] = V{};
      else
        sum[r][v] = vector_at<S>(c + r * c_stride + v * lanes);
      if (start == Start::scale) sum[r][v] *= scale[r];
    }
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    V line[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) line[v] = vector_at<S>(b + p * b_stride + v * lanes);
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
    for (int v = 0; v < vectors; ++v) vector_at<S>(c + r * c_stride + v * lanes) = sum[r][v];
  }
}

/// Six rows and `columns` columns (a multiple of 16) of a product. A function of its own for each instruction set,
/// because callers have many of them and the compiler's time counts too.
template <Isa isa>
GALVATRON_INLINE void multiply_rows(std::int64_t columns, std::int64_t depth, const float* a, std::int64_t row_step,
                                    std::int64_t depth_step, const float* b, std::int64_t b_stride, Start start,
                                    const float* scale, float* c, std::int64_t c_stride) {
  with_isa<isa>([&]<Isa same>() GALVATRON_INLINE_LAMBDA {
    using S = Vectors<same>;
    constexpr std::int64_t lanes = S::lanes;
    // AVX-512 has 32 registers: 24 sums, 4 of b. The others have 16: 12 sums, 2 of b.
    constexpr int most = same == Isa::avx512 ? 4 : 2;
    std::int64_t at = 0;
    for (; at + most * lanes <= columns; at += most * lanes)
      multiply_group<S, most>(depth, a, row_step, depth_step, b + at, b_stride, start, scale, c + at, c_stride);
    if constexpr (most == 4) {
      if (at + 2 * lanes <= columns) {
        multiply_group<S, 2>(depth, a, row_step, depth_step, b + at, b_stride, start, scale, c + at, c_stride);
        at += 2 * lanes;
      }
    }
    if (at < columns)
      multiply_group<S, 1>(depth, a, row_step, depth_step, b + at, b_stride, start, scale, c + at, c_stride);
  });
}

/// to (rows, columns) = factor * from; rows from `rows` to `padded_rows` and columns from `columns` to `to_stride`
/// become zero.
GALVATRON_INLINE void pack_rows(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const auto* from,
                                std::int64_t from_stride, float factor, float* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < padded_rows; ++r) {
    float* line = to + r * to_stride;
    const std::int64_t valid = r < rows ? columns : 0;
#pragma omp simd
    for (std::int64_t i = 0; i < valid; ++i) line[i] = factor * kernels::get(from[r * from_stride + i]);
    for (std::int64_t i = valid; i < to_stride; ++i) line[i] = 0;
  }
}

/// to (columns, padded_rows) = the transpose of from (rows, columns); columns of `to` from `rows` on become zero.
template <class T>
GALVATRON_INLINE void pack_transposed(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const T* from,
                                      std::int64_t from_stride, float* to, std::int64_t to_stride) {
  using V = Vectors<Isa::portable>::Float;
  const std::int64_t whole_rows = rows / 4 * 4;
  const std::int64_t whole_columns = columns / 4 * 4;
  for (std::int64_t r = 0; r < whole_rows; r += 4) {
    const T* line = from + r * from_stride;
    for (std::int64_t i = 0; i < whole_columns; i += 4) {
      V in[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const T* four = line + k * from_stride + i;
        in[k] = V{kernels::get(four[0]), kernels::get(four[1]), kernels::get(four[2]), kernels::get(four[3])};
      }
      const V a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const V b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const V c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const V d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      float* out = to + i * to_stride + r;
      *reinterpret_cast<Vectors<Isa::portable>::FloatAt*>(out) = __builtin_shufflevector(a, b, 0, 1, 4, 5);
      *reinterpret_cast<Vectors<Isa::portable>::FloatAt*>(out + to_stride) = __builtin_shufflevector(a, b, 2, 3, 6, 7);
      *reinterpret_cast<Vectors<Isa::portable>::FloatAt*>(out + 2 * to_stride) =
          __builtin_shufflevector(c, d, 0, 1, 4, 5);
      *reinterpret_cast<Vectors<Isa::portable>::FloatAt*>(out + 3 * to_stride) =
          __builtin_shufflevector(c, d, 2, 3, 6, 7);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = r < whole_rows ? whole_columns : 0; i < columns; ++i)
      to[i * to_stride + r] = kernels::get(from[r * from_stride + i]);
  for (std::int64_t i = 0; rows < padded_rows && i < columns; ++i)
    for (std::int64_t r = rows; r < padded_rows; ++r) to[i * to_stride + r] = 0;
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
