// Matrix products of groups of rows: every expert's rows with its own matrix, in one launch. How many rows an expert
// has stands in the device's memory, so that a recorded launch is right for any.
//
// A block computes a tile of c. Operands come through shared memory in steps of the sum, of which the next one is on
// its way in registers while the block multiplies:
//
//            nt                        nn                        tn, of an expert
//   a   (rows, k)   along     a   (rows, k)   along     a   (rows, n)   across
//   b   (E, n, k)   along     b   (E, k, n)   across    b   (rows, k)   across
//   c   (rows, n)             c   (rows, n)             c   (E, n, k)
//
// Rows of an operand in memory go along the sum, or across it. bfloat16 is multiplied by tensor cores, float by
// multiplications and additions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron::device::cuda {

/// What of an operand is in a tile of c: `rows` of `extent` from `first` on, of a sum over `depth` elements. Rows of
/// memory have `extent` elements where they go across the sum, else `depth`.
template <class T>
struct GroupedOperand {
  const T* at;
  std::int64_t first, extent, depth;
  bool packed;
};

/// A step of an operand: (rows, depth) of it, which a thread has `packs` packs of.
template <class T, bool along, int rows, int depth, int threads>
struct OperandStep {
  static constexpr int size = Pack<T>::size;
  static constexpr int width = along ? depth : rows;  ///< elements of a row of memory
  static constexpr int packs = rows * depth / size / threads;
  static_assert(rows * depth % (size * threads) == 0);

  /// The step from element `from` of the sum on; 0 beyond the operand.
  GALVATRON_KERNEL static void load(auto& block, const GroupedOperand<T>& of, std::int64_t from, Pack<T> (&to)[packs]) {
    const auto places = [&](int p) {
      const int i = block.thread() + p * threads;
      const std::int64_t row = (along ? of.first : from) + i / (width / size);
      const std::int64_t column = (along ? from : of.first) + i % (width / size) * size;
      const std::int64_t all = along ? of.depth : of.extent;
      return RestOfRow<T>{of.at + row * all + column, row < (along ? of.extent : of.depth) ? all - column : 0};
    };
    load_packs(of.packed, places, to);
  }
};

/// Tiles of bfloat16: a warp has (64, 32) of c, in pieces as flash_tiles.hpp has them.
struct TensorCoreTiles {
  using Element = bfloat16;
  static constexpr int rows = 128, columns = 128, depth = 32;
  static constexpr int threads = 256;
  static constexpr int least_blocks = 2;
  static constexpr int adjacent = 2;  ///< columns of a result that a thread has side by side
  static constexpr int warp_rows = 64, warp_columns = 32;

  /// Operands as they are in memory; the padding keeps the eight rows that are read at once in different banks.
  template <bool along>
  static constexpr int stride = (along ? depth : rows) + 8;
  template <bool along>
  static constexpr int elements = stride<along> * (along ? rows : depth);
  using Sums = float[warp_rows / 16][warp_columns / 8][4];

  template <bool along, int packs>
  GALVATRON_KERNEL static void store(auto& block, const Pack<bfloat16> (&from)[packs], bfloat16* to) {
    constexpr int of_row = (along ? depth : rows) / Pack<bfloat16>::size;
    GALVATRON_UNROLL
    for (int p = 0; p < packs; ++p) {
      const int i = block.thread() + p * threads;
      from[p].store(to + i / of_row * stride<along> + i % of_row * Pack<bfloat16>::size);
    }
  }

