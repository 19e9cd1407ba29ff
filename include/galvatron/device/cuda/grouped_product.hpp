// Matrix products of groups of rows: every expert's rows with its own matrix, in one launch. How many rows an expert
// has stands in the device's memory, so that a recorded launch is right for any.
//
// A block computes a tile (128, 128) of c. Operands come through shared memory in steps of the sum; those of the next
// steps are on their way while the block multiplies:
//
//            nt                        nn                        tn, of an expert
//   a   (rows, k)   along     a   (rows, k)   along     a   (rows, n)   across
//   b   (E, n, k)   along     b   (E, k, n)   across    b   (rows, k)   across
//   c   (rows, n)             c   (rows, n)             c   (E, n, k)
//
// Rows of an operand in memory go along the sum, or across it; in shared memory too, where they are 16 bytes longer, so
// that the rows that a warp reads at once lie in different banks. bfloat16 is multiplied by tensor cores, float by
// multiplications and additions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron::device::cuda {

/// What of an operand is in a tile of c: `tile` rows of `extent` from `first` on, of a sum over `depth` elements. Rows
/// of memory have `extent` elements where they go across the sum, else `depth`.
template <class T>
struct GroupedOperand {
  const T* at;
  std::int64_t first, extent, depth;
};

/// Tiles of c, and the steps of the sum that they are computed in.
struct GroupedTile {
  static constexpr int extent = 128;  ///< rows, and columns
  static constexpr int steps = 4;     ///< in shared memory at once
};

/// Steps of an operand in shared memory, of which a thread copies some packs.
/// @tparam Units  of `threads` threads, for steps of `depth` elements of the sum
template <class T, bool along, class Units>
struct OperandSteps : GroupedTile {
  static constexpr int depth = Units::depth;
  static constexpr int threads = Units::threads;
  static constexpr int size = Pack<T>::size;
  static constexpr int width = along ? depth : extent;  ///< elements of a row
  static constexpr int rows = along ? extent : depth;
  static constexpr int stride = width + size;
  static constexpr int elements = rows * stride;
  static constexpr int apart = threads / (width / size);  ///< rows between two packs of a thread
  static constexpr int packs = rows / apart;
  static_assert(width % size == 0 && threads % (width / size) == 0 && rows % apart == 0);
  std::int64_t all;  ///< elements between rows of memory
  const T* at;       ///< of the thread's first pack, in the first step
  int place;         ///< of that pack in a step
  int ends[packs];   ///< from these elements of the sum on the packs are beyond the operand
  int left;          ///< of a row across, elements from the packs on

  GALVATRON_KERNEL OperandSteps(auto& block, const GroupedOperand<T>& of) : all(along ? of.depth : of.extent) {
    const int row = block.thread() / (width / size);
    const int column = block.thread() % (width / size) * size;
    at = of.at + (along ? of.first + row : row) * all + (along ? column : of.first + column);
    place = row * stride + column;
    left = static_cast<int>(of.extent - of.first) - column;
    GALVATRON_UNROLL
    for (int p = 0; p < packs; ++p) {
      const bool exists = along ? of.first + row + p * apart < of.extent : left > 0;
      ends[p] = exists ? static_cast<int>(of.depth) - (along ? column : row + p * apart) : 0;
    }
  }
  /// Asks for the step from element `from` of the sum on; 0 beyond the operand. All threads call it.
  template <bool packed>
  GALVATRON_KERNEL void ask(auto& block, int from, T* to) const {
    const T* const first = at + (along ? from : from * all);
    GALVATRON_UNROLL
    for (int p = 0; p < packs; ++p) {
      T* const here = to + place + p * apart * stride;
      const int rest = ends[p] - from;
      if constexpr (packed)
        block.copy_async(here, first + p * apart * all, rest > 0 ? Pack<T>::bytes : 0);
      else
        load_pack(first + p * apart * all, 0, rest > 0 ? (along ? rest : left) : 0, false).store(here);
    }
  }
};

