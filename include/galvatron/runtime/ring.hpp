// The attention core of ring attention (Liu et al., arXiv 2310.01889), causal work balanced by the zigzag layout.
//
// A rank attends with its own queries to one block of keys and values after the other, while the next block arrives
// from the rank before. Results are merged by their log-sum-exp. In backward the gradients of a block's keys and values
// (fp32) travel one step behind it and come home at the end:
//
//     step          0            1 .. c-2                       c-1                    after
//     computes      own block    block of rank r - j            of rank r + 1
//     moves beside  k, v         k, v (backward: and dk, dv)    (backward: dk, dv)     (backward: dk, dv)
//
// Rank r holds the chunks r and 2c - 1 - r of the sequence. Of the block of rank s, with a causal mask,
//     s = r    is the usual causal attention: local order is the order in the sequence
//     s < r    all queries see the first chunk of keys, and none the second
//     s > r    the second chunk of queries sees all keys, and the first none
// so that every step but the first is half a block without a mask. Without causality every step is a whole block. By
// ratios blocks, and the chunks of a block, are unequal: messages are as large as their block, and a rank without
// tokens passes the others' on. Packed documents attend within these parts, each to itself: the rows that a rank has of
// one follow each other. A part goes from the first document to the last that has queries and keys in it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/runtime/attention.hpp>
#include <galvatron/runtime/heads.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::runtime {

template <class D, class T>
class RingAttention {
  // Sums over the steps are fp32; where T is, results are the sums.
  static constexpr bool rounds = !std::is_same_v<T, float>;

