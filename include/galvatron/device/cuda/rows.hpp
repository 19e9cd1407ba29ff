// Rows of elements, as the threads of kernels read, write and share them, pack by pack; and sums over columns and over
// what blocks have left, in a fixed order.
//
// For sums over columns a block sums a tile of columns over a run of rows: eight threads read the 128 bytes that a row
// has in the tile, and the block's groups of eight take the rows in turn. Where there are several runs, their sums are
// partial results, a row each of another matrix, whose columns the last block of a tile sums.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/pack.hpp>

namespace galvatron::device::cuda {

/// row[first + j] += values[j], for what is within the row of floats.
template <int n>
GALVATRON_KERNEL void add_floats(const float (&values)[n], float* row, std::int64_t first, std::int64_t count,
                                 bool packed) {
  constexpr int size = Pack<float>::size;
  Pack<float> packs[n / size];
  load_packs(packed, [&](int p) { return RestOfRow<float>{row + first + p * size, count - first - p * size}; }, packs);
  for (int p = 0; p < n / size; ++p) {
    const auto sums = Pack<float>::of([&](int j) { return packs[p].get(j) + values[p * size + j]; });
    store_pack(sums, row, first + p * size, count, packed);
  }
}

/// Calls work(row, i) for i in [0, width) of every row, each once; a block takes a row at a time, or as many as it has
/// threads for.
template <class F>
struct ForRows {
  static constexpr int most_threads = 256;
  std::int64_t rows, width;
  F work;

  GALVATRON_KERNEL void operator()(auto& block) const {
    if (2 * width > block.threads()) {
      for (std::int64_t row = block.index(); row < rows; row += block.blocks())
        for (std::int64_t i = block.thread(); i < width; i += block.threads()) work(row, i);
      return;
    }
    const auto narrow = static_cast<int>(width);
    const int at_once = block.threads() / narrow;
    const int own = block.thread() / narrow;
    if (own >= at_once) return;
    for (std::int64_t row = block.index() * at_once + own; row < rows; row += block.blocks() * at_once)
      work(row, block.thread() - own * narrow);
  }
};

/// @param work  a struct with `GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const`
template <class F>
void for_rows(auto& launcher, std::int64_t rows, std::int64_t width, const F& work) {
  if (rows <= 0 || width <= 0) return;
  Geometry geometry = over_rows(rows, width);
  if (constexpr int threads = ForRows<F>::most_threads; 2 * width <= threads)
    geometry = over_rows(divide_up(rows, threads / width), threads);
  launcher.launch(geometry, ForRows<F>{rows, width, work});
}

/// Rows shared out to teams of threads: a warp each, of which a block has several, or a block each.
struct Teams {
  std::int64_t rows;
  int threads;  ///< of a team: a warp's, or all of the block

  GALVATRON_KERNEL int rank(auto& block) const { return block.thread() % threads; }
  /// Which of its block's teams a thread belongs to, and their number.
  GALVATRON_KERNEL int team(auto& block) const { return block.thread() / threads; }
  GALVATRON_KERNEL int teams(auto& block) const { return block.threads() / threads; }
  /// A team has the rows from first_row on in steps of row_step.
  GALVATRON_KERNEL std::int64_t first_row(auto& block) const { return block.index() * teams(block) + team(block); }
  GALVATRON_KERNEL std::int64_t row_step(auto& block) const { return block.blocks() * teams(block); }
  /// The sums over the team, in all of its threads and in a fixed order: of one value, or of two in blocks of up to 512
  /// threads. `turn`, 0 at first, has calls take turns with two sets of slots, so that one barrier each is enough.
  template <int n>
  GALVATRON_KERNEL void sum(auto& block, float (&values)[n], int& turn) const {
    for (int mask = warp_threads / 2; mask > 0; mask /= 2)
      for (int i = 0; i < n; ++i) values[i] += block.shuffle_xor(values[i], mask);
    if (threads == warp_threads) return;
    auto* slots = block.template slots<std::array<float, n>>() + turn * (block.threads() / warp_threads);
    turn ^= 1;
    const int warp = block.thread() / warp_threads;
    if (block.thread() % warp_threads == 0)
      for (int i = 0; i < n; ++i) slots[warp][static_cast<std::size_t>(i)] = values[i];
    block.sync();
    for (int i = 0; i < n; ++i) values[i] = 0;
    GALVATRON_NO_UNROLL
    for (int w = 0; w < threads / warp_threads; ++w)
      for (int i = 0; i < n; ++i) values[i] += slots[w][static_cast<std::size_t>(i)];
  }
};

/// Teams for rows, and the blocks that hold them.
struct TeamGeometry {
  Teams teams;
  Geometry geometry;
};

/// Blocks of `teams` teams of `team` threads.
/// @param most_threads  of a multiprocessor: the resident blocks loop over further rows
constexpr TeamGeometry in_blocks(std::int64_t rows, int team, int teams, int most_threads) {
  const std::int64_t resident = multiprocessors * (most_threads / (team * teams));
  return {
      .teams = {rows, team},
      .geometry = {.blocks = std::clamp<std::int64_t>(divide_up(rows, teams), 1, resident), .threads = team * teams}};
}

/// For rows of `packs` packs, of which a thread keeps `kept` where rows are packed: a warp a row when it can keep all,
/// and four in a block.
/// @param most_threads  of a block, and of a multiprocessor
constexpr TeamGeometry share_rows(std::int64_t rows, std::int64_t packs, bool packed, int kept, int most_threads) {
  if (packed && packs <= kept * warp_threads) return in_blocks(rows, warp_threads, 4, most_threads);
  const std::int64_t wanted = round_up(divide_up(packs, kept), warp_threads);
  return in_blocks(rows, static_cast<int>(std::min<std::int64_t>(wanted, most_threads)), 1, most_threads);
}

/// How many partial results of `bytes` bytes, at most `wanted`, the scratch memory takes; DeviceFailure when none.
inline std::int64_t partials_within(View<std::byte> scratch, std::int64_t bytes, std::int64_t wanted) {
  if (bytes > scratch.count)
    throw DeviceFailure("sums over blocks need " + std::to_string(bytes) + " bytes of the GPU's workspace, there are " +
                        std::to_string(scratch.count) + ": take shorter rows or enlarge the workspace");
  return std::min(wanted, scratch.count / std::max<std::int64_t>(bytes, 1));
}

/// Sums over rows of x (.., columns) in a tile of columns, by a block.
template <class T, int columns_of_tile = 8 * Pack<T>::size>
struct TileSums {
  static constexpr int threads = 256;  ///< of the block
  static constexpr int tile = columns_of_tile;
  static constexpr int lanes = tile / Pack<T>::size;
  static constexpr int groups = threads / lanes;
  static constexpr int at_once = 4;  ///< rows that a thread loads before it adds them
  static constexpr std::int64_t shared_bytes = groups * tile * static_cast<std::int64_t>(sizeof(float));
  std::int64_t columns;
  bool packed;
  const T* x;