/// How a block multiplies steps of bfloat16: a warp has (64, 64) of c, in pieces as flash_tiles.hpp has them. With
/// fewer, warps would read shared memory longer than tensor cores multiply.
struct TensorCores : GroupedTile {
  static constexpr int depth = 32;
  static constexpr int threads = 128;
  static constexpr int least_blocks = 2;  ///< a multiprocessor
  static constexpr int warp_rows = 64, warp_columns = 64;
  using Sums = float[warp_rows / 16][warp_columns / 8][4];
  template <bool b_along>
  static constexpr int adjacent = 2;  ///< columns of c that a thread has side by side

  GALVATRON_KERNEL static int first_row(auto& block) {
    return block.thread() / warp_threads / (extent / warp_columns) * warp_rows;
  }
  GALVATRON_KERNEL static int first_column(auto& block) {
    return block.thread() / warp_threads % (extent / warp_columns) * warp_columns;
  }

  /// sums += a step of a, times one of b.
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void multiply(auto& block, const bfloat16* a, const bfloat16* b, Sums& sums) {
    constexpr int a_stride = OperandSteps<bfloat16, a_along, TensorCores>::stride;
    constexpr int b_stride = OperandSteps<bfloat16, b_along, TensorCores>::stride;
    const int lane = block.thread() % warp_threads;
    // Of four matrices, a lane names row lane % 8 of matrix lane / 8. In one direction the matrices 1 and 3 are eight
    // elements behind 0 and 2, in the other one 2 and 3 behind 0 and 1.
    const int odd = lane / 8 % 2 * 8;
    const int high = lane / 16 * 8;
    GALVATRON_UNROLL
    for (int k = 0; k < depth; k += 16) {
      std::uint32_t columns[warp_columns / 16][4];  // matrices 0 and 1: eight columns, all of the 16 elements
      GALVATRON_UNROLL
      for (int j = 0; j < warp_columns / 16; ++j) {
        const int column = first_column(block) + 16 * j;
        if constexpr (b_along)
          block.load_matrices(columns[j], b + (column + high + lane % 8) * b_stride + k + odd);
        else
          block.load_transposed(columns[j], b + (k + odd + lane % 8) * b_stride + column + high);
      }
      GALVATRON_UNROLL
      for (int i = 0; i < warp_rows / 16; ++i) {
        const int row = first_row(block) + 16 * i;
        std::uint32_t rows[4];  // matrices 0 and 1: 16 rows, eight of the elements
        if constexpr (a_along)
          block.load_matrices(rows, a + (row + odd + lane % 8) * a_stride + k + high);
        else
          block.load_transposed(rows, a + (k + high + lane % 8) * a_stride + row + odd);
        GALVATRON_UNROLL
        for (int j = 0; j < warp_columns / 8; ++j) {
          const std::uint32_t eight[2] = {columns[j / 2][j % 2 * 2], columns[j / 2][j % 2 * 2 + 1]};
          block.multiply(sums[i][j], rows, eight);
        }
      }
    }
  }

  /// Calls out(row, column, values) for what the thread has of the tile: `adjacent` columns from that one on.
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void each(auto& block, const Sums& sums, const auto& out) {
    const int lane = block.thread() % warp_threads;
    GALVATRON_UNROLL
    for (int i = 0; i < warp_rows / 16; ++i) GALVATRON_UNROLL
    for (int half = 0; half < 2; ++half) GALVATRON_UNROLL
    for (int j = 0; j < warp_columns / 8; ++j) {
      const float values[2] = {sums[i][j][2 * half], sums[i][j][2 * half + 1]};
      out(first_row(block) + lane / 4 + 16 * i + 8 * half, first_column(block) + lane % 4 * 2 + 8 * j, values);
    }
  }
};

