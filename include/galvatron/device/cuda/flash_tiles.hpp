// What flash attention is to compute, for samples, windows of images or packed documents, and the tiles of a block.
//
// A query sees one run of keys in each case but that of windows of images. Of packed documents both ends of it grow
// with the query, so that the ends of a tile's first and last query say which keys the tile needs:
//
//   keys ->       0   3       9     13    documents of 3, 6 and 4 rows; a tile of queries 2 .. 7 sees keys 0 .. 7,
//   queries 0   [ \ ]                     and none of the last document
//           3       [   \   ]
//           9               [  \  ]
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/flash_products.hpp>
#include <galvatron/device/cuda/pack.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/softmax.hpp>

namespace galvatron::device::cuda {

/// Where a token of a window is: biases go by differences of `code`, and only tokens of one side see each other.
struct WindowMark {
  int code, side;
};

/// The keys that a query of a packed document sees. Both ends grow with the query.
struct KeyRange {
  int first, end;
};

/// What a block notes of a token of a tile.
union TokenMark {
  WindowMark window;
  KeyRange keys;
};

/// Documents [first, last) of a packed sequence.
struct DocumentRange {
  int first = 0, last = 0;
};

/// Of a query: its log-sum in log 2, and the row sum of o * d_o.
struct QueryStatistics {
  float lse, delta;
};

/// What a block of a kernel works on.
struct FlashBlock {
  int unit, head, tile;
};

/// A tile of a head's queries.
struct QueryTile {
  int unit, head, kv_head, first;
  int first_key, end;       ///< of the keys that they see
  DocumentRange documents;  ///< that have them
};

/// A tile of keys of packed documents: these have it, and the queries from `first_query` to `end` see some of it.
struct KeyTile {
  DocumentRange documents;
  int first_query, end;
};

/// Rows of tensors are tokens of the whole problem; see AttentionShape, WindowShape and AttentionBias.
template <class T>
struct FlashProblem {
  int first_unit = 0, units = 0;  ///< that the kernels work on
  int batch = 0;
  int queries = 0, keys = 0;  ///< of a unit
  int heads = 0, kv_heads = 0, head_dim = 0;
  float score_factor = 1;
  float score_cap = 0;  ///< of samples and packed documents, without biases
  bool causal = false;
  int sliding_window = 0;  ///< see AttentionShape
  bool packed = false;     ///< rows of heads are whole packs, in memory too
  std::int64_t q_stride = 0, kv_stride = 0, out_stride = 0, dq_stride = 0, dkv_stride = 0;
  std::int64_t lse_stride = 0, delta_stride = 0;
  const float* bias = nullptr;  ///< null: none
  std::int64_t bias_head = 0, bias_query = 0;
  int window = 0;  ///< 0: a unit is a sample, else a window
  int side = 0, shift = 0;
  const T* table = nullptr;  ///< of a window's biases
  int documents = 0;         ///< in the one sample; 0: queries see the keys of their unit
  const std::int32_t *document_queries = nullptr, *document_keys = nullptr;  ///< see DocumentRows
  // The tensors that forward reads, and those that backward needs beside them.
  const T *q = nullptr, *k = nullptr, *v = nullptr, *d_o = nullptr;
  const float* lse = nullptr;
  float* delta = nullptr;

  [[nodiscard]] GALVATRON_KERNEL float scale() const { return score_factor / std::sqrt(static_cast<float>(head_dim)); }
  [[nodiscard]] GALVATRON_KERNEL int group() const { return heads / kv_heads; }

  /// The work of a block, with `tiles` tiles of every head of every unit.
  [[nodiscard]] GALVATRON_KERNEL FlashBlock block_of(std::int64_t index, int heads_of_unit, int tiles) const {
    const auto pair = static_cast<int>(index / tiles);
    return {first_unit + pair / heads_of_unit, pair % heads_of_unit, static_cast<int>(index % tiles)};
  }

