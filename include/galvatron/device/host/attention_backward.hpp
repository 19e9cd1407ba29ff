// Gradients of flash attention on the host, from what the forward pass (attention.hpp) kept.
//
// One thread has a sample's key/value head and so its dk and dv: nothing is shared. Where biases have gradients, it has
// that head of all samples. For each block of queries of each head of the group, and each block of keys that it sees
// (algorithm 4 of the paper, with queries outside),
//   P = exp(Q K^T - lse)   dP = dO V^T   dS = P (dP - delta)   dV += P^T dO   dK += dS^T Q   dQ += dS K
// (soft-capped scores multiply dS by the slope of their cap; where one block has all keys of a query, delta is what
// makes its dS sum to 0), with dK, dV and the packed K^T, V^T and K of a span of keys in scratch memory. A sequence
// that is longer than such a span is done span by span, and dQ adds up in its own format.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/device/host/attention.hpp>
#include <galvatron/device/host/tile.hpp>
#include <galvatron/device/kernels/softmax.hpp>

namespace galvatron::device::host {

/// A packed block of keys with its gradients; what is beyond its keys, padded to whole tiles, is not set. Sizes are of
/// numbers, of which an E has one or two.
template <class E>
struct KeyTiles {
  E* kt;      ///< (width, 96)
  E* vt;      ///< (width, 96)
  E* k;       ///< (96, width), pairs of keys
  float* dk;  ///< (96, width)
  float* dv;  ///< (96, width)

  static std::int64_t tile(std::int64_t width) { return key_block * width / numbers_in<E>; }
  static std::int64_t floats(std::int64_t width) { return 3 * tile(width) + 2 * key_block * width; }
  KeyTiles(float* at, std::int64_t width)
      : kt(reinterpret_cast<E*>(at)),
        vt(kt + tile(width)),
        k(vt + tile(width)),
        dk(at + 3 * tile(width)),
        dv(dk + key_block * width) {}
};

/// A packed block of queries of one head with its gradient. Floats have one array for what is multiplied along the rows
/// and down the columns, pairs have two.
template <class E>
struct QueryTiles {
  E* q;          ///< (96, width), of floats scaled by head_dim^-1/2 log2(e)
  E* d_o;        ///< (96, width)
  E* q_down;     ///< (96, width), pairs of queries
  E* d_o_down;   ///< (96, width), pairs of queries
  E* p;          ///< (96, 96), pairs of queries
  E* ds;         ///< (96, 96)
  E* ds_down;    ///< (96, 96), pairs of queries
  float* dq;     ///< (96, width)
  float* lse;    ///< (96), log 2
  float* delta;  ///< (96)