 public:
  RingAttention(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        heads_(layer, context.shares().heads()),
        ranks_(context.spec.context),
        tokens_(context.context_tokens()),
        score_factor_(score_factor(layer)),
        score_cap_(static_cast<float>(layer.score_cap)) {}

  struct ForwardScratch {
    View<T> here, next;    ///< (rows of the largest block, k | v)
    View<T> o_part;        ///< (rows, q)
    View<float> lse_part;  ///< as the results' lse
    View<float> sum;       ///< (rows, q), where T is rounded
  };
  struct BackwardScratch {
    View<float> delta;           ///< as the results' lse
    View<T> here, next;          ///< (rows of the largest block, k | v)
    View<float> d_here, d_next;  ///< the same, of the block in `here` so far
    View<T> dq_part;             ///< (rows, q)
    View<T> dkv_part;            ///< (rows of the largest block, k | v)
    View<float> dq;              ///< (rows, q), where T is rounded
  };

  void attend(View<T> input, View<T> o, View<float> lse, ForwardScratch scratch) {
    auto& [here, next, o_part, lse_part, sum] = scratch;
    if constexpr (!rounds) sum = o;
    copy_keys(input, here);
    for (int step = 0; step < ranks_; ++step) {
      if (step + 1 < ranks_) c_.context->start_shift(block(here, step), block(next, step + 1));
      if (const Part part = part_of(step); !part.empty()) {
        const View<T> own_o = part.queries_of(step == 0 ? o : o_part, heads_.q());
        const View<float> own_lse = part.statistics_of(step == 0 ? lse : lse_part);
        const View<T> keys = keys_of(part, here);
        c_.device.attention_forward(part.shape, part.queries_of(input, heads_.qkv()), keys, values_of(keys), own_o,
                                    own_lse, device::AttentionBias{}, part.documents());
        if (step > 0)
          c_.device.attention_merge(part.shape, own_o, own_lse, part.queries_of(sum, heads_.q()),
                                    part.statistics_of(lse));
      }
      if (step == 0) widen(o, sum);
      if (step + 1 < ranks_) c_.context->finish_shifts();
      std::swap(here, next);
    }
    if constexpr (rounds) c_.device.copy_runs(device::Runs{.width = o.count}, sum, o);
  }

  void backward(View<T> input, View<T> o, View<float> lse, View<T> d_o, View<T> d_qkv, BackwardScratch scratch) {
    auto& [delta, here, next, d_here, d_next, dq_part, dkv_part, dq] = scratch;  // dq: rows of dq_stride
    const std::int64_t dq_stride = rounds ? heads_.q() : heads_.qkv();
    if constexpr (!rounds) dq = d_qkv;

    copy_keys(input, here);
    for (int step = 0; step < ranks_; ++step) {
      const bool moves = step + 1 < ranks_;
      if (moves) c_.context->start_shift(block(here, step), block(next, step + 1));
      if (step > 0) c_.context->start_shift(block(d_here, step - 1), block(d_next, step));
      Part part = part_of(step);
      if (!part.empty()) {
        part.shape.dq_stride = heads_.q();
        View<T> to_dq = part.queries_of(dq_part, heads_.q());
        View<T> to_dkv = keys_of(part, dkv_part);
        if constexpr (!rounds)
          if (step == 0) {
            part.shape.dq_stride = dq_stride;
            to_dq = part.queries_of(dq, dq_stride);
            to_dkv = keys_of(part, d_here);
          }
        const View<T> keys = keys_of(part, here);
        c_.device.attention_backward(part.shape, part.queries_of(input, heads_.qkv()), keys, values_of(keys),
                                     part.queries_of(o, heads_.q()), part.statistics_of(lse),
                                     part.queries_of(d_o, heads_.q()), to_dq, to_dkv, values_of(to_dkv),
                                     part.statistics_of(delta), device::AttentionBias{}, part.documents());
      }
      if (moves || step > 0) c_.context->finish_shifts();
      if (step == 0) {
        widen(dq_part, dq);
        widen(block(dkv_part, 0), d_here);
      } else {
        std::swap(d_here, d_next);
        if (!part.empty()) {
          c_.device.add_runs(device::Runs{.rows = c_.batch.samples * part.shape.queries,
                                          .width = heads_.q(),
                                          .from = {.row = heads_.q()},
                                          .to = {.row = dq_stride}},
                             part.queries_of(dq_part, heads_.q()), part.queries_of(dq, dq_stride));
          c_.device.accumulate(c_.batch.samples * part.shape.keys * 2 * heads_.kv(), keys_of(part, dkv_part),
                               keys_of(part, d_here));
        }
      }
      std::swap(here, next);
    }
    c_.context->start_shift(block(d_here, ranks_ - 1), block(d_next, 0));
    c_.context->finish_shifts();
    if constexpr (rounds) c_.device.copy_runs(columns(heads_.q(), heads_.q(), heads_.qkv()), dq, d_qkv);
    c_.device.copy_runs(columns(2 * heads_.kv(), 2 * heads_.kv(), heads_.qkv()), d_next, behind(d_qkv, heads_.q()));
  }

 private:
  // What a step attends to: queries from `first_query` on, and keys of a block from `first_key` on.
  struct Part {
    device::AttentionShape shape;
    std::int64_t first_query = 0;
    std::int64_t first_key = 0;
    std::vector<std::int32_t> queries{}, keys{};  ///< of documents: see device::DocumentRows

    [[nodiscard]] bool empty() const { return shape.queries == 0 || shape.keys == 0; }
    [[nodiscard]] device::DocumentRows documents() const { return {queries, keys}; }
    template <class U>
    View<U> queries_of(View<U> rows, std::int64_t stride) const {
      return behind(rows, first_query * shape.batch * stride);
    }
    [[nodiscard]] View<float> statistics_of(View<float> lse) const { return behind(lse, first_query); }
  };

  /// The rank whose block step `step` has.
  [[nodiscard]] int source(int step) const { return (c_.context->rank() - step + ranks_) % ranks_; }
  [[nodiscard]] std::int64_t tokens_of(int rank) const {
    return tokens_[static_cast<std::size_t>(rank)].count(c_.batch.sequence);
  }
  /// The tokens of a chunk.
  [[nodiscard]] Sharding::Range chunk(int rank, int which) const {
    return tokens_[static_cast<std::size_t>(rank)].runs[static_cast<std::size_t>(which)].of(c_.batch.sequence);
  }
  /// The rows of that block, in memory for any.
  template <class U>
  [[nodiscard]] View<U> block(View<U> all, int step) const {
    return all.slice(0, c_.batch.samples * tokens_of(source(step)) * 2 * heads_.kv());
  }
  [[nodiscard]] Part whole_part(int step) const {
    const int own = c_.context->rank();
    const std::int64_t tokens = tokens_of(own);
    Part part{{.batch = c_.batch.samples,
               .queries = tokens,
               .keys = tokens_of(source(step)),
               .heads = heads_.heads,
               .kv_heads = heads_.kv_heads,
               .head_dim = heads_.head_dim,
               .causal = heads_.causal && step == 0,
               .q_stride = heads_.qkv(),
               .kv_stride = 2 * heads_.kv(),
               .out_stride = heads_.q(),
               .lse_stride = tokens,
               .all_keys = false,
               .score_factor = score_factor_,
               .score_cap = score_cap_}};
    if (!heads_.causal || step == 0) return part;
    if (source(step) < own) {
      part.shape.keys = chunk(source(step), 0).count();
    } else {
      part.first_query = chunk(own, 0).count();
      part.shape.queries = tokens - part.first_query;
    }
    return part;
  }
  /// The part of a step; without queries where no document has both queries and keys.
  [[nodiscard]] Part part_of(int step) const {
    Part part = whole_part(step);
    if (c_.batch.documents.empty()) return part;
    std::vector<Rows> queries, keys;
    for (const Document& document : c_.batch.documents) {
      const Rows own = rows_of(document, c_.context->rank(), part.first_query, part.shape.queries);
      const Rows other = rows_of(document, source(step), 0, part.shape.keys);
      if (queries.empty() && (own.count() == 0 || other.count() == 0)) continue;
      queries.push_back(own);
      keys.push_back(other);
    }
    while (!queries.empty() && (queries.back().count() == 0 || keys.back().count() == 0)) {
      queries.pop_back();
      keys.pop_back();
    }
    part.shape.queries = part.shape.keys = 0;
    if (queries.empty()) return part;
    part.first_query = queries.front().begin;
    part.first_key = keys.front().begin;
    const auto add = [](const std::vector<Rows>& rows, std::vector<std::int32_t>& to) {
      to.assign(1, 0);
      for (const Rows& own : rows) to.push_back(to.back() + static_cast<std::int32_t>(own.count()));
      return to.back();
    };
    part.shape.queries = add(queries, part.queries);
    part.shape.keys = add(keys, part.keys);
    return part;
  }
  struct Rows {
    std::int64_t begin;
    std::int64_t end;
    [[nodiscard]] std::int64_t count() const { return std::max<std::int64_t>(end - begin, 0); }
  };
  /// The rows that a context rank has of a document, of the `count` rows from `first` on. In both of its chunks it has
  /// the end of the first one and the beginning of the second.
  [[nodiscard]] Rows rows_of(const Document& document, int rank, std::int64_t first, std::int64_t count) const {
    Rows out{tokens_of(rank), 0};
    std::int64_t before = 0;  // rows of the chunks before
    for (int i = 0; i < 2; ++i) {
      const Sharding::Range own = chunk(rank, i);
      const std::int64_t begin = std::max(document.first, own.begin);
      const std::int64_t end = std::min(document.first + document.rows, own.end);
      if (begin < end) {
        out.begin = std::min(out.begin, begin - own.begin + before);
        out.end = std::max(out.end, end - own.begin + before);
      }
      before += own.count();
    }
    return {std::max(out.begin, first), std::min(out.end, first + count)};
  }
  template <class U>
  View<U> keys_of(const Part& part, View<U> block) const {
    return behind(block, part.first_key * part.shape.batch * 2 * heads_.kv());
  }
  View<T> values_of(View<T> block) const { return behind(block, heads_.kv()); }
  // All rows: `width` columns of rows of `from` elements to columns of rows of `to` elements.
  [[nodiscard]] device::Runs columns(std::int64_t width, std::int64_t from, std::int64_t to) const {
    return {.rows = c_.rows(), .width = width, .from = {.row = from}, .to = {.row = to}};
  }
  // This rank's own keys and values as a block that can be sent.
  void copy_keys(View<T> input, View<T> block) {
    c_.device.copy_runs(columns(2 * heads_.kv(), heads_.qkv(), 2 * heads_.kv()), behind(input, heads_.q()), block);
  }
  void widen(View<T> from, View<float> to) {
    if constexpr (rounds) c_.device.copy_runs(device::Runs{.width = from.count}, from, to);
  }

  Context<D>& c_;
  AttentionHeads heads_;
  int ranks_;                       ///< c
  std::vector<TokenShare> tokens_;  ///< of each of them
  float score_factor_;
  float score_cap_;
};

}  // namespace galvatron::runtime