  /// The tile of a block that has `rows` queries, those that see the most keys first; and the number of such blocks.
  [[nodiscard]] GALVATRON_KERNEL QueryTile query_tile(std::int64_t index, int rows) const {
    const int tiles = (queries + rows - 1) / rows;
    const FlashBlock at = block_of(index, heads, tiles);
    const int first = (tiles - 1 - at.tile) * rows;
    QueryTile out{at.unit, at.head,           at.head / group(),
                  first,   first_seen(first), causal && first + rows < keys ? first + rows : keys,
                  {}};
    if (documents == 0) return out;
    const int last = (first + rows < queries ? first + rows : queries) - 1;
    out.documents = documents_of(document_queries, first, last);
    out.first_key = keys_of(out.documents.first, first).first;
    out.end = keys_of(out.documents.last - 1, last).end;
    return out;
  }
  /// The `rows` keys from `first` on, which exists.
  [[nodiscard]] GALVATRON_KERNEL KeyTile key_tile(int first, int rows, int columns) const {
    if (documents == 0) {
      const int end = first + rows - 1 + sliding_window;
      return {{}, causal ? first / columns * columns : 0, sliding_window > 0 && end < queries ? end : queries};
    }
    const DocumentRange range = documents_of(document_keys, first, (first + rows < keys ? first + rows : keys) - 1);
    const int before = causal ? first - document_keys[range.first] : 0;
    return {range, document_queries[range.first] + before, document_queries[range.last]};
  }

  /// The documents of rows `first` to `last`, by their cumulative lengths.
  [[nodiscard]] GALVATRON_KERNEL DocumentRange documents_of(const std::int32_t* lengths, int first, int last) const {
    const int begin = document_of(lengths, first, {0, documents});
    return {begin, document_of(lengths, last, {begin, documents}) + 1};
  }
  /// The one of `range` that has the row, which exists.
  [[nodiscard]] GALVATRON_KERNEL int document_of(const std::int32_t* lengths, int row,
                                                 const DocumentRange& range) const {
    return static_cast<int>(
        first_where(range.first, range.last - 1, [&](std::int64_t i) { return lengths[i + 1] > row; }));
  }
  /// The first key that a query sees, of those from 0 on.
  [[nodiscard]] GALVATRON_KERNEL int first_seen(int query) const {
    return sliding_window > 0 && query >= sliding_window ? query - sliding_window + 1 : 0;
  }
  /// What a query of a document sees.
  [[nodiscard]] GALVATRON_KERNEL KeyRange keys_of(int document, int query) const {
    const int first = document_keys[document];
    const int own = query - document_queries[document];
    return {first + first_seen(own), causal ? first + own + 1 : document_keys[document + 1]};
  }
  [[nodiscard]] std::int64_t query_tiles(int rows) const { return divide_up(queries, rows) * heads * units; }

