// Token and position tables, and means over the tokens of a sample.
//
// Gradients of a token table add up in a fixed order: the rows of a batch in the order of their tokens, and of equal
// tokens in their own. Rows are sorted in tiles in shared memory, by a bitonic network (Batcher 1968), and every row
// then finds its place in the whole by binary search in the other tiles. That takes no memory for the vocabulary, and
// hardly depends on how often a token occurs (padding may be half of all rows).
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/kernels/embedding.hpp>

namespace galvatron::device::cuda {

/// A row of a batch and the row of the table that its token reads, or the table's end. Ordered by entry, then by row.
struct TokenKey {
  std::uint64_t bits;

  GALVATRON_KERNEL static TokenKey of(std::int64_t entry, std::int64_t row) {
    return {static_cast<std::uint64_t>(entry) << 32 | static_cast<std::uint64_t>(row)};
  }
  [[nodiscard]] GALVATRON_KERNEL std::int64_t entry() const { return static_cast<std::int64_t>(bits >> 32); }
  [[nodiscard]] GALVATRON_KERNEL std::int64_t row() const { return static_cast<std::int64_t>(bits & 0xffffffffU); }
};

/// The keys of each tile of rows in order, a block a tile.
struct SortTokens {
  static constexpr int most_threads = 512;
  static constexpr int most_rows = 1024;
  std::int64_t rows;
  int tile;  ///< a power of two
  const std::int32_t* tokens;
  std::int64_t first, count;
  TokenKey* keys;

  GALVATRON_KERNEL void operator()(auto& block) const {
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

/// All keys in order, from tiles in order: a warp a key, which its lanes look for in the tiles.
struct MergeTokens {
  static constexpr int most_threads = 256;
  std::int64_t rows, tile;
  const TokenKey* keys;
  TokenKey* sorted;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const Teams warps{rows, warp_threads};
    for (std::int64_t i = warps.first_row(block); i < rows; i += warps.row_step(block)) {
      const std::uint64_t key = keys[i].bits;
      std::int64_t before = 0;
      for (std::int64_t begin = warps.rank(block) * tile; begin < rows; begin += warp_threads * tile) {
        const std::int64_t end = begin + tile < rows ? begin + tile : rows;
        before += first_where(begin, end, [&](std::int64_t at) { return keys[at].bits >= key; }) - begin;
      }
      before = warp_sum(block, before);
      if (warps.rank(block) == 0) sorted[before].bits = key;
    }
  }
};

/// sorted (rows) = the keys of all rows in order, for tokens [first, first + count); `keys` (rows) is scratch.
void sort_tokens(auto& launcher, std::int64_t rows, const std::int32_t* tokens, std::int64_t first, std::int64_t count,
                 TokenKey* keys, TokenKey* sorted) {
  const auto tile =
      static_cast<int>(std::min<std::uint64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)), SortTokens::most_rows));
  const std::int64_t tiles = divide_up(rows, tile);
  launcher.launch({.blocks = tiles,
                   .threads = std::clamp(tile / 2, warp_threads, SortTokens::most_threads),
                   .shared_bytes = tile * static_cast<std::int64_t>(sizeof(TokenKey))},
                  SortTokens{rows, tile, tokens, first, count, tiles > 1 ? keys : sorted});
  if (tiles > 1)
    launcher.launch(over_items(rows * warp_threads, MergeTokens::most_threads), MergeTokens{rows, tile, keys, sorted});
}

template <class T>
struct GatherTokens {
  std::int64_t hidden;
  bool packed;
  const std::int32_t* tokens;
  std::int64_t first, count;
  float scale;
  const T* table;
  T* out;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = i * Pack<T>::size;
    const std::int64_t entry = kernels::shard_row(tokens[row], first, count);
    const Pack<T> pack = entry >= 0 ? load_pack(table + entry * hidden, at, hidden, packed) : Pack<T>{};
    store_pack(Pack<T>::of([&](int j) { return scale * pack.get(j); }), out + row * hidden, at, hidden, packed);
  }
};

