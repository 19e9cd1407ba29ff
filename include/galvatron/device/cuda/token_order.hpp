// The rows of a batch in the order of their tokens, and of equal tokens in their own order.
//
// With it, gradients of a token table add up in a fixed order, whatever blocks run when. Rows are sorted in tiles in
// shared memory, by a bitonic network (Batcher 1968), and every row then finds its place in the whole by binary search
// in the other tiles. That takes two kernels and no memory for the vocabulary, and hardly depends on how often a token
// occurs (padding may be half of all rows).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/kernels/embedding.hpp>

namespace galvatron::device::cuda {

/// A row of a batch and the row of the table that its token reads, or the end of the table when that is elsewhere. Keys
/// are ordered by entry, then by row; all are different.
struct TokenKey {
  std::uint64_t bits;

  GALVATRON_KERNEL static TokenKey of(std::int64_t entry, std::int64_t row) {
    return {static_cast<std::uint64_t>(entry) << 32 | static_cast<std::uint64_t>(row)};
  }
  [[nodiscard]] GALVATRON_KERNEL std::int64_t entry() const { return static_cast<std::int64_t>(bits >> 32); }
  [[nodiscard]] GALVATRON_KERNEL std::int64_t row() const { return static_cast<std::int64_t>(bits & 0xffffffffU); }
};

namespace detail {

/// The keys of each tile of rows in order, a block a tile.
struct SortTokens {
  static constexpr int most_threads = 1024;
  static constexpr int most_rows = 4096;
  std::int64_t rows;
  int tile;  ///< a power of two
  const std::int32_t* tokens;
  std::int64_t first;
  std::int64_t count;
  TokenKey* keys;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    auto* sorted = reinterpret_cast<std::uint64_t*>(block.shared());  // (tile)
    const std::int64_t begin = block.index() * tile;
    const auto size = static_cast<int>(rows - begin < tile ? rows - begin : tile);
    for (int i = block.thread(); i < tile; i += block.threads()) {
      sorted[i] = ~std::uint64_t{0};
      if (i >= size) continue;
      const std::int64_t entry = kernels::shard_row(tokens[begin + i], first, count);
      sorted[i] = TokenKey::of(entry < 0 ? count : entry, begin + i).bits;
    }
    block.sync();
    for (int width = 2; width <= tile; width *= 2)
      for (int distance = width / 2; distance > 0; distance /= 2) {
        for (int i = block.thread(); i < tile / 2; i += block.threads()) {
          const int low = (i & ~(distance - 1)) * 2 + (i & (distance - 1));
          const std::uint64_t a = sorted[low];
          const std::uint64_t b = sorted[low + distance];
          const bool ascending = (low & width) == 0;
          if ((a > b) == ascending) {
            sorted[low] = b;
            sorted[low + distance] = a;
          }
        }
        block.sync();
      }
    for (int i = block.thread(); i < size; i += block.threads()) keys[begin + i].bits = sorted[i];
  }
};

/// All keys in order, from tiles in order.
struct MergeTokens {
  static constexpr int most_threads = 256;
  std::int64_t rows;
  std::int64_t tile;
  const TokenKey* keys;
  TokenKey* sorted;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t i = block.index() * block.threads() + block.thread(); i < rows; i += step) {
      const std::uint64_t key = keys[i].bits;
      const std::int64_t own = i / tile * tile;
      std::int64_t place = i - own;
      for (std::int64_t begin = 0; begin < rows; begin += tile) {
        if (begin == own) continue;
        std::int64_t low = begin;
        std::int64_t high = begin + tile < rows ? begin + tile : rows;
        while (low < high) {
          const std::int64_t middle = (low + high) / 2;
          if (keys[middle].bits < key)
            low = middle + 1;
          else
            high = middle;
        }
        place += low - begin;
      }
      sorted[place].bits = key;
    }
  }
};

}  // namespace detail

/// sorted (rows) = the keys of all rows in order, for tokens [first, first + count); `keys` (rows) is scratch.
template <class L>
void sort_tokens(L& launcher, std::int64_t rows, const std::int32_t* tokens, std::int64_t first, std::int64_t count,
                 TokenKey* keys, TokenKey* sorted) {
  const auto tile = static_cast<int>(
      std::min<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)), detail::SortTokens::most_rows));
  const std::int64_t tiles = divide_up(rows, tile);
  launcher.launch({.blocks = tiles,
                   .threads = std::clamp(tile / 2, warp_threads, detail::SortTokens::most_threads),
                   .shared_bytes = tile * static_cast<std::int64_t>(sizeof(TokenKey))},
                  detail::SortTokens{rows, tile, tokens, first, count, tiles > 1 ? keys : sorted});
  if (tiles > 1) launcher.launch(over_items(rows), detail::MergeTokens{rows, tile, keys, sorted});
}

}  // namespace galvatron::device::cuda
