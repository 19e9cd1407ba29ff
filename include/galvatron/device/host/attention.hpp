// Flash attention on the host (Dao et al. 2022): blocks of queries against blocks of keys, the softmax of a row kept up
// while its keys pass by; no (S, S) matrix.
//
//   keys ->        0    96   192      One unit of work is a block of 96 queries of one sample and key/value head,
//   queries 0    [ \ ]                with all query heads that share it. Blocks right of the diagonal are skipped
//          96    [   ][ \ ]           (causal), on the diagonal each group of six rows stops at its own vector.
//         192    [   ][   ][ \ ]          So are blocks that end before a sliding window begins.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>

#include <galvatron/core/error.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/tile.hpp>
#include <galvatron/device/kernels/softmax.hpp>

namespace galvatron::device::host {

inline constexpr std::int64_t query_block = 96;
inline constexpr std::int64_t key_block = 96;
inline constexpr std::int64_t longest_head = 256;

/// Hands out pieces of a thread's scratch memory; null, and less than nothing is left, once that is too small.
class ScratchFloats {
 public:
  explicit ScratchFloats(View<std::byte> bytes) : next_(reinterpret_cast<float*>(bytes.data)), left_(bytes.count / 4) {}
  /// @tparam E  as large as a float
  template <class E = float>
  E* take(std::int64_t count) {
    static_assert(sizeof(E) == sizeof(float));
    count = round_up(count, 16);
    left_ -= count;
    return left_ < 0 ? nullptr : reinterpret_cast<E*>(std::exchange(next_, next_ + count));
  }
  [[nodiscard]] std::int64_t left() const { return left_; }

 private:
  float* next_;
  std::int64_t left_;
};

/// Where the heads of a tensor's rows lie.
struct HeadRows {
  std::int64_t batch;
  std::int64_t head_dim;
  std::int64_t stride;  ///< elements between rows

  [[nodiscard]] std::int64_t at(std::int64_t token, std::int64_t sample, std::int64_t head) const {
    return (token * batch + sample) * stride + head * head_dim;
  }
  /// Elements between a sample's successive tokens.
  [[nodiscard]] std::int64_t step() const { return batch * stride; }
};

/// Where the parts of an attention lie; see AttentionShape.
struct AttentionLayout {
  AttentionShape shape;
  HeadRows q, kv, dq, dkv, out;
  std::int64_t width;  ///< head_dim padded to tile columns
  std::int64_t group;  ///< query heads per key/value head
  std::int64_t query_blocks;
  std::int64_t key_blocks;

  explicit AttentionLayout(const AttentionShape& s)
      : shape(s),
        q{s.batch, s.head_dim, s.q_stride},
        kv{s.batch, s.head_dim, s.kv_stride},
        dq{s.batch, s.head_dim, s.dq_row()},
        dkv{s.batch, s.head_dim, s.dkv_row()},
        out{s.batch, s.head_dim, s.out_stride},
        width(round_up(s.head_dim, tile_columns)),
        group(s.heads / s.kv_heads),
        query_blocks(divide_up(s.queries, query_block)),
        key_blocks(divide_up(s.keys, key_block)) {
    if (s.head_dim > longest_head)
      throw DeviceFailure("the host's attention has heads of at most " + std::to_string(longest_head) +
                          " elements, not " + std::to_string(s.head_dim));
  }
  [[nodiscard]] std::int64_t lse_offset(std::int64_t token, std::int64_t sample, std::int64_t head) const {
    return (sample * shape.heads + head) * shape.lse_row() + token;
  }
  /// The first key that query `token` sees.
  [[nodiscard]] std::int64_t first_visible(std::int64_t token) const {
    return shape.sliding_window > 0 ? std::max<std::int64_t>(0, token - shape.sliding_window + 1) : 0;
  }
  /// The first block of keys that a block of queries sees.
  [[nodiscard]] std::int64_t first_visible_block(std::int64_t block) const {
    return first_visible(block * query_block) / key_block;
  }
  /// Where those end.
  [[nodiscard]] std::int64_t visible_blocks(std::int64_t block) const {
    if (!shape.causal) return key_blocks;
    return std::min(key_blocks, divide_up(std::min(shape.queries, (block + 1) * query_block), key_block));
  }
  /// Keys of the block at `first_key`: key_block, or what is left.
  [[nodiscard]] std::int64_t keys_of(std::int64_t first_key) const {
    return std::min(key_block, shape.keys - first_key);
  }
  /// Of the block at `first_key`, the keys before which query `token` sees none, between 0 and key_block.
  [[nodiscard]] std::int64_t unseen_keys(std::int64_t token, std::int64_t first_key) const {
    return std::clamp<std::int64_t>(first_visible(token) - first_key, 0, key_block);
  }
  /// Of the block at `first_key`, where the keys that query `token` sees end, between 0 and key_block.
  [[nodiscard]] std::int64_t visible_keys(std::int64_t token, std::int64_t first_key) const {
    const std::int64_t there = keys_of(first_key);
    if (!shape.causal) return there;
    return std::clamp<std::int64_t>(token - first_key + 1, 0, there);
  }
};

/// The biases of a block of queries of one head and a block of keys; null where there are none.
struct BiasRows {
  const float* values = nullptr;  ///< of the first query and the first key
  float* gradient = nullptr;
  std::int64_t row = 0;  ///< from one query to the next

