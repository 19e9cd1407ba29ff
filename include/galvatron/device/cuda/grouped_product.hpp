// Matrix products of groups of rows: every expert's rows with its own matrix, in one launch. How many rows an expert
// has stands in the device's memory, so that a recorded launch is right for any.
//
// A block computes a tile of c. Operands come through shared memory in steps of the sum; those of the next steps are on
// their way while the block multiplies:
//
//            nt                        nn                        tn, of an expert
//   a   (rows, k)   along     a   (rows, k)   along     a   (rows, n)   across
//   b   (E, n, k)   along     b   (E, k, n)   across    b   (rows, k)   across
//   c   (rows, n)             c   (rows, n)             c   (E, n, k)
//
// Rows of an operand in memory go along the sum, or across it; in shared memory too, where they are 16 bytes longer, so
// that the rows that a warp reads at once lie in different banks. bfloat16 is multiplied by tensor cores, on Hopper by
// those of warp groups (warp_group_units.hpp), float by multiplications and additions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/device/cuda/warp_group_units.hpp>
#include <galvatron/op/kind.hpp>

namespace galvatron::device::cuda {

/// What of an operand is in a tile of c: `tile` rows of `extent` from `first` on, of a sum over `depth` elements. Rows
/// of memory have `extent` elements where they go across the sum, else `depth`.
template <class T>
struct GroupedOperand {
  const T* at;
  std::int64_t first, extent, depth;
};

/// Steps of an operand in shared memory, of which a thread copies some packs.
/// @tparam Units  of `threads` threads, for steps of `depth` elements of the sum
/// @tparam extent  rows of the operand in a tile
template <class T, bool along, class Units, int extent>
struct OperandSteps {
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
struct TensorCores {
  static constexpr int rows = 128, columns = 128;  ///< of a tile of c
  static constexpr int depth = 32;
  static constexpr int steps = 4;          ///< in shared memory at once
  static constexpr int ahead = steps - 1;  ///< of them on their way
  static constexpr int threads = 128;
  static constexpr int least_blocks = 2;  ///< a multiprocessor
  static constexpr bool packs_only = false;
  static constexpr std::int64_t boundary = 16;  ///< of operands in shared memory
  static constexpr int warp_rows = 64, warp_columns = 64;
  using Sums = float[warp_rows / 16][warp_columns / 8][4];
  template <bool b_along>
  static constexpr int adjacent = 2;  ///< columns of c that a thread has side by side
  template <class T, bool along, int extent>
  using Steps = OperandSteps<T, along, TensorCores, extent>;

  GALVATRON_KERNEL static int first_row(auto& block) {
    return block.thread() / warp_threads / (columns / warp_columns) * warp_rows;
  }
  GALVATRON_KERNEL static int first_column(auto& block) {
    return block.thread() / warp_threads % (columns / warp_columns) * warp_columns;
  }

  /// sums += a step of a, times one of b.
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void multiply(auto& block, const bfloat16* a, const bfloat16* b, Sums& sums) {
    constexpr int a_stride = Steps<bfloat16, a_along, rows>::stride;
    constexpr int b_stride = Steps<bfloat16, b_along, columns>::stride;
    const int lane = block.thread() % warp_threads;
    // Of four matrices, a lane names row lane % 8 of matrix lane / 8. In one direction the matrices 1 and 3 are eight
    // elements behind 0 and 2, in the other one 2 and 3 behind 0 and 1.
    const int odd = lane / 8 % 2 * 8;
    const int high = lane / 16 * 8;
    GALVATRON_UNROLL
    for (int k = 0; k < depth; k += 16) {
      std::uint32_t right[warp_columns / 16][4];  // matrices 0 and 1: eight columns, all of the 16 elements
      GALVATRON_UNROLL
      for (int j = 0; j < warp_columns / 16; ++j) {
        const int column = first_column(block) + 16 * j;
        if constexpr (b_along)
          block.load_matrices(right[j], b + (column + high + lane % 8) * b_stride + k + odd);
        else
          block.load_transposed(right[j], b + (k + odd + lane % 8) * b_stride + column + high);
      }
      GALVATRON_UNROLL
      for (int i = 0; i < warp_rows / 16; ++i) {
        const int row = first_row(block) + 16 * i;
        std::uint32_t left[4];  // matrices 0 and 1: 16 rows, eight of the elements
        if constexpr (a_along)
          block.load_matrices(left, a + (row + odd + lane % 8) * a_stride + k + high);
        else
          block.load_transposed(left, a + (k + high + lane % 8) * a_stride + row + odd);
        GALVATRON_UNROLL
        for (int j = 0; j < warp_columns / 8; ++j) {
          const std::uint32_t eight[2] = {right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1]};
          block.multiply(sums[i][j], left, eight);
        }
      }
    }
  }