  /// The sample of a unit.
  [[nodiscard]] GALVATRON_KERNEL int sample_of(int unit) const {
    return window == 0 ? unit : unit / (side / window * (side / window));
  }
  /// The place of a unit's token among those of its sample.
  [[nodiscard]] GALVATRON_KERNEL int token_of(int unit, int token) const {
    if (window == 0) return token;
    const int across = side / window;
    const int at = unit % (across * across);
    const int y = (at / across * window + shift + token / window) % side;
    const int x = (at % across * window + shift + token % window) % side;
    return y * side + x;
  }
  /// Its row in tensors.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t row(int unit, int token) const {
    return static_cast<std::int64_t>(token_of(unit, token)) * batch + sample_of(unit);
  }
  /// Its place in lse.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t lse_at(int unit, int head, int token) const {
    return (static_cast<std::int64_t>(sample_of(unit)) * heads + head) * lse_stride + token_of(unit, token);
  }
  /// Its place in delta, which begins at the first unit.
  [[nodiscard]] GALVATRON_KERNEL std::int64_t delta_at(int unit, int head, int token) const {
    return (static_cast<std::int64_t>(unit - first_unit) * heads + head) * delta_stride + token;
  }

  [[nodiscard]] GALVATRON_KERNEL WindowMark mark(int unit, int token) const {
    const int across = side / window;
    const int at = unit % (across * across);
    const int y = token / window;
    const int x = token % window;
    const int below = at / across * window + shift + y >= side ? 2 : 0;
    const int beyond = at % across * window + shift + x >= side ? 1 : 0;
    return {y * (2 * window - 1) + x, below + beyond};
  }
  /// Marks `count` tokens of a tile of windows.
  GALVATRON_KERNEL void mark_tile(auto& block, int unit, int first, int count, TokenMark* marks) const {
    if (window == 0) return;
    for (int i = block.thread(); i < count; i += block.threads()) marks[i].window = mark(unit, first + i);
  }
  /// Marks those of `count` queries of packed documents that exist. Queries before `range` are not asked for, those
  /// behind it see no key of the tile.
  GALVATRON_KERNEL void mark_queries(auto& block, const DocumentRange& range, int first, int count,
                                     TokenMark* marks) const {
    if (documents == 0) return;
    for (int i = block.thread(); i < count && first + i < queries; i += block.threads())
      marks[i].keys = first + i < document_queries[range.last]
                          ? keys_of(document_of(document_queries, first + i, range), first + i)
                          : KeyRange{keys, keys};
  }

  /// True when none of `query_count` queries sees one of `key_count` keys, as far as it is known without looking at
  /// each; `marks` are those of the queries.
  [[nodiscard]] GALVATRON_KERNEL bool is_apart(int first_query, int query_count, int first_key, int key_count,
                                               const TokenMark* marks) const {
    if (first_query >= queries || first_key >= keys) return true;
    if (documents == 0)
      return causal && (first_key >= first_query + query_count || first_key + key_count <= first_seen(first_query));
    const int last = first_query + query_count <= queries ? query_count - 1 : queries - first_query - 1;
    return first_key >= marks[last].keys.end || first_key + key_count <= marks[0].keys.first;
  }
  /// True when all these queries see all these keys, and without biases.
  [[nodiscard]] GALVATRON_KERNEL bool is_plain(int first_query, int query_count, int first_key, int key_count,
                                               const TokenMark* marks) const {
    if (bias != nullptr || window > 0 || first_query + query_count > queries || first_key + key_count > keys)
      return false;
    if (documents > 0)
      return marks[query_count - 1].keys.first <= first_key && first_key + key_count <= marks[0].keys.end;
    return !causal ||
           (first_key + key_count <= first_query + 1 && first_seen(first_query + query_count - 1) <= first_key);
  }
  /// What is added to a score, in log 2; -infinity where the query does not see the key or one of them does not exist.
  [[nodiscard]] GALVATRON_KERNEL float added(int head, int query, int key, const TokenMark* at_query,
                                             const TokenMark* at_key) const {
    constexpr float unseen = -std::numeric_limits<float>::infinity();
    if (query >= queries || key >= keys) return unseen;
    if (documents > 0) return key >= at_query->keys.first && key < at_query->keys.end ? 0.0F : unseen;
    if (causal && (key > query || key < first_seen(query))) return unseen;
    if (window > 0) {
      if (at_query->window.side != at_key->window.side) return unseen;
      const int entry = at_query->window.code - at_key->window.code + 2 * window * (window - 1);
      return kernels::get(table[static_cast<std::int64_t>(entry) * heads + head]) * kernels::log2_e;
    }
    return bias == nullptr ? 0.0F : bias[head * bias_head + query * bias_query + key] * kernels::log2_e;
  }

  /// In log 2.
  [[nodiscard]] GALVATRON_KERNEL float cap() const { return score_cap * kernels::log2_e; }

  /// Products of a warp's rows and a tile's columns become scores in log 2; rows are keys and columns queries where
  /// `across`.
  template <bool across, int N>
  GALVATRON_KERNEL void to_scores(auto& block, const auto& tiles, int head, int first_row, int first_column,
                                  float (&s)[N][4]) const {
    const TokenMark* const rows = tiles.row_marks() + 16 * (block.thread() / warp_threads);
    const TokenMark* const columns = tiles.column_marks();
    const float factor = scale() * kernels::log2_e;
    const bool plain = across ? is_plain(first_column, 8 * N, first_row, 16, columns)
                              : is_plain(first_row, 16, first_column, 8 * N, rows);
    const int lane = block.thread() % warp_threads;
    GALVATRON_UNROLL
    for (int j = 0; j < N; ++j)
      for (int i = 0; i < 4; ++i) {
        kernels::soft_cap(s[j][i] * factor, cap(), s[j][i]);
        if (plain) continue;
        const int row = lane / 4 + i / 2 * 8;
        const int column = 8 * j + lane % 4 * 2 + i % 2;
        s[j][i] += across ? added(head, first_column + column, first_row + row, columns + column, rows + row)
                          : added(head, first_row + row, first_column + column, rows + row, columns + column);
      }
  }

  /// Tiles (rows, D) of a head's queries from `first` on, of their d_o unless that is null, and their marks, for which
  /// `range` has the documents.
  template <int D>
  GALVATRON_KERNEL void load_queries(auto& block, int unit, int head, int first, int rows, T* to, T* to_d_o,
                                     TokenMark* marks, const DocumentRange& range = {}) const {
    load<D>(block, unit, head, first, rows, queries, q, q_stride, to);
    if (to_d_o != nullptr) load<D>(block, unit, head, first, rows, queries, d_o, out_stride, to_d_o);
    mark_tile(block, unit, first, rows, marks);
    mark_queries(block, range, first, rows, marks);
  }
  /// The same of keys and of their values.
  template <int D>
  GALVATRON_KERNEL void load_keys(auto& block, int unit, int kv_head, int first, int rows, T* to, T* to_values,
                                  TokenMark* marks) const {
    load<D>(block, unit, kv_head, first, rows, keys, k, kv_stride, to);
    load<D>(block, unit, kv_head, first, rows, keys, v, kv_stride, to_values);
    mark_tile(block, unit, first, rows, marks);
  }
  /// Of queries from `first` on; 0 for those that do not exist.
  GALVATRON_KERNEL void load_statistics(auto& block, int unit, int head, int first, int rows,
                                        QueryStatistics* to) const {
    for (int i = block.thread(); i < rows; i += block.threads()) {
      to[i] = {0.0F, 0.0F};
      if (first + i < queries)
        to[i] = {lse[lse_at(unit, head, first + i)] * kernels::log2_e, delta[delta_at(unit, head, first + i)]};
    }
  }

  // to (rows, D) = a head's columns of tokens `first` on of a unit; 0 beyond `tokens` and beyond head_dim.
  template <int D>
  GALVATRON_KERNEL void load(auto& block, int unit, int head, int first, int rows, int tokens, const T* from,
                             std::int64_t stride, T* to) const {
    constexpr int size = Pack<T>::size;
    for (int i = block.thread(); i < rows * (D / size); i += block.threads()) {
      const int r = i / (D / size);
      const int c = i % (D / size) * size;
      Pack<T> pack{};
      if (first + r < tokens && c < head_dim)
        pack = load_pack(from + row(unit, first + r) * stride + head * head_dim, c, head_dim, packed);
      pack.store(to + r * tile_stride<T, D> + c);
    }
  }
};