  BiasRows(const AttentionBias& bias, std::int64_t head, std::int64_t query, std::int64_t key) : row(bias.query) {
    const std::int64_t at = bias.first + head * bias.head + query * bias.query + key;
    if (!bias.values.empty()) values = bias.values.data + at;
    if (!bias.gradient.empty()) gradient = bias.gradient.data + at;
  }
  /// Adds the biases of query `query` of the block to the scores of `keys` keys, which are in log 2.
  GALVATRON_INLINE void add(std::int64_t query, std::int64_t keys, float* scores) const {
    if (values == nullptr) return;
    const float* from = values + query * row;
#pragma omp simd
    for (std::int64_t i = 0; i < keys; ++i) scores[i] += from[i] * kernels::log2_e;
  }
  /// Adds the gradients of the scores to those of the biases.
  GALVATRON_INLINE void give(std::int64_t query, std::int64_t keys, const float* d_scores) const {
    if (gradient == nullptr) return;
    float* to = gradient + query * row;
#pragma omp simd
    for (std::int64_t i = 0; i < keys; ++i) to[i] += d_scores[i];
  }
};

/// Calls `f.operator()<E>()` with what tiles of tensors of T are made of: pairs of bfloat16 where the processor
/// multiplies them, else floats. Probabilities and their gradients are rounded to pairs before they are multiplied.
template <class T>
void with_elements(const Team& team, const auto& f) {
  if constexpr (std::is_same_v<T, bfloat16> && built_for != Isa::avx2)
    if (team.isa == Isa::avx512_bf16) return f.template operator()<BfloatPair>();
  f.template operator()<float>();
}

/// Soft-caps a row of scores, which are in log 2. `slopes` (columns) become its derivatives unless null.
template <class S>
GALVATRON_INLINE void cap_scores(const AttentionShape& shape, std::int64_t columns, float* scores, float* slopes) {
  using V = typename S::Float;
  if (shape.score_cap == 0) return;
  const float cap = shape.score_cap * kernels::log2_e;
  for (std::int64_t i = 0; i < columns; i += S::lanes) {
    V x = vector_at<S>(scores + i);
    kernels::soft_cap<V>(x, cap, x);
    vector_at<S>(scores + i) = x;
    if (slopes != nullptr) kernels::soft_cap_slope<V>(x, cap, vector_at<S>(slopes + i));
  }
}

/// Scales a row of scores of pairs, whose queries are as they were; floats are scaled as they are packed.
template <class S, class E>
GALVATRON_INLINE void scale_scores(std::int64_t columns, float scale, float* scores) {
  if constexpr (std::is_same_v<E, BfloatPair>)
    for (std::int64_t i = 0; i < columns; i += S::lanes) vector_at<S>(scores + i) *= scale;
}
/// to (rows, columns) = factor * from, of pairs from itself.
template <class E>
GALVATRON_INLINE void pack_scaled(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const auto* from,
                                  std::int64_t from_stride, float factor, E* to, std::int64_t to_stride) {
  if constexpr (std::is_same_v<E, BfloatPair>)
    pack_rows(rows, padded_rows, columns, from, from_stride, to, to_stride);
  else
    pack_rows(rows, padded_rows, columns, from, from_stride, factor, to, to_stride);
}
/// to (rows, columns) = from, of pairs (rows / 2, columns): what a product runs down.
template <class E>
GALVATRON_INLINE void pack_down(std::int64_t rows, std::int64_t padded_rows, std::int64_t columns, const auto* from,
                                std::int64_t from_stride, E* to, std::int64_t to_stride) {
  if constexpr (std::is_same_v<E, BfloatPair>)
    pack_row_pairs(rows, padded_rows, columns, from, from_stride, to, to_stride);
  else
    pack_rows(rows, padded_rows, columns, from, from_stride, 1.0F, to, to_stride);
}

/// Ninety-six query rows of one head, while the keys pass by. Sizes are of numbers, of which an E has one or two.
template <class E>
struct QueryState {
  E* q;            ///< (96, width), of floats scaled by head_dim^-1/2 log2(e)
  float* o;        ///< (96, width), not yet divided by the sums
  float* maximum;  ///< (96), log 2
  float* sum;      ///< (96, 16), lanes that are to be added
};

/// Adds one block of keys to the rows [0, rows) of a block of queries: kt (width, 96) and v (96, width) packed.
template <Isa isa, class E>
GALVATRON_INLINE void attend(const AttentionLayout& layout, std::int64_t first_query, std::int64_t rows,
                             std::int64_t first_key, const E* kt, const E* v, const BiasRows& bias,
                             const QueryState<E>& state) {
  using S = Vectors<isa>;
  using V = typename S::Float;
  constexpr std::int64_t lanes = S::lanes;
  constexpr std::int64_t n = numbers_in<E>;
  alignas(64) float s[tile_rows * key_block];
  alignas(64) E rounded[n > 1 ? tile_rows * key_block / n : 1];
  float rescale[tile_rows];
  const std::int64_t width = layout.width;
  const float scale = kernels::log2_e * layout.shape.score_scale();
  for (std::int64_t group = 0; group < rows; group += tile_rows) {
    const std::int64_t last = std::min(group + tile_rows, rows) - 1;
    const std::int64_t most = layout.visible_keys(first_query + last, first_key);
    if (most <= layout.unseen_keys(first_query + group, first_key)) continue;
    const std::int64_t columns = round_up(most, tile_columns);
    multiply_rows<isa>(columns, divide_up(layout.shape.head_dim, n), state.q + group * width / n, width / n, 1, kt,
                       key_block, Start::zero, nullptr, s, key_block);
    for (std::int64_t r = 0; r < tile_rows; ++r) {
      float* line = s + r * key_block;
      float& maximum = state.maximum[group + r];
      auto& sum = vector_at<S>(state.sum + (group + r) * tile_columns);
      const std::int64_t query = first_query + std::min(group + r, last);
      const std::int64_t seen = layout.visible_keys(query, first_key);
      const std::int64_t unseen = layout.unseen_keys(query, first_key);
      if (seen <= unseen) {  // other rows of the tile see some
        std::fill_n(line, columns, 0.0F);
        if constexpr (n > 1) round_row<S>(columns, line, rounded + r * key_block / n);
        rescale[r] = 1;
        continue;
      }
      scale_scores<S, E>(columns, scale, line);
      cap_scores<S>(layout.shape, columns, line, nullptr);
      bias.add(std::min(group + r, last), seen, line);
      std::fill_n(line, unseen, -std::numeric_limits<float>::infinity());
      for (std::int64_t i = seen; i < columns; ++i) line[i] = -std::numeric_limits<float>::infinity();
      V most_lanes = vector_at<S>(line);
      for (std::int64_t i = lanes; i < columns; i += lanes) {
        const V x = vector_at<S>(line + i);
        most_lanes = x > most_lanes ? x : most_lanes;
      }
      const float before = maximum;
      maximum = std::max(before, greatest(most_lanes));
      rescale[r] = kernels::exponential2(before - maximum);
      V total = sum * rescale[r];
      for (std::int64_t i = 0; i < columns; i += lanes) {
        V x = vector_at<S>(line + i);
        kernels::attention_probability(x, maximum);
        vector_at<S>(line + i) = x;
        total += x;
      }
      sum = total;
      if constexpr (n > 1) round_row<S>(columns, line, rounded + r * key_block / n);
    }
    const E* p;
    if constexpr (n > 1)
      p = rounded;
    else
      p = s;
    multiply_rows<isa>(width, divide_up(most, n), p, key_block / n, 1, v, width, Start::scale, rescale,
                       state.o + group * width, width);
  }
}

/// Calls attend(team, shape, first query, first key) for each document: with the whole team, one after the other, for
/// those that are a large part of the work; the others are shared out, and each has a thread of its own.
template <class F>
void for_each_document(const Team& team, const AttentionShape& shape, const DocumentRows& documents, const F& attend) {
  const auto count = static_cast<std::size_t>(documents.count());
  const auto document = [&](std::size_t i) {
    AttentionShape own = shape;
    own.queries = documents.queries[i + 1] - documents.queries[i];
    own.keys = documents.keys[i + 1] - documents.keys[i];
    own.lse_stride = shape.lse_row();
    return own;
  };
  // Multiples of rows are what tiles and the calls around them cost.
  const auto cost = [&](std::size_t i) {
    const AttentionShape own = document(i);
    return (own.queries + query_block / 2) * (own.keys + key_block / 2);
  };
  std::int64_t all = 0;
  for (std::size_t i = 0; i < count; ++i) all += cost(i);
  const auto is_long = [&](std::size_t i) { return team.threads == 1 || 8 * team.threads * cost(i) > all; };
  std::int64_t short_ones = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (is_long(i))
      attend(team, document(i), documents.queries[i], documents.keys[i]);
    else
      short_ones += cost(i);
  if (short_ones == 0) return;
  on_threads(team.threads, [&](int thread) {
    const Team alone{.threads = 1, .isa = team.isa, .scratch = team.scratch_of(thread)};
    std::int64_t passed = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (is_long(i)) continue;
      const std::int64_t own = cost(i);
      if ((passed + own / 2) * team.threads / short_ones == thread)
        attend(alone, document(i), documents.queries[i], documents.keys[i]);
      passed += own;
    }
  });
}