  /// What a thread has of the tile comes in pieces of `adjacent` columns: where piece i begins, and its values.
  template <bool b_along>
  static constexpr int pieces = warp_rows * warp_columns / warp_threads / adjacent<b_along>;
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static Place place(auto& block, int i) {
    const int lane = block.thread() % warp_threads;
    const int row = first_row(block) + lane / 4 + 8 * (i / (warp_columns / 8));
    return {row, first_column(block) + lane % 4 * 2 + i % (warp_columns / 8) * 8};
  }
  template <bool b_along>
  GALVATRON_KERNEL static float value(const Sums& sums, int i, int column) {
    const int half = i / (warp_columns / 8);  // of 16 rows
    return sums[half / 2][i % (warp_columns / 8)][half % 2 * 2 + column];
  }
};

/// The same of float: a thread, one of 16 x 16, has 8 x 8 of c.
struct FloatUnits {
  static constexpr int rows = 128, columns = 128;
  static constexpr int depth = 16;
  static constexpr int steps = 4;
  static constexpr int ahead = steps - 1;
  static constexpr int threads = 256;
  static constexpr int least_blocks = 1;
  static constexpr bool packs_only = false;
  static constexpr std::int64_t boundary = 16;
  static constexpr int side = 16;
  static constexpr int own = rows / side;
  static constexpr int size = Pack<float>::size;
  using Sums = float[own][own];
  template <bool b_along>
  static constexpr int adjacent = b_along ? 1 : size;
  template <class T, bool along, int extent>
  using Steps = OperandSteps<T, along, FloatUnits, extent>;