  /// sums += a step of a, times one of b.
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void multiply(auto& block, const bfloat16* a, const bfloat16* b, Sums& sums) {
    const int lane = block.thread() % warp_threads;
    const int first_row = block.thread() / warp_threads / (columns / warp_columns) * warp_rows;
    const int first_column = block.thread() / warp_threads % (columns / warp_columns) * warp_columns;
    // A lane names a row of eight elements: of matrix lane / 8, row lane % 8.
    const int low = lane % 8 + lane / 8 % 2 * 8;  // in the direction in which matrices 0 and 1 follow each other
    const int high = lane / 16 * 8;
    const int other = lane % 8 + lane / 16 * 8;
    const int second = lane / 8 % 2 * 8;
    GALVATRON_UNROLL
    for (int k = 0; k < depth; k += 16) {
      std::uint32_t right[warp_columns / 16][4];
      GALVATRON_UNROLL
      for (int j = 0; j < warp_columns / 16; ++j) {
        const int column = first_column + 16 * j;
        if constexpr (b_along)
          block.load_matrices(right[j], b + (column + other) * stride<true> + k + second);
        else
          block.load_transposed(right[j], b + (k + low) * stride<false> + column + high);
      }
      GALVATRON_UNROLL
      for (int i = 0; i < warp_rows / 16; ++i) {
        const int row = first_row + 16 * i;
        std::uint32_t left[4];
        if constexpr (a_along)
          block.load_matrices(left, a + (row + low) * stride<true> + k + high);
        else
          block.load_transposed(left, a + (k + other) * stride<false> + row + second);
        GALVATRON_UNROLL
        for (int j = 0; j < warp_columns / 8; ++j) {
          const std::uint32_t pair[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
          block.multiply(sums[i][j], left, pair);
        }
      }
    }
  }

  /// Calls out(row, column, values) for what the thread has of the tile: `adjacent` columns from that one on.
  GALVATRON_KERNEL static void each(auto& block, const Sums& sums, const auto& out) {
    const int lane = block.thread() % warp_threads;
    const int first_row = block.thread() / warp_threads / (columns / warp_columns) * warp_rows + lane / 4;
    const int first_column = block.thread() / warp_threads % (columns / warp_columns) * warp_columns + lane % 4 * 2;
    GALVATRON_UNROLL
    for (int i = 0; i < warp_rows / 16; ++i) GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) GALVATRON_UNROLL
    for (int j = 0; j < warp_columns / 8; ++j) {
      const float values[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
      out(first_row + 16 * i + 8 * half, first_column + 8 * j, values);
    }
  }
};

/// Tiles of float: a thread has (4, 4) of c.
struct FloatTiles {
  using Element = float;
  static constexpr int rows = 64, columns = 64, depth = 16;
  static constexpr int threads = 256;
  static constexpr int least_blocks = 2;
  static constexpr int adjacent = 4;

  /// Operands (depth, rows), whatever they are in memory.
  template <bool along>
  static constexpr int stride = rows + 4;
  template <bool along>
  static constexpr int elements = stride<along> * depth;
  using Sums = float[4][4];

  template <bool along, int packs>
  GALVATRON_KERNEL static void store(auto& block, const Pack<float> (&from)[packs], float* to) {
    constexpr int of_row = (along ? depth : rows) / Pack<float>::size;
    GALVATRON_UNROLL
    for (int p = 0; p < packs; ++p) {
      const int i = block.thread() + p * threads;
      if constexpr (along)
        for (int j = 0; j < Pack<float>::size; ++j)
          to[(i % of_row * Pack<float>::size + j) * stride<along> + i / of_row] = from[p][j];
      else
        from[p].store(to + i / of_row * stride<along> + i % of_row * Pack<float>::size);
    }
  }
  template <bool, bool>
  GALVATRON_KERNEL static void multiply(auto& block, const float* a, const float* b, Sums& sums) {
    const float* left = a + block.thread() / 16 * 4;
    const float* right = b + block.thread() % 16 * 4;
    GALVATRON_UNROLL
    for (int k = 0; k < depth; ++k) {
      const auto x = Pack<float>::at(left + k * stride<true>);
      const auto y = Pack<float>::at(right + k * stride<true>);
      GALVATRON_UNROLL
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) sums[i][j] += x[i] * y[j];
    }
  }
  GALVATRON_KERNEL static void each(auto& block, const Sums& sums, const auto& out) {
    GALVATRON_UNROLL
    for (int i = 0; i < 4; ++i) out(block.thread() / 16 * 4 + i, block.thread() % 16 * 4, sums[i]);
  }
};