/// Sets the elements of all heads in rows of a tensor to zero.
template <class T>
void clear_heads(std::int64_t rows, std::int64_t stride, std::int64_t width, T* to) {
  for (std::int64_t row = 0; row < rows; ++row) std::fill_n(to + row * stride, width, T{});
}

/// attention_forward() in tiles of E, without documents.
template <class E, class T>
void attend_in_tiles(const Team& team, const AttentionShape& shape, const T* q, const T* k, const T* v, T* o,
                     float* lse, const AttentionBias& bias) {
  const AttentionLayout layout(shape);
  constexpr std::int64_t n = numbers_in<E>;
  const std::int64_t width = layout.width;
  const std::int64_t tile = key_block * width / n;
  const float scale = kernels::log2_e * shape.score_scale();

  // Units in the order (sample, key/value head, query block); a thread's run of them costs what the others' cost.
  std::int64_t blocks_per_head = 0;
  const auto blocks_of = [&layout](std::int64_t block) {
    return layout.visible_blocks(block) - layout.first_visible_block(block);
  };
  for (std::int64_t block = 0; block < layout.query_blocks; ++block) blocks_per_head += blocks_of(block);
  const std::int64_t head_pairs = shape.batch * shape.kv_heads;
  const std::int64_t cost = blocks_per_head * head_pairs;
  const int threads = cost * layout.group > 4 ? team.threads : 1;

  on_threads(threads, [&](int thread) {
    ScratchFloats scratch(team.scratch_of(thread));
    const QueryState<E> state{scratch.take<E>(query_block * width / n), scratch.take(query_block * width),
                              scratch.take(query_block), scratch.take(query_block * tile_columns)};
    // All keys of a head are packed once when they fit, else block by block as they are needed.
    const std::int64_t slots = std::min(layout.key_blocks, scratch.left() / (2 * tile));
    const bool all_fit = slots == layout.key_blocks;
    E* packed = scratch.take<E>(std::max<std::int64_t>(1, all_fit ? slots : 1) * 2 * tile);

    const auto pack = [&](std::int64_t sample, std::int64_t kv_head, std::int64_t block, E* kt) {
      const std::int64_t offset = layout.kv.at(block * key_block, sample, kv_head);
      const std::int64_t keys = layout.keys_of(block * key_block);
      vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
        pack_transposed(keys, round_up(keys, tile_columns), shape.head_dim, k + offset, layout.kv.step(), kt,
                        key_block);
        pack_down(keys, keys, shape.head_dim, v + offset, layout.kv.step(), kt + tile, width);
      });
    };
    std::int64_t passed = 0;
    for (std::int64_t pair = 0; pair < head_pairs; ++pair) {
      const std::int64_t sample = pair / shape.kv_heads;
      const std::int64_t kv_head = pair % shape.kv_heads;
      std::int64_t packed_blocks = 0;
      for (std::int64_t block = 0; block < layout.query_blocks; ++block) {
        const std::int64_t visible = layout.visible_blocks(block);
        const bool mine = passed * threads / cost == thread;
        passed += blocks_of(block);
        if (!mine) continue;
        packed_blocks = std::max(packed_blocks, layout.first_visible_block(block));
        for (; all_fit && packed_blocks < visible; ++packed_blocks)
          pack(sample, kv_head, packed_blocks, packed + packed_blocks * 2 * tile);
        const std::int64_t first_query = block * query_block;
        const std::int64_t rows = std::min(query_block, shape.queries - first_query);
        const std::int64_t padded_rows = round_up(rows, tile_rows);
        for (std::int64_t head = kv_head * layout.group; head < (kv_head + 1) * layout.group; ++head) {
          vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
            pack_scaled(rows, padded_rows, shape.head_dim, q + layout.q.at(first_query, sample, head), layout.q.step(),
                        scale, state.q, width / n);
          });
          std::fill_n(state.o, padded_rows * width, 0.0F);
          std::fill_n(state.maximum, padded_rows, -std::numeric_limits<float>::infinity());
          std::fill_n(state.sum, padded_rows * tile_columns, 0.0F);
          for (std::int64_t at = layout.first_visible_block(block); at < visible; ++at) {
            E* kt = packed + (all_fit ? at * 2 * tile : 0);
            if (!all_fit) pack(sample, kv_head, at, kt);
            with_tiles<E>(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
              attend<isa>(layout, first_query, rows, at * key_block, kt, kt + tile,
                          BiasRows(bias, head, first_query, at * key_block), state);
            });
          }
          float* head_lse = lse + layout.lse_offset(first_query, sample, head);
          vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
            for (std::int64_t r = 0; r < rows; ++r) {
              float sum = 0;
              for (std::int64_t i = 0; i < tile_columns; ++i) sum += state.sum[r * tile_columns + i];
              head_lse[r] = state.maximum[r] * kernels::ln_2 + std::log(sum);
              unpack_rows(1, shape.head_dim, state.o + r * width, width, 1.0F / sum, false,
                          o + layout.out.at(first_query + r, sample, head), 0);
            }
          });
        }
      }
    }
  });
}