  /// Calls out(column, sum) once for every column from `first` on of the tile, each in a thread of its own: that of its
  /// number in the tile. All threads call it.
  GALVATRON_KERNEL void operator()(auto& block, std::int64_t begin, std::int64_t end, std::int64_t first,
                                   const auto& out) const {
    auto* shared = reinterpret_cast<float*>(block.shared());  // (groups, tile)
    const int lane = block.thread() % lanes;
    const int group = block.thread() / lanes;
    const std::int64_t own = first + lane * Pack<T>::size;
    float sums[Pack<T>::size] = {};
    if (own < columns)
      for (std::int64_t row = begin + group; row < end; row += at_once * groups) {
        Pack<T> packs[at_once];
        const T* at = x + row * columns + own;
        const auto places = [&](int i) {
          return RestOfRow<T>{at + i * groups * columns, row + i * groups < end ? columns - own : 0};
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
      out(first + block.thread(), sum);
    }
    block.sync();
  }
};

/// Calls out(run, column, sum) once for every column of every run of the rows of x (rows, columns).
template <class T, class F>
struct ColumnSums {
  using Tile = TileSums<T>;
  static constexpr int most_threads = Tile::threads;
  static constexpr int least_blocks = 4;  ///< a multiprocessor
  static constexpr std::int64_t resident_blocks = least_blocks * multiprocessors;
  std::int64_t rows, columns, runs;
  bool packed;
  const T* x;
  F out;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t tiles = divide_up(columns, Tile::tile);
    for (std::int64_t work = block.index(); work < tiles * runs; work += block.blocks()) {
      const std::int64_t run = work / tiles;
      Tile{columns, packed, x}(block, rows * run / runs, rows * (run + 1) / runs, work % tiles * Tile::tile,
                               [&](std::int64_t column, float sum) { out(run, column, sum); });
    }
  }
};

template <class T, class F>
void column_sums(auto& launcher, std::int64_t rows, std::int64_t columns, std::int64_t runs, const T* x, const F& out) {
  using Kernel = ColumnSums<T, F>;
  launcher.launch({.blocks = std::min(divide_up(columns, Kernel::Tile::tile) * runs, Kernel::resident_blocks),
                   .threads = Kernel::most_threads,
                   .shared_bytes = Kernel::Tile::shared_bytes},
                  Kernel{rows, columns, runs, is_packed<T>(columns, x), x, out});
}

/// out (runs, columns) = scale * the sums.
template <class T>
struct PutSums {
  std::int64_t columns;
  float scale;
  T* out;
  GALVATRON_KERNEL void operator()(std::int64_t run, std::int64_t column, float sum) const {
    kernels::put(out[run * columns + column], scale * sum);
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

/// total += the sums (count), by one block and in a fixed order.
struct AddTotal {
  static constexpr int at_once = 4;  ///< that a thread loads before it adds them
  std::int64_t count;
  const double* sums;
  double* total;

  GALVATRON_KERNEL void operator()(auto& block) const {
    double own = block.thread() == 0 ? *total : 0;
    for (std::int64_t i = block.thread(); i < count; i += at_once * block.threads()) {
      double several[at_once];
      GALVATRON_UNROLL
      for (int p = 0; p < at_once; ++p) {
        const std::int64_t at = i + p * block.threads();
        several[p] = at < count ? sums[at] : 0;
      }
      for (const double sum : several) own += sum;
    }
    own = block_sum(block, own);
    if (block.thread() == 0) *total = own;
  }
};

/// A kernel whose blocks leave the sums, which the last of them adds.
template <class Kernel>
struct WithTotal {
  static constexpr int most_threads = Kernel::most_threads;
  static constexpr int least_blocks = Kernel::least_blocks;
  Kernel kernel;
  AddTotal add;
  std::uint32_t* ticket;

  GALVATRON_KERNEL void operator()(auto& block) const {
    kernel(block);
    if (is_last_block(block, ticket, block.blocks())) add(block);
  }
};

}  // namespace galvatron::device::cuda