template <class T>
using GroupedTiles = std::conditional_t<std::is_same_v<T, bfloat16>, TensorCoreTiles, FloatTiles>;

/// Tile `tile` of all rows, whose tiles each belong to one expert: that expert, and the tile among its own. Without
/// such a tile the expert is -1. All lanes of a warp call it.
struct TileOfExpert {
  int expert, tile;
};
GALVATRON_KERNEL TileOfExpert tile_of_expert(auto& block, const std::int32_t* offsets, int experts, int tile,
                                             int rows_of_tile) {
  const auto tiles_of = [&](int e) { return (offsets[e + 1] - offsets[e] + rows_of_tile - 1) / rows_of_tile; };
  // A lane has some experts that follow each other.
  const int each = (experts + warp_threads - 1) / warp_threads;
  const int first = block.thread() % warp_threads * each;
  const int last = first + each < experts ? first + each : experts;
  int own = 0;
  for (int e = first; e < last; ++e) own += tiles_of(e);
  const int up_to = sum_of_lanes_up_to(block, own);
  int expert = -1;
  int rest = tile - (up_to - own);
  if (rest >= 0 && tile < up_to)
    for (expert = first; rest >= tiles_of(expert); ++expert) rest -= tiles_of(expert);
  if (expert < 0) rest = -1;
  return {over_warp(block, expert, Maximum{}), over_warp(block, rest, Maximum{})};
}

/// @tparam T  of a and b  @tparam C  of c
template <class T, class C, op::Kind kind>
struct GroupedProduct {
  using Tiles = GroupedTiles<T>;
  static constexpr int most_threads = Tiles::threads;
  static constexpr int least_blocks = Tiles::least_blocks;  ///< a multiprocessor
  static constexpr bool a_along = kind != op::Kind::gemm_tn;
  static constexpr bool b_along = kind == op::Kind::gemm_nt;
  static constexpr int elements = Tiles::template elements<a_along> + Tiles::template elements<b_along>;
  static constexpr std::int64_t shared_bytes = 2 * elements * static_cast<std::int64_t>(sizeof(T));
  int experts;
  std::int64_t n, k;
  int column_tiles, row_tiles;  ///< of c; row tiles are those of one expert, for tn alone
  bool packed, packed_c;
  bool accumulate;
  const std::int32_t* offsets;
  const T* a;
  const T* b;
  C* c;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const auto index = static_cast<int>(block.index() / column_tiles);
    const std::int64_t first_column = block.index() % column_tiles * Tiles::columns;
    if constexpr (kind == op::Kind::gemm_tn) {
      const int expert = index / row_tiles;
      const std::int64_t first = offsets[expert];
      const std::int64_t rows = offsets[expert + 1] - first;
      if (rows == 0 && accumulate) return;
      compute(block, {a + first * n, index % row_tiles * Tiles::rows, n, rows, packed},
              {b + first * k, first_column, k, rows, packed}, c + expert * n * k);
    } else {
      const TileOfExpert at = tile_of_expert(block, offsets, experts, index, Tiles::rows);
      if (at.expert < 0) return;
      const std::int64_t first = offsets[at.expert];
      compute(block, {a + first * k, std::int64_t{at.tile} * Tiles::rows, offsets[at.expert + 1] - first, k, packed},
              {b + at.expert * n * k, first_column, n, k, packed}, c + first * n);
    }
  }

 private:
  GALVATRON_KERNEL void compute(auto& block, const GroupedOperand<T>& left, const GroupedOperand<T>& right,
                                C* to) const {
    using Left = OperandStep<T, a_along, Tiles::rows, Tiles::depth, Tiles::threads>;
    using Right = OperandStep<T, b_along, Tiles::columns, Tiles::depth, Tiles::threads>;
    auto* shared = reinterpret_cast<T*>(block.shared());  // (2, elements)
    typename Tiles::Sums sums = {};
    Pack<T> next_left[Left::packs];
    Pack<T> next_right[Right::packs];
    Left::load(block, left, 0, next_left);
    Right::load(block, right, 0, next_right);
    for (std::int64_t done = 0; done < left.depth; done += Tiles::depth) {
      T* const now = shared + done / Tiles::depth % 2 * elements;
      T* const now_right = now + Tiles::template elements<a_along>;
      Tiles::template store<a_along>(block, next_left, now);
      Tiles::template store<b_along>(block, next_right, now_right);
      block.sync();
      Left::load(block, left, done + Tiles::depth, next_left);
      Right::load(block, right, done + Tiles::depth, next_right);
      Tiles::template multiply<a_along, b_along>(block, now, now_right, sums);
    }
    Tiles::each(block, sums, [&](int row, int column, const float(&values)[Tiles::adjacent]) {
      if (left.first + row >= left.extent) return;
      put(to + (left.first + row) * right.extent, right.first + column, right.extent, values);
    });
  }
  GALVATRON_KERNEL void put(C* row, std::int64_t column, std::int64_t columns,
                            const float (&values)[Tiles::adjacent]) const {
    constexpr int width = Tiles::adjacent;
    if (column >= columns) return;
    float now[width] = {};
    if (packed_c) {
      if (accumulate) get_elements(row + column, now);
      for (int j = 0; j < width; ++j) now[j] += values[j];
      return put_elements(row + column, now);
    }
    for (int j = 0; j < width; ++j)
      if (column + j < columns)
        kernels::put(row[column + j], (accumulate ? kernels::get(row[column + j]) : 0.0F) + values[j]);
  }
};