/// o and lse from q, k and v; see Device::attention_forward.
template <class T>
void attention_forward(const Team& team, const AttentionShape& shape, const T* q, const T* k, const T* v, T* o,
                       float* lse, const AttentionBias& bias = {}, const DocumentRows& documents = {}) {
  if (shape.batch == 0 || shape.queries == 0) return;
  if (!documents.empty())
    return for_each_document(
        team, shape, documents, [&](const Team& own, const AttentionShape& s, std::int64_t query, std::int64_t key) {
          T* const to = o + query * s.out_stride;
          if (s.keys > 0)
            return attention_forward(own, s, q + query * s.q_stride, k + key * s.kv_stride, v + key * s.kv_stride, to,
                                     lse + query);
          clear_heads(s.queries, s.out_stride, s.heads * s.head_dim, to);
          for (std::int64_t head = 0; head < s.heads; ++head)
            std::fill_n(lse + head * s.lse_row() + query, s.queries, -std::numeric_limits<float>::infinity());
        });
  with_elements<T>(team, [&]<class E>() { attend_in_tiles<E>(team, shape, q, k, v, o, lse, bias); });
}

/// o and lse take in the results of another part of the keys; see the Device concept.
template <class T>
void attention_merge(const Team& team, const AttentionShape& shape, const T* o_part, const float* lse_part, float* o,
                     float* lse) {
  const std::int64_t cost = shape.heads * shape.head_dim;
  for_rows(team, shape.queries * shape.batch, cost, [&](std::int64_t row) GALVATRON_INLINE_LAMBDA {
    for (std::int64_t head = 0; head < shape.heads; ++head) {
      const std::int64_t at = (row % shape.batch * shape.heads + head) * shape.lse_row() + row / shape.batch;
      const auto weights = kernels::merge_weights(lse[at], lse_part[at]);
      lse[at] = weights.lse;
      const T* part = o_part + row * shape.out_stride + head * shape.head_dim;
      float* out = o + row * shape.out_stride + head * shape.head_dim;
#pragma omp simd
      for (std::int64_t i = 0; i < shape.head_dim; ++i)
        out[i] = out[i] * weights.first + kernels::get(part[i]) * weights.second;
    }
  });
}

}  // namespace galvatron::device::host
