// Rows of experts in buckets of those that hash alike, numbered by their first row.
//
// Rows go into a table by their expert and codes, all at once: a place belongs to the row that claims it first, and in
// the end names the first of all rows that are alike, their leader, whoever came first. What follows depends on leaders
// alone, so the numbers are the same every time:
//
//   leaders -> a row's rank among those of its leader, the leader's size -> sums over the leaders before: numbers of
//   buckets, and where their members begin -> members, each at its bucket's begin + its rank
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

/// The rows that there are; they have places for more.
GALVATRON_KERNEL std::int32_t rows_of(const TokenBuckets& b) { return b.offsets.data[b.experts]; }
GALVATRON_KERNEL std::int64_t expert_of(const TokenBuckets& b, std::int64_t row) {
  return first_where(0, b.experts, [&](std::int64_t e) { return b.offsets.data[e + 1] > row; });
}

/// bucket = the place of each row in the table, whose places become b.rows - leader; 0 before.
struct InsertRows {
  static constexpr int most_threads = 256;
  kernels::CrossPolytope hashing;
  TokenBuckets b;
  std::int64_t places;  ///< a power of two
  const std::int32_t* codes;
  std::int32_t* table;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t step = block.blocks() * block.threads();
    const std::int64_t rows = rows_of(b);
    for (std::int64_t row = block.index() * block.threads() + block.thread(); row < rows; row += step) {
      const std::int64_t expert = expert_of(b, row);
      const std::int32_t* own = codes_of(row);
      const auto value = static_cast<std::int32_t>(b.rows - row);
      std::int64_t place = hashing.mixed(own) * 31 + expert * 0x9E3779B1;
      for (bool found = false; !found; ++place) {
        place &= places - 1;
        const std::int32_t before = block.claim(table + place, value);
        const std::int64_t other = b.rows - before;
        found = before == 0 || (other >= b.offsets.data[expert] && other < b.offsets.data[expert + 1] &&
                                hashing.same(codes_of(other), own));
        if (found && before != 0) block.raise(table + place, value);
        if (found) b.bucket.data[row] = static_cast<std::int32_t>(place);
      }
    }
  }

 private:
  [[nodiscard]] GALVATRON_KERNEL const std::int32_t* codes_of(std::int64_t row) const {
    return codes + b.order.data[row] / b.active * hashing.hashes;
  }
};

/// bucket = the leader of each row.
struct FindLeaders {
  TokenBuckets b;
  const std::int32_t* table;
  GALVATRON_KERNEL void operator()(std::int64_t row) const {
    if (row < rows_of(b)) b.bucket.data[row] = static_cast<std::int32_t>(b.rows) - table[b.bucket.data[row]];
  }
};

/// ranks = the rows of the same leader before each; sizes = the rows of each leader, 0 for others. A warp a row, which
/// looks at those of its expert from the leader on.
struct RankRows {
  static constexpr int most_threads = 256;
  TokenBuckets b;
  std::int32_t* ranks;
  std::int32_t* sizes;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{rows_of(b), warp_threads};
    const std::int32_t* leaders = b.bucket.data;
    for (std::int64_t row = warps.first_row(block); row < warps.rows; row += warps.row_step(block)) {
      const std::int32_t leader = leaders[row];
      const std::int64_t end = leader == row ? b.offsets.data[expert_of(b, row) + 1] : row;
      int alike = 0;
      for (std::int64_t i = leader + warps.rank(block); i < end; i += warp_threads)
        alike += leaders[i] == leader ? 1 : 0;
      alike = warp_sum(block, alike);
      if (warps.rank(block) != 0) continue;
      ranks[row] = leader == row ? 0 : alike;
      sizes[row] = leader == row ? alike : 0;
    }
  }
};

/// Runs of rows in whole tiles, a block each.
struct LeaderRuns {
  static constexpr int tile = 256;
  static constexpr std::int64_t most = 256;  ///< runs
  TokenBuckets b;
  std::int32_t* sizes;  ///< become the numbers of the leaders' buckets

  /// Leaders, in the upper half, and their sizes.
  [[nodiscard]] GALVATRON_KERNEL std::uint64_t value(std::int64_t row, std::int64_t rows) const {
    const std::int32_t size = row < rows ? sizes[row] : 0;
    return size == 0 ? 0 : std::uint64_t{1} << 32 | static_cast<std::uint32_t>(size);
  }
  /// Calls each(row, rows) in all threads for the tiles of the block's run.
  GALVATRON_KERNEL void over(auto& block, const auto& each) const {
    const std::int64_t rows = rows_of(b);
    const std::int64_t tiles = (rows + tile - 1) / tile;
    const std::int64_t end = tiles * (block.index() + 1) / block.blocks();
    for (std::int64_t at = tiles * block.index() / block.blocks(); at < end; ++at)
      each(at * tile + block.thread(), rows);
  }
};

/// sums (runs + 1) of what is in the runs before, and in all.
struct SumLeaders {
  static constexpr int most_threads = LeaderRuns::tile;
  LeaderRuns runs;
  std::uint64_t* sums;
  std::uint32_t* ticket;

