// Products of small matrices that lie in a core's caches: the inner loops of attention.
//
//   c (rows, columns) = [scale (rows) *] c + a (rows, depth) * b (depth, columns)
//
// Rows come in groups of six and columns in vectors: six rows of up to four vectors of c stay in registers while depth
// runs. Tiles are padded: rows to a multiple of 6, columns to a multiple of 16. c is float; a and b are float, or pairs
// of bfloat16 that are neighbours along the depth: AVX512-BF16 multiplies as many pairs at once as AVX-512 floats.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/host/loops.hpp>

namespace galvatron::device::host {

inline constexpr std::int64_t tile_rows = 6;      ///< rows of a tile come in multiples of this
inline constexpr std::int64_t tile_columns = 16;  ///< columns likewise

/// Two numbers, the first of them in the lower bits.
enum class BfloatPair : std::uint32_t {};
/// Numbers in an element of a tile of a or b, along the depth.
template <class E>
inline constexpr std::int64_t numbers_in = std::is_same_v<E, BfloatPair> ? 2 : 1;
constexpr BfloatPair pair_of(std::uint16_t first, std::uint16_t second) {
  return BfloatPair{first | static_cast<std::uint32_t>(second) << 16};
}
/// Calls `f.operator()<isa>()` for tiles of E: with pairs for the instruction set that multiplies them.
template <class E>
void with_tiles(Isa isa, const auto& f) {
  if constexpr (std::is_same_v<E, BfloatPair>)
    with_isa<Isa::avx512_bf16>(f);
  else
    with_isa(isa, f);
}

/// sum += line * factor, the elements of a and b one by one; those of pairs are added up.
template <class S>
GALVATRON_INLINE void add_product(typename S::Float& sum, const typename S::Float& line, float factor) {
  sum += line * factor;
}
template <class S>
GALVATRON_INLINE void add_product(typename S::Float& sum, const typename S::Float& line, BfloatPair factor) {
#if GALVATRON_X86
  const typename S::Word all = typename S::Word{} + static_cast<std::uint32_t>(factor);
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(line), "v"(all));
#endif
}
/// What c is before a product is added to it.
enum class Start : std::uint8_t { zero, keep, scale };