/// The same of float: a thread, one of 16 x 16, has 8 x 8 of c.
struct FloatUnits : GroupedTile {
  static constexpr int depth = 16;
  static constexpr int threads = 256;
  static constexpr int least_blocks = 1;
  static constexpr int side = 16;
  static constexpr int own = extent / side;
  static constexpr int size = Pack<float>::size;
  using Sums = float[own][own];
  template <bool b_along>
  static constexpr int adjacent = b_along ? 1 : size;

  /// The place in the tile of row, or column, i of those that thread `rank` of 16 has: apart where rows go along the
  /// sum, so that threads read different banks, else side by side.
  template <bool along>
  GALVATRON_KERNEL static int place(int rank, int i) {
    return along ? rank + side * i : i / size * (extent / own * size) + rank * size + i % size;
  }
  /// Its elements from k on, four of each.
  template <bool along>
  GALVATRON_KERNEL static void load(const float* step, int rank, int k, float (&to)[own][size]) {
    constexpr int stride = OperandSteps<float, along, FloatUnits>::stride;
    GALVATRON_UNROLL
    for (int i = 0; i < own * size; i += size) {
      const int row = along ? i / size : i % own;
      const int from = along ? 0 : i / own;
      const auto pack = Pack<float>::at(along ? step + place<along>(rank, row) * stride + k
                                              : step + (k + from) * stride + place<along>(rank, row));
      GALVATRON_UNROLL
      for (int j = 0; j < size; ++j) (along ? to[row][j] : to[row + j][from]) = pack[j];
    }
  }
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void multiply(auto& block, const float* a, const float* b, Sums& sums) {
    GALVATRON_NO_UNROLL
    for (int k = 0; k < depth; k += size) {
      float x[own][size], y[own][size];
      load<a_along>(a, block.thread() / side, k, x);
      load<b_along>(b, block.thread() % side, k, y);
      GALVATRON_UNROLL
      for (int l = 0; l < size; ++l)
        for (int i = 0; i < own; ++i)
          for (int j = 0; j < own; ++j) sums[i][j] += x[i][l] * y[j][l];
    }
  }
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void each(auto& block, const Sums& sums, const auto& out) {
    constexpr int width = adjacent<b_along>;
    GALVATRON_UNROLL
    for (int i = 0; i < own; ++i) GALVATRON_UNROLL
    for (int j = 0; j < own; j += width) {
      float values[width];
      for (int l = 0; l < width; ++l) values[l] = sums[i][j + l];
      out(place<a_along>(block.thread() / side, i), place<b_along>(block.thread() % side, j), values);
    }
  }
};

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
  using Units = std::conditional_t<std::is_same_v<T, bfloat16>, TensorCores, FloatUnits>;
  static constexpr int most_threads = Units::threads;
  static constexpr int least_blocks = Units::least_blocks;
  static constexpr bool a_along = kind != op::Kind::gemm_tn;
  static constexpr bool b_along = kind == op::Kind::gemm_nt;
  static constexpr int adjacent = Units::template adjacent<b_along>;
  using Left = OperandSteps<T, a_along, Units>;
  using Right = OperandSteps<T, b_along, Units>;
  static constexpr int elements = Left::elements + Right::elements;  ///< of a step
  static constexpr std::int64_t shared_bytes = GroupedTile::steps * elements * static_cast<std::int64_t>(sizeof(T));
  static_assert(shared_bytes <= (99 << 10) - 512, "galvatron: a block of every GPU since Ampere has 99 KiB");
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
    constexpr std::int64_t extent = GroupedTile::extent;
    const auto index = static_cast<int>(block.index() / column_tiles);
    const std::int64_t first_column = block.index() % column_tiles * extent;
    if constexpr (kind == op::Kind::gemm_tn) {
      const int expert = index / row_tiles;
      const std::int64_t first = offsets[expert];
      const std::int64_t rows = offsets[expert + 1] - first;
      if (rows == 0 && accumulate) return;
      compute(block, {a + first * n, index % row_tiles * extent, n, rows}, {b + first * k, first_column, k, rows},
              c + expert * n * k);
    } else {
      const TileOfExpert at = tile_of_expert(block, offsets, experts, index, GroupedTile::extent);
      if (at.expert < 0) return;
      const std::int64_t first = offsets[at.expert];
      compute(block, {a + first * k, at.tile * extent, offsets[at.expert + 1] - first, k},
              {b + at.expert * n * k, first_column, n, k}, c + first * n);
    }
  }

 private:
  GALVATRON_KERNEL void compute(auto& block, const GroupedOperand<T>& left, const GroupedOperand<T>& right,
                                C* to) const {
    typename Units::Sums sums = {};
    if (packed)
      add_steps<true>(block, left, right, sums);
    else
      add_steps<false>(block, left, right, sums);
    Units::template each<a_along, b_along>(block, sums, [&](int row, int column, const float(&values)[adjacent]) {
      if (left.first + row >= left.extent) return;
      put(to + (left.first + row) * right.extent, right.first + column, right.extent, values);
    });
  }
  template <bool whole_packs>
  GALVATRON_KERNEL void add_steps(auto& block, const GroupedOperand<T>& left, const GroupedOperand<T>& right,
                                  typename Units::Sums& sums) const {
    constexpr int steps = GroupedTile::steps;
    auto* shared = reinterpret_cast<T*>(block.shared());  // (steps, elements)
    const auto all = static_cast<int>((left.depth + Units::depth - 1) / Units::depth);
    const Left of_left(block, left);
    const Right of_right(block, right);
    const auto ask = [&](int step) {
      T* const room = shared + step % steps * elements;
      if (step < all) {
        of_left.template ask<whole_packs>(block, step * Units::depth, room);
        of_right.template ask<whole_packs>(block, step * Units::depth, room + Left::elements);
      }
      block.commit_copies();
    };
    for (int step = 0; step < steps - 1; ++step) ask(step);
    GALVATRON_NO_UNROLL
    for (int step = 0; step < all; ++step) {
      block.template await_copies<steps - 2>();
      block.sync();
      ask(step + steps - 1);  // where the step before was
      const T* const room = shared + step % steps * elements;
      Units::template multiply<a_along, b_along>(block, room, room + Left::elements, sums);
    }
  }
  GALVATRON_KERNEL void put(C* row, std::int64_t column, std::int64_t columns, const float (&values)[adjacent]) const {
    if (column >= columns) return;
    if (packed_c) {
      float now[adjacent] = {};
      if (accumulate) get_elements(row + column, now);
      for (int j = 0; j < adjacent; ++j) now[j] += values[j];
      return put_elements(row + column, now);
    }
    for (int j = 0; j < adjacent; ++j)
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
    constexpr std::int64_t extent = GroupedTile::extent;
    constexpr bool sums_rows = which == op::Kind::gemm_tn;
    const std::int64_t columns = sums_rows ? k : n;
    const std::int64_t column_tiles = divide_up(columns, extent);
    const std::int64_t row_tiles = sums_rows ? divide_up(n, extent) : 0;
    // An expert's rows fill all of its tiles but the last.
    const std::int64_t tiles = sums_rows ? experts * row_tiles : rows / extent + std::min(experts, rows);
    if (tiles == 0) return;
    launcher.launch(
        {.blocks = tiles * column_tiles, .threads = Kernel::most_threads, .shared_bytes = Kernel::shared_bytes},
        Kernel{.experts = static_cast<int>(experts),
               .n = n,
               .k = k,
               .column_tiles = static_cast<int>(column_tiles),
               .row_tiles = static_cast<int>(row_tiles),
               .packed = is_packed<T>(n | k, a, b),
               .packed_c = columns % Kernel::adjacent == 0 && are_aligned<Kernel::adjacent>(c),
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