  GALVATRON_KERNEL void operator()(auto& block) const {
    std::uint64_t own = 0;
    runs.over(block, [&](std::int64_t row, std::int64_t rows) { own += runs.value(row, rows); });
    own = block_sum(block, own);
    if (block.thread() == 0) sums[block.index()] = own;
    if (!is_last_block(block, ticket, block.blocks())) return;
    const auto of_run = sums_of_threads(block, block.thread() < block.blocks() ? sums[block.thread()] : 0);
    if (block.thread() < block.blocks()) sums[block.thread()] = of_run.before;
    if (block.thread() == 0) sums[block.blocks()] = of_run.all;
  }
};

/// begins of the buckets, and the leaders' numbers instead of their sizes.
struct NumberLeaders {
  static constexpr int most_threads = LeaderRuns::tile;
  LeaderRuns runs;
  const std::uint64_t* sums;

  GALVATRON_KERNEL void operator()(auto& block) const {
    std::uint64_t before = sums[block.index()];
    runs.over(block, [&](std::int64_t row, std::int64_t rows) {
      const std::uint64_t own = runs.value(row, rows);
      const auto of_tile = sums_of_threads(block, own);
      if (own != 0) {
        const std::uint64_t here = before + of_tile.before;
        runs.sizes[row] = static_cast<std::int32_t>(here >> 32);
        runs.b.begins.data[here >> 32] = static_cast<std::int32_t>(here & 0xffffffffU);
      }
      before += of_tile.all;
    });
  }
};

/// bucket and members of rows, and behind the rows' places bounds of experts. The first row of an expert is a leader.
struct PlaceRows {
  TokenBuckets b;
  const std::int32_t* ranks;
  const std::int32_t* numbers;  ///< of leaders
  const std::uint64_t* all;     ///< leaders and rows
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const std::int32_t rows = rows_of(b);
    if (i < rows) {
      const std::int32_t bucket = numbers[b.bucket.data[i]];
      b.bucket.data[i] = bucket;
      b.members.data[b.begins.data[bucket] + ranks[i]] = static_cast<std::int32_t>(i);
    }
    const std::int64_t expert = i - b.rows;
    if (expert < 0) return;
    const auto buckets = static_cast<std::int32_t>(*all >> 32);
    const std::int32_t first = b.offsets.data[expert];
    b.bounds.data[expert] = first < rows ? numbers[first] : buckets;
    if (expert == b.experts) b.begins.data[buckets] = rows;
  }
};

/// Every row is a bucket; behind the rows' places and one more the bounds of experts.
struct SingleBuckets {
  TokenBuckets b;
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    const auto row = static_cast<std::int32_t>(i);
    if (row < rows_of(b)) b.bucket.data[row] = b.members.data[row] = row;
    if (row <= rows_of(b)) b.begins.data[row] = row;
    if (const std::int64_t expert = i - b.rows - 1; expert >= 0) b.bounds.data[expert] = b.offsets.data[expert];
  }
};

inline void single_buckets(auto& launcher, const TokenBuckets& b) {
  for_each(launcher, b.rows + 1 + b.experts + 1, SingleBuckets{b});
}

/// Throws DeviceFailure when the ranks of rows exceed the scratch memory.
inline void number_buckets(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets,
                           const kernels::CrossPolytope& hashing, const TokenBuckets& b, const std::int32_t* codes,
                           std::int32_t* table) {
  const std::int64_t of_sums = aligned_bytes((LeaderRuns::most + 1) * static_cast<std::int64_t>(sizeof(std::uint64_t)));
  const std::int64_t of_rows = aligned_bytes(b.rows * static_cast<std::int64_t>(sizeof(std::int32_t)));
  partials_within(scratch, of_sums + 2 * of_rows, 1);
  auto* sums = reinterpret_cast<std::uint64_t*>(scratch.data);
  auto* ranks = reinterpret_cast<std::int32_t*>(scratch.data + of_sums);
  auto* sizes = reinterpret_cast<std::int32_t*>(scratch.data + of_sums + of_rows);
  const std::int64_t places = TokenBuckets::table_places(b.rows);
  launcher.zero(table, places * static_cast<std::int64_t>(sizeof(std::int32_t)));
  const Geometry of_runs{.blocks = std::clamp<std::int64_t>(divide_up(b.rows, LeaderRuns::tile), 1, LeaderRuns::most),
                         .threads = LeaderRuns::tile};
  launcher.launch(over_items(b.rows), InsertRows{hashing, b, places, codes, table});
  for_each(launcher, b.rows, FindLeaders{b, table});
  launcher.launch(in_blocks(b.rows, warp_threads, RankRows::most_threads / warp_threads, 2048).geometry,
                  RankRows{b, ranks, sizes});
  const LeaderRuns runs{b, sizes};
  launcher.launch(of_runs, SumLeaders{runs, sums, tickets});
  launcher.launch(of_runs, NumberLeaders{runs, sums});
  for_each(launcher, b.rows + b.experts + 1, PlaceRows{b, ranks, sizes, sums + of_runs.blocks});
}

}  // namespace galvatron::device::cuda