  /// The place in the tile of row, or column, i of those that thread `rank` of 16 has: apart where rows go along the
  /// sum, so that threads read different banks, else side by side.
  template <bool along>
  GALVATRON_KERNEL static int place(int rank, int i) {
    return along ? rank + side * i : i / size * (side * size) + rank * size + i % size;
  }
  /// Its elements from k on, four of each.
  template <bool along>
  GALVATRON_KERNEL static void load(const float* step, int rank, int k, float (&to)[own][size]) {
    constexpr int stride = Steps<float, along, rows>::stride;
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
  template <bool b_along>
  static constexpr int pieces = own * own / adjacent<b_along>;
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static Place place(auto& block, int i) {
    constexpr int of_row = own / adjacent<b_along>;
    return {place<a_along>(block.thread() / side, i / of_row),
            place<b_along>(block.thread() % side, i % of_row * adjacent<b_along>)};
  }
  template <bool b_along>
  GALVATRON_KERNEL static float value(const Sums& sums, int i, int column) {
    constexpr int of_row = own / adjacent<b_along>;
    return sums[i / of_row][i % of_row * adjacent<b_along> + column];
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
template <class T, class C, op::Kind kind,
          class Units = std::conditional_t<std::is_same_v<T, bfloat16>, TensorCores, FloatUnits>>
struct GroupedProduct {
  static constexpr int most_threads = Units::threads;
  static constexpr int least_blocks = Units::least_blocks;
  static constexpr bool a_along = kind != op::Kind::gemm_tn;
  static constexpr bool b_along = kind == op::Kind::gemm_nt;
  static constexpr int tile_rows = Units::rows, tile_columns = Units::columns;  ///< of c
  static constexpr int adjacent = Units::template adjacent<b_along>;
  using Left = typename Units::template Steps<T, a_along, tile_rows>;
  using Right = typename Units::template Steps<T, b_along, tile_columns>;
  static constexpr int elements = Left::elements + Right::elements;  ///< of a step
  static constexpr std::int64_t shared_bytes =
      Units::steps * elements * static_cast<std::int64_t>(sizeof(T)) + (Units::boundary > 16 ? Units::boundary : 0);
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
    const std::int64_t first_column = block.index() % column_tiles * tile_columns;
    if constexpr (kind == op::Kind::gemm_tn) {
      const int expert = index / row_tiles;
      const std::int64_t first = offsets[expert];
      const std::int64_t rows = offsets[expert + 1] - first;
      if (rows == 0 && accumulate) return;
      compute(block, {a + first * n, index % row_tiles * tile_rows, n, rows}, {b + first * k, first_column, k, rows},
              c + expert * n * k);
    } else {
      const TileOfExpert at = tile_of_expert(block, offsets, experts, index, tile_rows);
      if (at.expert < 0) return;
      const std::int64_t first = offsets[at.expert];
      compute(block, {a + first * k, at.tile * tile_rows, offsets[at.expert + 1] - first, k},
              {b + at.expert * n * k, first_column, n, k}, c + first * n);
    }
  }

 private:
  GALVATRON_KERNEL void compute(auto& block, const GroupedOperand<T>& left, const GroupedOperand<T>& right,
                                C* to) const {
    typename Units::Sums sums = {};
    if constexpr (Units::packs_only)
      add_steps<true>(block, left, right, sums);
    else if (packed)
      add_steps<true>(block, left, right, sums);
    else
      add_steps<false>(block, left, right, sums);
    // What is there already is read some pieces at a time, before the first of them is written.
    constexpr int batch = 8;
    static_assert(Units::template pieces<b_along> % batch == 0);
    GALVATRON_UNROLL
    for (int first = 0; first < Units::template pieces<b_along>; first += batch) {
      float values[batch][adjacent];
      GALVATRON_UNROLL
      for (int i = 0; i < batch; ++i) {
        for (int j = 0; j < adjacent; ++j) values[i][j] = 0;
        if (accumulate) with_piece<true>(block, left, right, to, first + i, values[i]);
        for (int j = 0; j < adjacent; ++j) values[i][j] += Units::template value<b_along>(sums, first + i, j);
      }
      GALVATRON_UNROLL
      for (int i = 0; i < batch; ++i) with_piece<false>(block, left, right, to, first + i, values[i]);
    }
  }
  /// Reads, or writes, what exists of a piece of c.
  template <bool reads>
  GALVATRON_KERNEL void with_piece(auto& block, const GroupedOperand<T>& left, const GroupedOperand<T>& right, C* to,
                                   int piece, float (&values)[adjacent]) const {
    const auto at = Units::template place<a_along, b_along>(block, piece);
    const std::int64_t row = left.first + at.row;
    const std::int64_t column = right.first + at.column;
    if (row >= left.extent || column >= right.extent) return;
    C* const first = to + row * right.extent + column;
    if (packed_c) return reads ? get_elements(first, values) : put_elements(first, values);
    for (int j = 0; j < adjacent; ++j)
      if (column + j < right.extent) {
        if constexpr (reads)
          values[j] = kernels::get(first[j]);
        else
          kernels::put(first[j], values[j]);
      }
  }
  template <bool whole_packs>
  GALVATRON_KERNEL void add_steps(auto& block, const GroupedOperand<T>& left, const GroupedOperand<T>& right,
                                  typename Units::Sums& sums) const {
    constexpr int steps = Units::steps;
    auto* shared = reinterpret_cast<T*>(on_boundary(block.shared(), Units::boundary));  // (steps, elements)
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
    for (int step = 0; step < Units::ahead; ++step) ask(step);
    GALVATRON_NO_UNROLL
    for (int step = 0; step < all; ++step) {
      const T* const room = shared + step % steps * elements;
      const auto multiply = [&] {
        Units::template multiply<a_along, b_along>(block, room, room + Left::elements, sums);
      };
      block.template await_copies<Units::ahead - 1>();
      if constexpr (Units::packs_only) {  // products go on while copies are asked for
        block.fence_copies();
        block.sync();
        multiply();
        ask(step + Units::ahead);
        block.template await_products<1>();
      } else {
        block.sync();
        ask(step + Units::ahead);  // where the step before was
        multiply();
      }
    }
    if constexpr (Units::packs_only) block.template await_products<0>();
  }
};

/// True when the kernels were compiled for Hopper's own instructions, sm_90a.
bool has_kernels_of_warp_groups();

/// See Device::gemm_grouped.
/// @param warp_groups  the GPU has products of warp groups
template <class T, class C>
void gemm_grouped(auto& launcher, bool warp_groups, op::Kind kind, std::int64_t experts, std::int64_t rows,
                  std::int64_t n, std::int64_t k, const std::int32_t* offsets, const T* a, const T* b, C* c,
                  bool accumulate) {
  if (experts == 0 || n == 0 || (kind == op::Kind::gemm_tn && k == 0)) return;
  const bool packed = is_packed<T>(n | k, a, b);
  const auto launch = [&]<class Kernel>() {
    const bool sums_rows = !Kernel::a_along;
    const std::int64_t columns = sums_rows ? k : n;
    const std::int64_t column_tiles = divide_up(columns, Kernel::tile_columns);
    const std::int64_t row_tiles = sums_rows ? divide_up(n, Kernel::tile_rows) : 0;
    // An expert's rows fill all of its tiles but the last.
    const std::int64_t tiles = sums_rows ? experts * row_tiles : rows / Kernel::tile_rows + std::min(experts, rows);
    if (tiles == 0) return;
    launcher.launch(
        {.blocks = tiles * column_tiles, .threads = Kernel::most_threads, .shared_bytes = Kernel::shared_bytes},
        Kernel{.experts = static_cast<int>(experts),
               .n = n,
               .k = k,
               .column_tiles = static_cast<int>(column_tiles),
               .row_tiles = static_cast<int>(row_tiles),
               .packed = packed,
               .packed_c = columns % Kernel::adjacent == 0 && are_aligned<Kernel::adjacent>(c),
               .accumulate = accumulate,
               .offsets = offsets,
               .a = a,
               .b = b,
               .c = c});
  };
  const auto launch_kind = [&]<op::Kind which>() {
    if constexpr (std::is_same_v<T, bfloat16> &&
                  std::is_same_v<C, std::conditional_t<which == op::Kind::gemm_tn, float, bfloat16>>) {
      const std::int64_t columns = which == op::Kind::gemm_tn ? k : n;
      constexpr std::int64_t width = WarpGroupUnits::columns;
      // At least three quarters of the tiles' columns are there.
      if (warp_groups && packed && 4 * columns >= 3 * round_up(columns, width))
        return launch.template operator()<GroupedProduct<T, C, which, WarpGroupUnits>>();
    }
    launch.template operator()<GroupedProduct<T, C, which>>();
  };
  if (kind == op::Kind::gemm_nt) return launch_kind.template operator()<op::Kind::gemm_nt>();
  if (kind == op::Kind::gemm_nn) return launch_kind.template operator()<op::Kind::gemm_nn>();
  launch_kind.template operator()<op::Kind::gemm_tn>();
}

}  // namespace galvatron::device::cuda