/// The tiles of a block: `own` tensors of rows that it keeps, 16 a warp, and two of columns that pass by.
template <class T, int D, int warps_, int columns_, int own>
struct FlashTiles {
  static constexpr int warps = warps_;
  static constexpr int threads = warps * warp_threads;
  static constexpr int rows = 16 * warps;
  static constexpr int columns = columns_;
  static constexpr int pieces = columns / 8;
  static constexpr int stride = tile_stride<T, D>;
  static constexpr int warp_room = sizeof(T) == 4 ? 16 * room_stride<pieces> : 0;
  static constexpr int statistics = rows > columns ? rows : columns;
  static constexpr std::int64_t bytes = (own * rows + 2 * columns) * stride * static_cast<std::int64_t>(sizeof(T)) +
                                        warps * warp_room * static_cast<std::int64_t>(sizeof(float)) +
                                        (rows + columns) * static_cast<std::int64_t>(sizeof(TokenMark)) +
                                        statistics * static_cast<std::int64_t>(sizeof(QueryStatistics));
  static_assert(bytes <= (99 << 10) - 512, "galvatron: a block of every GPU since Ampere has 99 KiB of shared memory");

  static constexpr Geometry geometry(std::int64_t blocks) {
    return {.blocks = blocks, .threads = threads, .shared_bytes = bytes};
  }