/// See Device::gemm_grouped.
template <class T, class C>
void gemm_grouped(auto& launcher, op::Kind kind, std::int64_t experts, std::int64_t rows, std::int64_t n,
                  std::int64_t k, const std::int32_t* offsets, const T* a, const T* b, C* c, bool accumulate) {
  if (experts == 0 || n == 0 || (kind == op::Kind::gemm_tn && k == 0)) return;
  const auto launch = [&]<op::Kind which>() {
    using Kernel = GroupedProduct<T, C, which>;
    using Tiles = typename Kernel::Tiles;
    constexpr bool sums_rows = which == op::Kind::gemm_tn;
    const std::int64_t columns = sums_rows ? k : n;
    const std::int64_t column_tiles = divide_up(columns, Tiles::columns);
    const std::int64_t row_tiles = sums_rows ? divide_up(n, Tiles::rows) : 0;
    // An expert's rows fill all of its tiles but the last.
    const std::int64_t tiles =
        column_tiles * (sums_rows ? experts * row_tiles : rows / Tiles::rows + std::min(experts, rows));
    if (tiles == 0) return;
    launcher.launch({.blocks = tiles, .threads = Tiles::threads, .shared_bytes = Kernel::shared_bytes},
                    Kernel{.experts = static_cast<int>(experts),
                           .n = n,
                           .k = k,
                           .column_tiles = static_cast<int>(column_tiles),
                           .row_tiles = static_cast<int>(row_tiles),
                           .packed = is_packed<T>(n | k, a, b),
                           .packed_c = columns % Tiles::adjacent == 0 && are_aligned<Tiles::adjacent>(c),
                           .accumulate = accumulate,
                           .offsets = offsets,
                           .a = a,
                           .b = b,
                           .c = c});
  };
  if (kind == op::Kind::gemm_nt) return launch.template operator()<op::Kind::gemm_nt>();
  if (kind == op::Kind::gemm_nn) return launch.template operator()<op::Kind::gemm_nn>();
  launch.template operator()<op::Kind::gemm_tn>();
}

}  // namespace galvatron::device::cuda