/// Adds up the gradients of equal tokens, of `chunk` keys a block, in a tile of columns. A token's first rows go to the
/// table; the sum of rows whose token began in an earlier chunk is kept, so that one block adds to a row of the table.
template <class T>
struct SumTokens {
  static constexpr int most_threads = 128;
  static constexpr int size = Pack<T>::size;
  static constexpr int at_once = 4;  ///< rows of input and output that a thread loads before it adds them
  static constexpr int parts = size / Pack<float>::size;
  std::int64_t rows, chunk, tiles, hidden;
  bool packed;
  std::int64_t count;
  float scale;
  const TokenKey* sorted;
  const T* dout;
  float* dtable;
  float* continued;  ///< (chunks - 1, hidden): of the chunks but the first

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t at = (block.index() % tiles * block.threads() + block.thread()) * size;
    const std::int64_t number = block.index() / tiles;
    if (at >= hidden) return;
    const std::int64_t begin = number * chunk;
    const std::int64_t end = begin + chunk < rows ? begin + chunk : rows;
    const std::int64_t first_entry = sorted[begin].entry();
    const bool goes_on = begin > 0 && sorted[begin - 1].entry() == first_entry;
    float sums[size] = {};
    for (std::int64_t from = begin; from < end; from += at_once) {
      TokenKey keys[at_once + 1];
      for (int i = 0; i <= at_once; ++i) keys[i] = sorted[from + i < end ? from + i : end - 1];
      Place to[at_once];
      Pack<T> packs[at_once];
      const auto row_of = [&](int i) {
        const std::int64_t entry = keys[i].entry();
        const bool counts = from + i < end && entry < count;
        const bool is_last = counts && (from + i + 1 >= end || keys[i + 1].entry() != entry);
        const bool is_kept = goes_on && entry == first_entry;
        to[i] = {is_kept ? continued + (number - 1) * hidden : dtable + (counts ? entry : 0) * hidden, is_last,
                 is_last && !is_kept};
        return RestOfRow<T>{dout + keys[i].row() * hidden + at, counts ? hidden - at : 0};
      };
      load_packs(packed, row_of, packs);
      Pack<float> before[at_once * parts];
      const auto sums_before = [&](int i) {
        const std::int64_t own = at + i % parts * Pack<float>::size;
        return RestOfRow<float>{to[i / parts].row + own, to[i / parts].adds ? hidden - own : 0};
      };
      load_packs(packed, sums_before, before);
      GALVATRON_UNROLL
      for (int i = 0; i < at_once; ++i) {
        for (int j = 0; j < size; ++j) sums[j] += scale * packs[i].get(j);
        if (!to[i].takes) continue;
        for (int p = 0; p < parts; ++p) {
          constexpr int width = Pack<float>::size;
          const auto all = Pack<float>::of([&](int j) { return before[i * parts + p].get(j) + sums[p * width + j]; });
          store_pack(all, to[i].row, at + p * width, hidden, packed);
        }
        for (int j = 0; j < size; ++j) sums[j] = 0;
      }
    }
  }

 private:
  /// Where the sum goes up to a row of the batch.
  struct Place {
    float* row;
    bool takes;  ///< the row is the last of its entry here
    bool adds;   ///< to what is there
  };
};

/// Adds what SumTokens kept to the table; the first of the chunks that a token goes on in takes all of them.
struct SumContinued {
  static constexpr int most_threads = 128;
  static constexpr int size = Pack<float>::size;
  std::int64_t chunks, chunk, tiles, hidden;
  bool packed;
  std::int64_t count;
  const TokenKey* sorted;
  const float* continued;
  float* dtable;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t at = (block.index() % tiles * block.threads() + block.thread()) * size;
    const std::int64_t number = block.index() / tiles + 1;
    const std::int64_t entry = sorted[number * chunk].entry();
    if (at >= hidden || entry >= count || !goes_on(number, entry) || (number > 1 && goes_on(number - 1, entry))) return;
    float sums[size] = {};
    for (std::int64_t i = number; i < chunks && goes_on(i, entry); ++i) {
      const auto pack = load_pack(continued + (i - 1) * hidden, at, hidden, packed);
      for (int j = 0; j < size; ++j) sums[j] += pack.get(j);
    }
    add_floats(sums, dtable + entry * hidden, at, hidden, packed);
  }

 private:
  /// True when a chunk's first row, and the row before it, read this entry.
  GALVATRON_KERNEL bool goes_on(std::int64_t number, std::int64_t entry) const {
    return sorted[number * chunk].entry() == entry && sorted[number * chunk - 1].entry() == entry;
  }
};

template <class T>
struct AddPosition {
  std::int64_t b, hidden, first_position;
  bool packed;
  const T* table;
  T* out;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = i * Pack<T>::size;
    T* to = out + row * hidden;
    const T* position = table + (first_position + row / b) * hidden;
    Pack<T> terms[2];
    load_packs(packed, [&](int of) { return RestOfRow<T>{(of == 0 ? to : position) + at, hidden - at}; }, terms);
    const auto sums = Pack<T>::of([&](int j) { return terms[0].get(j) + terms[1].get(j); });
    store_pack(sums, to, at, hidden, packed);
  }
};

/// `row` is a position: the sum over its samples.
template <class T>
struct SumPositions {
  std::int64_t rows, b, hidden, first_position;
  bool packed;
  const T* dout;
  float* dtable;
  GALVATRON_KERNEL void operator()(std::int64_t position, std::int64_t i) const {
    const std::int64_t at = i * Pack<T>::size;
    const std::int64_t end = (position + 1) * b < rows ? (position + 1) * b : rows;
    float sums[Pack<T>::size] = {};
    for (std::int64_t row = position * b; row < end; ++row) {
      const Pack<T> pack = load_pack(dout + row * hidden, at, hidden, packed);
      for (int j = 0; j < Pack<T>::size; ++j) sums[j] += pack.get(j);
    }
    add_floats(sums, dtable + (first_position + position) * hidden, at, hidden, packed);
  }
};