  GALVATRON_KERNEL explicit FlashTiles(std::byte* shared) : kept(reinterpret_cast<T*>(shared)) {}
  [[nodiscard]] GALVATRON_KERNEL T* keeps(int tensor) const { return kept + tensor * rows * stride; }
  [[nodiscard]] GALVATRON_KERNEL T* passes(int tensor) const { return kept + (own * rows + tensor * columns) * stride; }
  [[nodiscard]] GALVATRON_KERNEL float* room(int warp) const {
    return reinterpret_cast<float*>(passes(2)) + warp * warp_room;
  }
  [[nodiscard]] GALVATRON_KERNEL TokenMark* row_marks() const { return reinterpret_cast<TokenMark*>(room(warps)); }
  [[nodiscard]] GALVATRON_KERNEL TokenMark* column_marks() const { return row_marks() + rows; }
  [[nodiscard]] GALVATRON_KERNEL QueryStatistics* of_queries() const {
    return reinterpret_cast<QueryStatistics*>(column_marks() + columns);
  }

  T* kept;
};

/// Tiles that fit into shared memory and registers, by the bytes of a head.
constexpr int forward_columns(int head_bytes) { return head_bytes <= 256 ? 64 : head_bytes <= 512 ? 32 : 16; }
template <class T, int D, int bytes = D * static_cast<int>(sizeof(T))>
using ForwardTiles = FlashTiles<T, D, bytes <= 512 ? 4 : 2, forward_columns(bytes), 1>;

constexpr int backward_columns(int head_dim, int head_bytes) {
  return head_bytes == 128 && head_dim == 64 ? 64 : head_bytes <= 512 ? 32 : 8;
}
template <class T, int D, int bytes = D * static_cast<int>(sizeof(T))>
using BackwardTiles = FlashTiles<T, D, bytes <= 256 ? 4 : 2, backward_columns(D, bytes), 2>;

/// The problem of ordinary attention, without gradients of biases; `addresses` are those of the other tensors of T.
template <class T>
FlashProblem<T> flash_problem(const AttentionShape& s, const AttentionBias& bias, const T* q, const T* k, const T* v,
                              const auto*... addresses) {
  FlashProblem<T> problem{
      .units = static_cast<int>(s.batch),
      .batch = static_cast<int>(s.batch),
      .queries = static_cast<int>(s.queries),
      .keys = static_cast<int>(s.keys),
      .heads = static_cast<int>(s.heads),
      .kv_heads = static_cast<int>(s.kv_heads),
      .head_dim = static_cast<int>(s.head_dim),
      .score_factor = s.score_factor,
      .score_cap = s.score_cap,
      .causal = s.causal,
      .sliding_window = static_cast<int>(s.sliding_window),
      // All are multiples of a power of two when their bits together are.
      .packed = is_packed<T>(s.head_dim | s.q_stride | s.kv_stride | s.out_stride | s.dq_row() | s.dkv_row(), q, k, v,
                             addresses...),
      .q_stride = s.q_stride,
      .kv_stride = s.kv_stride,
      .out_stride = s.out_stride,
      .dq_stride = s.dq_row(),
      .dkv_stride = s.dkv_row(),
      .lse_stride = s.lse_row(),
      .delta_stride = s.lse_row(),
      .q = q,
      .k = k,
      .v = v};
  if (!bias.values.empty()) {
    problem.bias = bias.values.data + bias.first;
    problem.bias_head = bias.head;
    problem.bias_query = bias.query;
  }
  return problem;
}

/// Calls the template f with the width of tiles for heads of head_dim elements. Throws DeviceFailure.
void with_head_width(std::int64_t head_dim, const auto& f) {
  if (head_dim > 256)
    throw DeviceFailure("the GPU's attention has heads of at most 256 elements, not " + std::to_string(head_dim));
  if (head_dim > 128) return f.template operator()<256>();
  if (head_dim > 64) return f.template operator()<128>();
  if (head_dim > 32) return f.template operator()<64>();
  return f.template operator()<32>();
}

}  // namespace galvatron::device::cuda
