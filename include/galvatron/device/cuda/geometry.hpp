// How many threads a kernel is launched with.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>

namespace galvatron::device::cuda {

inline constexpr int warp_threads = 32;

/// A grid of one dimension.
struct Geometry {
  std::int64_t blocks = 0;
  int threads = 0;                ///< of a block; a multiple of warp_threads
  std::int64_t shared_bytes = 0;  ///< of a block, beside what reductions have of their own
  friend constexpr bool operator==(const Geometry&, const Geometry&) = default;
};

/// Of the largest GPU, with 2,048 threads each.
inline constexpr std::int64_t multiprocessors = 132;

/// Blocks that keep it busy, for kernels that go over their data in steps of the grid.
inline constexpr std::int64_t most_blocks = multiprocessors * 8;

/// For `items` pieces of work, one a thread at a time.
constexpr Geometry over_items(std::int64_t items, int threads = 256) {
  return {.blocks = std::clamp<std::int64_t>(divide_up(items, threads), 1, most_blocks), .threads = threads};
}

/// For rows of `packs` pieces of work each, a block a row at a time: as many threads as have something to do.
constexpr Geometry over_rows(std::int64_t rows, std::int64_t packs, int most_threads = 256) {
  return {
      .blocks = std::clamp<std::int64_t>(rows, 1, std::int64_t{1} << 30),
      .threads = static_cast<int>(std::clamp<std::int64_t>(round_up(packs, warp_threads), warp_threads, most_threads))};
}

}  // namespace galvatron::device::cuda