  QueryTiles(ScratchFloats& scratch, std::int64_t width) {
    constexpr std::int64_t n = numbers_in<E>;
    q = q_down = scratch.take<E>(query_block * width / n);
    d_o = d_o_down = scratch.take<E>(query_block * width / n);
    p = scratch.take<E>(query_block * key_block / n);
    ds = ds_down = scratch.take<E>(query_block * key_block / n);
    if constexpr (n > 1) {
      q_down = scratch.take<E>(query_block * width / n);
      d_o_down = scratch.take<E>(query_block * width / n);
      ds_down = scratch.take<E>(query_block * key_block / n);
    }
    dq = scratch.take(query_block * width);
    lse = scratch.take(query_block);
    delta = scratch.take(query_block);
  }
};

/// dS of a row over all its keys sums to 0, as the gradient of a softmax does: what is left of the rounding of delta
/// and lse would be multiplied with what the keys have in common.
GALVATRON_INLINE void balance(std::int64_t keys, const float* p, float* ds) {
  float all = 0;
  float left = 0;
#pragma omp simd reduction(+ : all, left)
  for (std::int64_t i = 0; i < keys; ++i) {
    all += p[i];
    left += ds[i];
  }
  const float more = all > 0 ? left / all : 0.0F;
#pragma omp simd
  for (std::int64_t i = 0; i < keys; ++i) ds[i] -= p[i] * more;
}

/// The five products of a block of queries and a block of keys.
template <Isa isa, class E>
GALVATRON_INLINE void attend_backward(const AttentionLayout& layout, std::int64_t first_query, std::int64_t rows,
                                      std::int64_t first_key, const KeyTiles<E>& keys, const BiasRows& bias,
                                      const QueryTiles<E>& queries) {
  using S = Vectors<isa>;
  using V = typename S::Float;
  constexpr std::int64_t lanes = S::lanes;
  constexpr std::int64_t n = numbers_in<E>;
  const std::int64_t width = layout.width;
  const std::int64_t depth = divide_up(layout.shape.head_dim, n);
  const std::int64_t padded_rows = round_up(rows, tile_rows);
  const std::int64_t keys_here = layout.keys_of(first_key);
  const std::int64_t set_keys = round_up(round_up(keys_here, tile_rows), tile_columns);  // of p and ds
  const float scale = kernels::log2_e * layout.shape.score_scale();
  const bool capped = layout.shape.score_cap > 0;
  alignas(64) float slopes[key_block];
  alignas(64) float tiles[n > 1 ? 2 * tile_rows * key_block : 1];  // six rows of p and of ds before they are rounded
  std::int64_t first_group = 0;                                    // rows before it see nothing of this block
  if (layout.shape.causal) first_group = std::max<std::int64_t>(0, first_key - first_query) / tile_rows * tile_rows;
  for (std::int64_t group = first_group; group < padded_rows; group += tile_rows) {
    const std::int64_t last = std::min(group + tile_rows, rows) - 1;
    const std::int64_t most = layout.visible_keys(first_query + last, first_key);
    const std::int64_t columns = round_up(most, tile_columns);
    if (layout.unseen_keys(first_query + group, first_key) >= most) break;  // all keys are before its sliding window
    float* p;
    float* ds;
    if constexpr (n > 1) {
      p = tiles;
      ds = tiles + tile_rows * key_block;
    } else {
      p = queries.p + group * key_block;
      ds = queries.ds + group * key_block;
    }
    multiply_rows<isa>(columns, depth, queries.q + group * width / n, width / n, 1, keys.kt, key_block, Start::zero,
                       nullptr, p, key_block);
    multiply_rows<isa>(columns, depth, queries.d_o + group * width / n, width / n, 1, keys.vt, key_block, Start::zero,
                       nullptr, ds, key_block);
    for (std::int64_t r = 0; r < tile_rows; ++r) {
      float* p_line = p + r * key_block;
      float* ds_line = ds + r * key_block;
      const std::int64_t seen =
          group + r < rows ? layout.visible_keys(first_query + group + r, first_key) : std::int64_t{0};
      scale_scores<S, E>(columns, scale, p_line);
      cap_scores<S>(layout.shape, columns, p_line, slopes);
      bias.add(group + r, seen, p_line);
      const float lse = queries.lse[group + r];
      const float delta = queries.delta[group + r];
      for (std::int64_t i = 0; i < columns; i += lanes) {
        V probability = vector_at<S>(p_line + i);
        auto& gradient = vector_at<S>(ds_line + i);
        kernels::attention_probability(probability, lse);
        vector_at<S>(p_line + i) = probability;
        gradient = probability * (gradient - delta);
      }
      const std::int64_t unseen = layout.unseen_keys(first_query + std::min(group + r, rows - 1), first_key);
      for (std::int64_t i = 0; i < unseen; ++i) p_line[i] = ds_line[i] = 0;
      for (std::int64_t i = seen; i < set_keys; ++i) p_line[i] = ds_line[i] = 0;
      if (layout.shape.all_keys && layout.key_blocks == 1) balance(seen, p_line, ds_line);
      bias.give(group + r, seen, ds_line);
      for (std::int64_t i = 0; capped && i < seen; ++i) ds_line[i] *= slopes[i];
    }
    const E* ds_rows = queries.ds + group * key_block / n;
    if constexpr (n > 1)
      for (std::int64_t r = 0; r < tile_rows; ++r) {
        const std::int64_t at = (group + r) * key_block / n;
        round_row<S>(set_keys, ds + r * key_block, queries.ds + at);
        if (r % n > 0) continue;
        round_row_pair<S>(set_keys, p + r * key_block, p + (r + 1) * key_block, queries.p + at);
        round_row_pair<S>(set_keys, ds + r * key_block, ds + (r + 1) * key_block, queries.ds_down + at);
      }
    multiply_rows<isa>(width, divide_up(most, n), ds_rows, key_block / n, 1, keys.k, width, Start::keep, nullptr,
                       queries.dq + group * width, width);
  }
  for (std::int64_t key = 0; key < keys_here; key += tile_rows) {
    std::int64_t from = first_group;  // the first row that sees these six keys
    if (layout.shape.causal) from = std::max(from, first_key + key - first_query);
    std::int64_t end = rows;  // behind the last one
    if (layout.shape.sliding_window > 0)
      end = std::min(rows, first_key + key + tile_rows - 1 + layout.shape.sliding_window - first_query);
    if (from >= rows) break;
    if (from >= end) continue;
    from /= n;
    end = divide_up(end, n);
    const std::int64_t at = from * key_block + key;
    multiply_rows<isa>(width, end - from, queries.p + at, 1, key_block, queries.d_o_down + from * width, width,
                       Start::keep, nullptr, keys.dv + key * width, width);
    multiply_rows<isa>(width, end - from, queries.ds_down + at, 1, key_block, queries.q_down + from * width, width,
                       Start::keep, nullptr, keys.dk + key * width, width);
  }
}

/// attention_backward() in tiles of E, without documents.
template <class E, class T>
void differentiate_in_tiles(const Team& team, const AttentionShape& shape, const T* q, const T* k, const T* v,
                            const T* o, const float* lse, const T* d_o, T* dq, T* dk, T* dv, float* delta,
                            const AttentionBias& bias) {
  const AttentionLayout layout(shape);
  const std::int64_t width = layout.width;
  constexpr bool pairs = numbers_in<E> > 1;
  const float scale = shape.score_scale();
  const std::int64_t heads = shape.batch * shape.kv_heads;
  const std::int64_t work = heads * layout.group * layout.query_blocks * layout.key_blocks;
  // Units of work, and the heads of samples in each: head i * units + unit.
  const std::int64_t units = bias.gradient.empty() ? heads : shape.kv_heads;
  const int threads = work > 2 ? static_cast<int>(std::min<std::int64_t>(team.threads, units)) : 1;

  on_threads(threads, [&](int thread) {
    ScratchFloats scratch(team.scratch_of(thread));
    const QueryTiles<E> queries(scratch, width);
    const std::int64_t span =
        std::clamp<std::int64_t>(scratch.left() / KeyTiles<E>::floats(width), 1, layout.key_blocks);
    float* spans = scratch.take(span * KeyTiles<E>::floats(width));

    const auto tiles = [&](std::int64_t at) { return KeyTiles<E>(spans + at * KeyTiles<E>::floats(width), width); };
    const std::int64_t first_unit = units * thread / threads;
    const std::int64_t own_units = units * (thread + 1) / threads - first_unit;
    for (std::int64_t i = 0; i < own_units * (heads / units); ++i) {
      const std::int64_t own = i / own_units * units + first_unit + i % own_units;
      const std::int64_t sample = own / shape.kv_heads;
      const std::int64_t kv_head = own % shape.kv_heads;
      // Packs a block of keys and clears its gradients.
      const auto pack_keys = [&](std::int64_t first, const KeyTiles<E>& keys) {
        const std::int64_t offset = layout.kv.at(first, sample, kv_head);
        const std::int64_t count = layout.keys_of(first);
        const std::int64_t padded = round_up(count, tile_columns);
        vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
          pack_transposed(count, padded, shape.head_dim, k + offset, layout.kv.step(), keys.kt, key_block);
          pack_transposed(count, padded, shape.head_dim, v + offset, layout.kv.step(), keys.vt, key_block);
          pack_down(count, count, shape.head_dim, k + offset, layout.kv.step(), keys.k, width);
        });
        for (float* gradient : {keys.dk, keys.dv}) std::fill_n(gradient, round_up(count, tile_rows) * width, 0.0F);
      };
      // Writes the gradients of a block of keys.
      const auto unpack_keys = [&](std::int64_t first, const KeyTiles<E>& keys) {
        const std::int64_t offset = layout.dkv.at(first, sample, kv_head);
        const std::int64_t count = layout.keys_of(first);
        vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
          // Packed floats carry scale * log2(e): what is left of the scale is ln 2.
          unpack_rows(count, shape.head_dim, keys.dk, width, pairs ? scale : kernels::ln_2, false, dk + offset,
                      layout.dkv.step());
          unpack_rows(count, shape.head_dim, keys.dv, width, 1.0F, false, dv + offset, layout.dkv.step());
        });
      };
      // Packs a block of queries of one head; works out delta when `first_span`, else reads it.
      const auto pack_queries = [&](std::int64_t head, std::int64_t first, std::int64_t rows, bool first_span) {
        const std::int64_t padded_rows = round_up(rows, tile_rows);
        const std::int64_t statistics = layout.lse_offset(first, sample, head);
        const std::int64_t out_offset = layout.out.at(first, sample, head);
        vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
          const T* own_q = q + layout.q.at(first, sample, head);
          const std::int64_t row = width / numbers_in<E>;
          pack_scaled(rows, padded_rows, shape.head_dim, own_q, layout.q.step(), kernels::log2_e * scale, queries.q,
                      row);
          pack_scaled(rows, padded_rows, shape.head_dim, d_o + out_offset, layout.out.step(), 1.0F, queries.d_o, row);
          if constexpr (pairs) {
            pack_down(rows, padded_rows, shape.head_dim, own_q, layout.q.step(), queries.q_down, width);
            pack_down(rows, padded_rows, shape.head_dim, d_o + out_offset, layout.out.step(), queries.d_o_down, width);
          }
          for (std::int64_t r = 0; first_span && r < rows; ++r) {
            const T* out = o + out_offset + r * layout.out.step();
            const T* gradient = d_o + out_offset + r * layout.out.step();
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (std::int64_t e = 0; e < shape.head_dim; ++e) sum += kernels::get(out[e]) * kernels::get(gradient[e]);
            delta[statistics + r] = sum;
          }
        });
        for (std::int64_t r = 0; r < padded_rows; ++r) {
          queries.delta[r] = r < rows ? delta[statistics + r] : 0.0F;
          queries.lse[r] = r < rows ? lse[statistics + r] * kernels::log2_e : 0.0F;
        }
        std::fill_n(queries.dq, padded_rows * width, 0.0F);
      };
      for (std::int64_t from = 0; from < layout.key_blocks; from += span) {
        const std::int64_t to = std::min(layout.key_blocks, from + span);
        for (std::int64_t at = from; at < to; ++at) pack_keys(at * key_block, tiles(at - from));
        for (std::int64_t head = kv_head * layout.group; head < (kv_head + 1) * layout.group; ++head) {
          for (std::int64_t block = 0; block < layout.query_blocks; ++block) {
            const std::int64_t visible = std::min(to, layout.visible_blocks(block));
            const std::int64_t first_block = std::max(from, layout.first_visible_block(block));
            if (visible <= first_block) continue;
            const std::int64_t first_query = block * query_block;
            const std::int64_t rows = std::min(query_block, shape.queries - first_query);
            const bool is_first = first_block == layout.first_visible_block(block);
            pack_queries(head, first_query, rows, is_first);
            for (std::int64_t at = first_block; at < visible; ++at)
              with_tiles<E>(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
                attend_backward<isa>(layout, first_query, rows, at * key_block, tiles(at - from),
                                     BiasRows(bias, head, first_query, at * key_block), queries);
              });
            vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
              unpack_rows(rows, shape.head_dim, queries.dq, width, scale, !is_first,
                          dq + layout.dq.at(first_query, sample, head), layout.dq.step());
            });
          }
        }
        for (std::int64_t at = from; at < to; ++at) unpack_keys(at * key_block, tiles(at - from));
      }
    }
  });
}

