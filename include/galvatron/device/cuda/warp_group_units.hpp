// How a block multiplies steps of bfloat16 on Hopper: two warp groups of 128 threads each have (64, 256) of a tile
// (128, 256) of c, and the tensor cores read both operands in shared memory (PTX's wgmma.m64n256k16).
//
// They read them in rows of 128 bytes, whose eight packs of 16 bytes lie in another order in each of eight rows, so
// that neither copies nor products meet in one bank: pack p of row r is at place p ^ r % 8 ("swizzle", 128 bytes). An
// operand that goes along the sum has rows of 64 elements of it. One that goes across has panels of 64 of its own rows:
// 64 elements of the sum, each a row of the panel.
#pragma once

#include <cstdint>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/pack.hpp>

namespace galvatron::device::cuda {

/// In a tile.
struct Place {
  int row, column;
};

/// See grouped_product.hpp for what it is a part of.
struct WarpGroupUnits {
  static constexpr int rows = 128, columns = 256;  ///< of a tile of c
  static constexpr int depth = 64;
  static constexpr int steps = 4;
  static constexpr int ahead = steps - 2;  ///< the products of the step before may still read theirs
  static constexpr int threads = 256;
  static constexpr int least_blocks = 1;
  static constexpr bool packs_only = true;
  static constexpr std::int64_t boundary = 1024;  ///< of operands in shared memory: eight rows
  using Sums = float[columns / 8][4];
  template <bool b_along>
  static constexpr int adjacent = 2;

  /// Steps of an operand in shared memory: as OperandSteps, in swizzled rows.
  template <class T, bool along, int extent>
  struct Steps {
    static constexpr int size = Pack<T>::size;
    static constexpr int width = depth;                     ///< elements of a row
    static constexpr int apart = threads / (width / size);  ///< rows between two packs of a thread
    static constexpr int packs = extent / apart;
    static constexpr int elements = extent * width;
    static_assert(depth % apart == 0 && extent % depth == 0);
    std::int64_t all;  ///< elements between rows of memory
    const T* at;       ///< of the thread's first pack, in the first step
    int place;         ///< of that pack in a step
    int ends[packs];   ///< from these elements of the sum on the packs are beyond the operand

    template <class Operand>
    GALVATRON_KERNEL Steps(auto& block, const Operand& of) : all(along ? of.depth : of.extent) {
      const int row = block.thread() / (width / size);
      const int pack = block.thread() % (width / size);
      const int column = pack * size;
      at = of.at + (along ? of.first + row : row) * all + (along ? column : of.first + column);
      place = row * width + (pack ^ row % 8) * size;
      GALVATRON_UNROLL
      for (int p = 0; p < packs; ++p) {
        const std::int64_t own = along ? row + p * apart : column + of_panel(p);
        ends[p] = of.first + own < of.extent ? static_cast<int>(of.depth) - (along ? column : row + in_panel(p)) : 0;
      }
    }
    template <bool>
    GALVATRON_KERNEL void ask(auto& block, int from, T* to) const {
      GALVATRON_UNROLL
      for (int p = 0; p < packs; ++p) {
        const T* const pack = at + (along ? p * apart * all + from : (from + in_panel(p)) * all + of_panel(p));
        block.copy_async(to + place + p * apart * width, pack, ends[p] > from ? Pack<T>::bytes : 0);
      }
    }

   private:
    /// Of a pack across: the first row of its panel in the operand, and its row in the panel but for the thread's.
    GALVATRON_KERNEL static constexpr int of_panel(int p) { return p * apart / depth * depth; }
    GALVATRON_KERNEL static constexpr int in_panel(int p) { return p * apart % depth; }
  };

  /// Begins to add a step of a, times one of b.
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static void multiply(auto& block, const bfloat16* a, const bfloat16* b, Sums& sums) {
    const int group = block.thread() / group_threads;
    block.begin_products();
    GALVATRON_UNROLL
    for (int k = 0; k < depth; k += 16)
      block.template multiply_group<a_along, b_along>(sums, a + group * (64 * depth), b, k);
    block.commit_products();
  }

  /// As of TensorCores.
  template <bool b_along>
  static constexpr int pieces = rows * columns / threads / adjacent<b_along>;
  template <bool a_along, bool b_along>
  GALVATRON_KERNEL static Place place(auto& block, int i) {
    const int lane = block.thread() % warp_threads;
    const int row = block.thread() / warp_threads * 16 + lane / 4 + 8 * (i / (columns / 8));
    return {row, lane % 4 * 2 + i % (columns / 8) * 8};
  }
  template <bool b_along>
  GALVATRON_KERNEL static float value(const Sums& sums, int i, int column) {
    return sums[i % (columns / 8)][i / (columns / 8) * 2 + column];
  }
};

/// Memory from the next of these boundaries on.
GALVATRON_KERNEL std::byte* on_boundary(std::byte* memory, std::int64_t boundary) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  const auto of = static_cast<std::uintptr_t>(boundary);
  return memory + (of - address % of) % of;
}

}  // namespace galvatron::device::cuda
