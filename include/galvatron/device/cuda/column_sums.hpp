// Sums over the columns of a matrix, in a fixed order.
//
// A block sums a tile of columns over a run of rows: eight threads read the 128 bytes that a row has in the tile, and
// the block's groups of eight take the rows in turn. Where there are several runs, their sums are partial results, a
// row each of another matrix, whose columns are summed next.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/pack.hpp>

namespace galvatron::device::cuda {

/// Calls out(run, column, sum) once for every column of every run of the rows of x (rows, columns).
template <class T, class F>
struct ColumnSums {
  static constexpr int most_threads = 256;
  static constexpr int least_blocks = 4;  ///< a multiprocessor
  static constexpr std::int64_t resident_blocks = least_blocks * multiprocessors;
  static constexpr int lanes = 8;
  static constexpr int groups = most_threads / lanes;
  static constexpr int tile = lanes * Pack<T>::size;
  static constexpr int at_once = 4;  ///< rows whose elements a thread asks for before it adds them
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t runs;
  bool packed;
  const T* x;
  F out;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    auto* shared = reinterpret_cast<float*>(block.shared());  // (groups, tile)
    const int lane = block.thread() % lanes;
    const int group = block.thread() / lanes;
    const std::int64_t tiles = divide_up(columns, tile);
    for (std::int64_t work = block.index(); work < tiles * runs; work += block.blocks()) {
      const std::int64_t run = work / tiles;
      const std::int64_t first = work % tiles * tile;
      const std::int64_t own = first + lane * Pack<T>::size;
      const std::int64_t last = rows * (run + 1) / runs;
      float sums[Pack<T>::size] = {};
      if (own < columns)
        for (std::int64_t row = rows * run / runs + group; row < last; row += at_once * groups) {
          Pack<T> packs[at_once];
          const T* at = x + row * columns + own;
          const auto places = [&](int i) {
            return RestOfRow<T>{at + i * groups * columns, row + i * groups < last ? columns - own : 0};
          };
          load_packs(packed, places, packs);
          for (int i = 0; i < at_once; ++i)
            for (int j = 0; j < Pack<T>::size; ++j) sums[j] += packs[i].get(j);
        }
      for (int j = 0; j < Pack<T>::size; ++j) shared[group * tile + lane * Pack<T>::size + j] = sums[j];
      block.sync();
      if (block.thread() < tile && first + block.thread() < columns) {
        float sum = 0;
        for (int i = 0; i < groups; ++i) sum += shared[i * tile + block.thread()];
        out(run, first + block.thread(), sum);
      }
      block.sync();
    }
  }
};

template <class L, class T, class F>
void column_sums(L& launcher, std::int64_t rows, std::int64_t columns, std::int64_t runs, const T* x, const F& out) {
  using Kernel = ColumnSums<T, F>;
  launcher.launch({.blocks = std::min(divide_up(columns, Kernel::tile) * runs, Kernel::resident_blocks),
                   .threads = Kernel::most_threads,
                   .shared_bytes = Kernel::groups * Kernel::tile * static_cast<std::int64_t>(sizeof(float))},
                  Kernel{rows, columns, runs, is_packed<T>(columns, x), x, out});
}

namespace detail {

/// Keeps the sums of runs for adding them up.
struct KeepSums {
  std::int64_t columns;
  float* partials;  ///< (runs, columns)
  GALVATRON_KERNEL void operator()(std::int64_t run, std::int64_t column, float sum) const {
    partials[run * columns + column] = sum;
  }
};

/// Adds the sums of the first columns to one vector, of the others to a second one.
struct AddSums {
  std::int64_t split;
  float* first;
  float* second;
  GALVATRON_KERNEL void operator()(std::int64_t, std::int64_t column, float sum) const {
    float* to = column < split ? first + column : second + (column - split);
    *to += sum;
  }
};

}  // namespace detail

}  // namespace galvatron::device::cuda