/// Six rows of `vectors` vectors. Element (r, p) of a is a[r * row_step + p * depth_step].
/// @param depth  in elements of E
template <class S, int vectors, class E>
GALVATRON_INLINE void multiply_group(std::int64_t depth, const E* a, std::int64_t row_step, std::int64_t depth_step,
                                     const E* b, std::int64_t b_stride, Start start, const float* scale, float* c,
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
    for (int v = 0; v < vectors; ++v) std::memcpy(&line[v], b + p * b_stride + v * lanes, sizeof line[v]);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const E factor = a[r * row_step + p * depth_step];
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) add_product<S>(sum[r][v], line[v], factor);
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
template <Isa isa, class E>
GALVATRON_INLINE void multiply_rows(std::int64_t columns, std::int64_t depth, const E* a, std::int64_t row_step,
                                    std::int64_t depth_step, const E* b, std::int64_t b_stride, Start start,
                                    const float* scale, float* c, std::int64_t c_stride) {
  with_isa<isa>([&]<Isa same>() GALVATRON_INLINE_LAMBDA {
    using S = Vectors<same>;
    constexpr std::int64_t lanes = S::lanes;
    // AVX-512 has 32 registers: 24 sums, 4 of b. The others have 16: 12 sums, 2 of b.
    constexpr int most = same >= Isa::avx512 ? 4 : 2;
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

/// to (rows, columns / 2) = the pairs in the rows of from; what is padded is zero, as it is above.
GALVATRON_INLINE void pack_rows(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const bfloat16* from,
                                std::int64_t from_stride, BfloatPair* to, std::int64_t to_stride) {
  for (std::int64_t r = 0; r < padded_rows; ++r) {
    const std::int64_t valid = r < rows ? columns : 0;
    char* line = reinterpret_cast<char*>(to + r * to_stride);
    if (valid > 0) std::memcpy(line, from + r * from_stride, static_cast<std::size_t>(2 * valid));
    std::memset(line + 2 * valid, 0, static_cast<std::size_t>(4 * to_stride - 2 * valid));
  }
}
/// to (rows / 2, columns) = pairs of neighbours in the columns of from; what is padded is zero, as it is above.
GALVATRON_INLINE void pack_row_pairs(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns,
                                     const bfloat16* from, std::int64_t from_stride, BfloatPair* to,
                                     std::int64_t to_stride) {
  for (std::int64_t r = 0; r < padded_rows; r += 2) {
    BfloatPair* line = to + r / 2 * to_stride;
    const bfloat16* first = from + r * from_stride;
    const bfloat16* second = first + from_stride;
    const std::int64_t valid = r < rows ? columns : 0;
    if (r + 1 < rows) {
#pragma omp simd
      for (std::int64_t i = 0; i < valid; ++i) line[i] = pair_of(first[i].bits, second[i].bits);
    } else {
      for (std::int64_t i = 0; i < valid; ++i) line[i] = pair_of(first[i].bits, 0);
    }
    for (std::int64_t i = valid; i < to_stride; ++i) line[i] = BfloatPair{};
  }
}

/// Elements of a row of numbers from its element `at` on.
template <class T>
GALVATRON_INLINE float element_of(const T* row, std::int64_t at, std::int64_t /*columns*/, const float* /*tile*/) {
  return kernels::get(row[at]);
}
GALVATRON_INLINE BfloatPair element_of(const bfloat16* row, std::int64_t at, std::int64_t columns,
                                       const BfloatPair* /*tile*/) {
  return pair_of(row[2 * at].bits, 2 * at + 1 < columns ? row[2 * at + 1].bits : std::uint16_t{0});
}
/// Four of them, or their bits.
template <class T>
GALVATRON_INLINE void four_of(const T* row, std::int64_t at, const float* /*tile*/,
                              Vectors<Isa::portable>::Float& four) {
  const T* x = row + at;
  four = Vectors<Isa::portable>::Float{kernels::get(x[0]), kernels::get(x[1]), kernels::get(x[2]), kernels::get(x[3])};
}
GALVATRON_INLINE void four_of(const bfloat16* row, std::int64_t at, const BfloatPair* /*tile*/,
                              Vectors<Isa::portable>::Float& four) {
  std::memcpy(&four, row + 2 * at, sizeof four);
}

/// to (columns, padded_rows) = the transpose of from (rows, columns), of pairs (columns / 2, padded_rows); columns of
/// `to` from `rows` on become zero.
template <class T, class E>
GALVATRON_INLINE void pack_transposed(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const T* from,
                                      std::int64_t from_stride, E* to, std::int64_t to_stride) {
  using V = Vectors<Isa::portable>::Float;
  const std::int64_t elements = divide_up(columns, numbers_in<E>);
  const std::int64_t whole_rows = rows / 4 * 4;
  const std::int64_t whole_elements = columns / numbers_in<E> / 4 * 4;
  for (std::int64_t r = 0; r < whole_rows; r += 4) {
    const T* line = from + r * from_stride;
    for (std::int64_t i = 0; i < whole_elements; i += 4) {
      V in[4];
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) four_of(line + k * from_stride, i, to, in[k]);
      const V a = __builtin_shufflevector(in[0], in[1], 0, 4, 1, 5);
      const V b = __builtin_shufflevector(in[2], in[3], 0, 4, 1, 5);
      const V c = __builtin_shufflevector(in[0], in[1], 2, 6, 3, 7);
      const V d = __builtin_shufflevector(in[2], in[3], 2, 6, 3, 7);
      const V out[4] = {__builtin_shufflevector(a, b, 0, 1, 4, 5), __builtin_shufflevector(a, b, 2, 3, 6, 7),
                        __builtin_shufflevector(c, d, 0, 1, 4, 5), __builtin_shufflevector(c, d, 2, 3, 6, 7)};
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) std::memcpy(to + (i + k) * to_stride + r, &out[k], sizeof out[k]);
    }
  }
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t i = r < whole_rows ? whole_elements : 0; i < elements; ++i)
      to[i * to_stride + r] = element_of(from + r * from_stride, i, columns, to);
  for (std::int64_t i = 0; rows < padded_rows && i < elements; ++i)
    for (std::int64_t r = rows; r < padded_rows; ++r) to[i * to_stride + r] = E{};
}

/// The bits of floats that are rounded to bfloat16.
template <class S>
GALVATRON_INLINE void round_lanes(const float* from, typename S::Short& bits) {
#if GALVATRON_X86
  const typename S::Float x = vector_at<S>(from);
  asm("vcvtneps2bf16 %1, %0" : "=v"(bits) : "v"(x));
#endif
}
/// to (columns / 2) = the rounded pairs of a row.
template <class S>
GALVATRON_INLINE void round_row(std::int64_t columns, const float* from, BfloatPair* to) {
  for (std::int64_t i = 0; i < columns; i += S::lanes) {
    typename S::Short bits;
    round_lanes<S>(from + i, bits);
    std::memcpy(to + i / 2, &bits, sizeof bits);
  }
}
/// to (columns) = the rounded pairs of two rows.
template <class S>
GALVATRON_INLINE void round_row_pair(std::int64_t columns, const float* first, const float* second, BfloatPair* to) {
  for (std::int64_t i = 0; i < columns; i += S::lanes) {
    typename S::Short low;
    typename S::Short high;
    round_lanes<S>(first + i, low);
    round_lanes<S>(second + i, high);
    const typename S::Word both =
        __builtin_convertvector(low, typename S::Word) | __builtin_convertvector(high, typename S::Word) << 16;
    std::memcpy(to + i, &both, sizeof both);
  }
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
