// Rows of elements, as the threads of kernels read, write and share them: pack by pack.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/block.hpp>
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
    float sums[size];
    for (int j = 0; j < size; ++j) sums[j] = packs[p].get(j) + values[p * size + j];
    store_pack(Pack<float>::of(sums), row, first + p * size, count, packed);
  }
}

/// Calls work(row, i) for i in [0, width) of every row, each once; a block takes a row at a time.
template <class F>
struct ForRows {
  static constexpr int most_threads = 256;
  std::int64_t rows;
  std::int64_t width;
  F work;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    for (std::int64_t row = block.index(); row < rows; row += block.blocks())
      for (std::int64_t i = block.thread(); i < width; i += block.threads()) work(row, i);
  }
};

/// @tparam F  a struct with `GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const`
template <class L, class F>
void for_rows(L& launcher, std::int64_t rows, std::int64_t width, const F& work) {
  if (rows > 0 && width > 0) launcher.launch(over_rows(rows, width), ForRows<F>{rows, width, work});
}

/// Rows shared out to teams of threads: a warp each, of which a block has several, or a block each.
struct Teams {
  std::int64_t rows;
  int threads;  ///< of a team: a warp's, or all of the block

  template <class B>
  GALVATRON_KERNEL int rank(B& block) const {
    return block.thread() % threads;
  }
  /// Which of its block's teams a thread belongs to, and their number.
  template <class B>
  GALVATRON_KERNEL int team(B& block) const {
    return block.thread() / threads;
  }
  template <class B>
  GALVATRON_KERNEL int teams(B& block) const {
    return block.threads() / threads;
  }
  /// A team has the rows from first_row on in steps of row_step.
  template <class B>
  GALVATRON_KERNEL std::int64_t first_row(B& block) const {
    return block.index() * teams(block) + team(block);
  }
  template <class B>
  GALVATRON_KERNEL std::int64_t row_step(B& block) const {
    return block.blocks() * teams(block);
  }
  /// The sum over the team, in all of its threads.
  template <class B>
  GALVATRON_KERNEL float sum(B& block, float value) const {
    return threads == warp_threads ? warp_sum(block, value) : block_sum(block, value);
  }
  /// Two sums at once.
  template <class B>
  GALVATRON_KERNEL void sum(B& block, float& a, float& b) const {
    struct Both {
      float a;
      float b;
    };
    a = warp_sum(block, a);
    b = warp_sum(block, b);
    if (threads == warp_threads) return;
    Both* slots = block.template slots<Both>();
    if (block.thread() % warp_threads == 0) slots[block.thread() / warp_threads] = {a, b};
    block.sync();
    a = 0;
    b = 0;
    for (int warp = 0; warp < threads / warp_threads; ++warp) {
      a += slots[warp].a;
      b += slots[warp].b;
    }
    block.sync();
  }
};

/// Teams for rows, and the blocks that hold them.
struct TeamGeometry {
  Teams teams;
  Geometry geometry;
};

/// For rows of `packs` packs, of which a thread keeps `kept` in registers where rows are packed: a warp a row when it
/// can keep all of it.
/// @param resident  threads that a multiprocessor has room for at once: the blocks that all have room for go on with
///                  further rows, so that none is left for another turn
constexpr TeamGeometry share_rows(std::int64_t rows, std::int64_t packs, bool packed, int kept, int most_threads,
                                  int resident) {
  constexpr int together = 128;  // threads of a block of several teams
  const bool in_warps = packed && packs <= kept * warp_threads;
  const auto wanted = in_warps ? together : round_up(divide_up(packs, kept), warp_threads);
  const auto threads = static_cast<int>(std::min<std::int64_t>(wanted, most_threads));
  const int team = in_warps ? warp_threads : threads;
  return {.teams = {rows, team},
          .geometry = {.blocks = std::clamp<std::int64_t>(divide_up(rows, threads / team), 1,
                                                          multiprocessors * std::max(resident / threads, 1)),
                       .threads = threads}};
}

/// How many partial results of `bytes` bytes, at most `wanted`, the scratch memory takes. Throws DeviceFailure when it
/// takes none.
inline std::int64_t partials_within(View<std::byte> scratch, std::int64_t bytes, std::int64_t wanted) {
  if (bytes > scratch.count)
    throw DeviceFailure("sums over blocks need " + std::to_string(bytes) + " bytes of the GPU's workspace, there are " +
                        std::to_string(scratch.count) + ": take shorter rows or enlarge the workspace");
  return std::min(wanted, scratch.count / std::max<std::int64_t>(bytes, 1));
}

}  // namespace galvatron::device::cuda