/// dq, dk, dv from the forward pass's tensors and d_o; delta, as lse, becomes row sums of o * d_o.
template <class T>
void attention_backward(const Team& team, const AttentionShape& shape, const T* q, const T* k, const T* v, const T* o,
                        const float* lse, const T* d_o, T* dq, T* dk, T* dv, float* delta,
                        const AttentionBias& bias = {}, const DocumentRows& documents = {}) {
  if (shape.batch == 0 || shape.queries == 0) return;
  if (!documents.empty())
    return for_each_document(team, shape, documents,
                             [&](const Team& own, const AttentionShape& s, std::int64_t query, std::int64_t key) {
                               T* const to_q = dq + query * s.dq_row();
                               T* const to_k = dk + key * s.dkv_row();
                               T* const to_v = dv + key * s.dkv_row();
                               if (s.queries > 0 && s.keys > 0)
                                 return attention_backward(own, s, q + query * s.q_stride, k + key * s.kv_stride,
                                                           v + key * s.kv_stride, o + query * s.out_stride, lse + query,
                                                           d_o + query * s.out_stride, to_q, to_k, to_v, delta + query);
                               clear_heads(s.queries, s.dq_row(), s.heads * s.head_dim, to_q);
                               for (T* const gradient : {to_k, to_v})
                                 clear_heads(s.keys, s.dkv_row(), s.kv_heads * s.head_dim, gradient);
                             });
  with_elements<T>(
      team, [&]<class E>() { differentiate_in_tiles<E>(team, shape, q, k, v, o, lse, d_o, dq, dk, dv, delta, bias); });
}

}  // namespace galvatron::device::host