template <class T>
struct SpreadMean {
  std::int64_t columns;
  bool packed;
  float scale;
  const T* dout;
  T* dx;
  GALVATRON_KERNEL void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t at = i * Pack<T>::size;
    const Pack<T> pack = load_pack(dout, at, columns, packed);
    const auto scaled = Pack<T>::of([&](int j) { return scale * pack.get(j); });
    store_pack(scaled, dx + row * columns, at, columns, packed);
  }
};

template <class T>
void embedding_forward(auto& launcher, std::int64_t rows, std::int64_t hidden, const std::int32_t* tokens,
                       std::int64_t first, std::int64_t count, float scale, const T* table, T* out) {
  for_rows(launcher, rows, divide_up(hidden, Pack<T>::size),
           GatherTokens<T>{hidden, is_packed<T>(hidden, table, out), tokens, first, count, scale, table, out});
}

/// Rows are sorted by token, and sums of equal tokens taken chunk by chunk, so that a token of many rows keeps many
/// blocks busy. Throws DeviceFailure when the scratch memory cannot hold the keys of a few rows.
template <class T>
void embedding_backward(auto& launcher, View<std::byte> scratch, std::int64_t rows, std::int64_t hidden,
                        const std::int32_t* tokens, std::int64_t first, std::int64_t count, float scale, const T* dout,
                        float* dtable) {
  using Kernel = SumTokens<T>;
  constexpr std::int64_t least_chunk = 32;
  constexpr std::int64_t keys_bytes = 2 * sizeof(TokenKey);  // of a row
  if (hidden == 0 || count == 0) return;
  const bool packed = is_packed<T>(hidden, dout, dtable, scratch.data);
  const std::int64_t packs = divide_up(hidden, Pack<T>::size);
  // A run of rows takes up to half of the memory for its keys; its cost is linear in them.
  const std::int64_t most = std::min<std::int64_t>(std::int64_t{64} << 10, scratch.count / (2 * keys_bytes));
  partials_within(scratch, 2 * keys_bytes, 1);
  for (std::int64_t done = 0; done < rows; done += most) {
    const std::int64_t now = std::min(most, rows - done);
    auto* keys = reinterpret_cast<TokenKey*>(scratch.data);
    TokenKey* sorted = keys + now;
    auto* continued = reinterpret_cast<float*>(sorted + now);
    const std::int64_t kept = (scratch.count - now * keys_bytes) / (hidden * static_cast<std::int64_t>(sizeof(float)));
    const std::int64_t chunk = std::max(least_chunk, divide_up(now, kept + 1));
    const std::int64_t chunks = divide_up(now, chunk);
    sort_tokens(launcher, now, tokens + done, first, count, keys, sorted);
    Geometry geometry = over_rows(1, packs, Kernel::most_threads);
    const std::int64_t tiles = divide_up(packs, geometry.threads);
    geometry.blocks = chunks * tiles;
    launcher.launch(geometry, Kernel{now, chunk, tiles, hidden, packed, count, scale, sorted, dout + done * hidden,
                                     dtable, continued});
    if (chunks == 1) continue;
    const std::int64_t float_packs = divide_up(hidden, SumContinued::size);
    geometry = over_rows(1, float_packs, SumContinued::most_threads);
    const std::int64_t column_tiles = divide_up(float_packs, geometry.threads);
    geometry.blocks = (chunks - 1) * column_tiles;
    launcher.launch(geometry,
                    SumContinued{chunks, chunk, column_tiles, hidden, packed, count, sorted, continued, dtable});
  }
}

template <class T>
void position_forward(auto& launcher, std::int64_t rows, std::int64_t b, std::int64_t hidden,
                      std::int64_t first_position, const T* table, T* out) {
  for_rows(launcher, rows, divide_up(hidden, Pack<T>::size),
           AddPosition<T>{b, hidden, first_position, is_packed<T>(hidden, table, out), table, out});
}

template <class T>
void position_backward(auto& launcher, std::int64_t rows, std::int64_t b, std::int64_t hidden,
                       std::int64_t first_position, const T* dout, float* dtable) {
  if (rows == 0) return;
  for_rows(launcher, divide_up(rows, b), divide_up(hidden, Pack<T>::size),
           SumPositions<T>{rows, b, hidden, first_position, is_packed<T>(hidden, dout, dtable), dout, dtable});
}

template <class T>
void pool_forward(auto& launcher, std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, const T* x,
                  T* out) {
  if (b * hidden > 0) column_sums(launcher, tokens, b * hidden, 1, x, PutSums<T>{b * hidden, scale, out});
}

template <class T>
void pool_backward(auto& launcher, std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, const T* dout,
                   T* dx) {
  const std::int64_t columns = b * hidden;
  for_rows(launcher, tokens, divide_up(columns, Pack<T>::size),
           SpreadMean<T>{columns, is_packed<T>(columns, dout, dx), scale, dout, dx});
}

}  // namespace galvatron::device::cuda
