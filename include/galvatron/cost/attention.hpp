// The counts of the attention core: what happens between the projection to queries, keys and values and the output
// projection, and the messages that context parallelism adds to it.
//
// Ulysses (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509): four all-to-alls a pass, of queries, keys, values and
// output, from tokens to heads and back, and the same for the gradients. A rank has all S tokens of A / (t c) heads in
// between. Where there are fewer key/value heads than ranks, each is sent to c / kv_heads of them, and backward adds up
// the gradients of the copies. Towards heads a rank packs what it sends, back it unpacks what it got: a copy for each.
//
//     tokens 0..S/c-1, all heads   --- all-to-all -->   tokens 0..S-1, heads 0..A/(tc)-1
//
// Ring attention (Liu et al., arXiv 2310.01889): a rank attends with its own queries to one block of keys and values
// after the other; in c steps with c - 1 sends the blocks go round, and while a step computes the next block arrives.
// Causal models use the zigzag layout (strategy/layout.hpp): the first step is a causal block of S/c x S/c, every other
// one half a block without mask, so that all ranks have equal work. After a step that is not the first the results are
// merged by their log-sum-exp, in fp32. Backward goes round again; the gradients of keys and values (fp32) travel with
// their block, one step behind, and take one step more to come home. Counted is the last rank of the ring, whose steps
// are all of its queries and half of a block's keys (those of others: half of their queries and all keys):
//
//     turn          0            1 .. c-2                       c-1                    after
//     computes      attention 0  attention j                    attention c-1
//     sends beside  k, v         k, v (backward: and dk, dv)    (backward: dk, dv)     (backward: dk, dv)
//
// In an image with windows (Liu et al., arXiv 2103.14030) every window is a sequence of its own. The biases of pairs of
// tokens are read from their table where they are needed.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost::detail {

class AttentionCounts {
 public:
  explicit constexpr AttentionCounts(const LayerShape& shape) : s_(shape) {}

  constexpr void ring_forward(op::WorkList& out) const {
    out.push(compute(op::Kind::copy, 2 * kv_bytes()));  // a block that can be sent
    ring(op::Kind::attention_forward, out);
    merge(out, s_.rows * s_.q);
    convert(out, s_.q);
    if (rounds()) out.push(compute(op::Kind::copy, s_.rows * s_.q * s_.e));
  }
  constexpr void ring_backward(op::WorkList& out) const {
    out.push(compute(op::Kind::copy, 2 * kv_bytes()));
    ring(op::Kind::attention_backward, out);
    convert(out, s_.q);
    convert(out, 2 * s_.kv);
    merge(out, s_.rows * s_.q);
    merge(out, s_.rows * (s_.layer.causal ? s_.kv : 2 * s_.kv));  // half of a block's keys gave something
    if (rounds()) out.push(compute(op::Kind::copy, s_.rows * s_.q * s_.e));
    out.push(compute(op::Kind::copy, 2 * kv_bytes()));
  }
  /// Queries, outputs or their gradients, to heads or back to tokens.
  constexpr void exchange_queries(op::WorkList& out) const { exchange(out, s_.rows * s_.q * s_.e, 1); }
  constexpr void projection_to_heads(op::WorkList& out) const {
    exchange_queries(out);
    exchange(out, copied_kv_bytes(), 2);
  }
  constexpr void projection_to_tokens(op::WorkList& out) const {
    exchange_queries(out);
    exchange(out, copied_kv_bytes(), 2, kv_bytes());  // what is copied first; the other copies are added
    if (copied_kv() > s_.kv_heads)
      out.push({.kind = op::Kind::add, .m = s_.rows * (copied_kv() - s_.kv_heads) * s_.layer.head_dim, .times = 2});
  }

 private:
  [[nodiscard]] constexpr op::Work attention(op::Kind kind, std::int64_t queries, std::int64_t keys,
                                             bool causal) const {
    return {.kind = kind,
            .m = s_.b * s_.heads,
            .n = queries,
            .k = keys,
            .l = s_.layer.head_dim,
            .causal = causal,
            .unfused = !s_.traits.passes.fused_attention,
            .dropout = !s_.traits.passes.fused_attention && s_.traits.passes.dropout};
  }
  [[nodiscard]] constexpr op::Work in_context_group(op::Kind kind, std::int64_t bytes) const {
    op::Work work = compute(kind, bytes, kind == op::Kind::send ? 1 : s_.c, kind == op::Kind::send ? s_.c : 0);
    work.stride = s_.spec.shard_stride();
    return work;
  }
  // Ulysses.
  [[nodiscard]] constexpr std::int64_t copied_kv() const { return larger(s_.kv_heads, s_.c); }
  [[nodiscard]] constexpr std::int64_t copied_kv_bytes() const {
    return s_.rows * copied_kv() * s_.layer.head_dim * s_.e;
  }
  constexpr void exchange(op::WorkList& out, std::int64_t bytes, std::int32_t times) const {
    exchange(out, bytes, times, bytes);
  }
  constexpr void exchange(op::WorkList& out, std::int64_t bytes, std::int32_t times, std::int64_t packed) const {
    for (op::Work work : {compute(op::Kind::copy, packed), in_context_group(op::Kind::all_to_all, bytes)}) {
      work.times = times;
      out.push(work);
    }
  }
  // Ring.
  [[nodiscard]] constexpr std::int64_t kv_bytes() const { return s_.rows * s_.kv * s_.e; }
  constexpr void ring(op::Kind kind, op::WorkList& out) const {
    const bool backward = kind == op::Kind::attention_backward;
    const auto turns = [&](op::Work work, std::int64_t times, int overlap) {
      if (times <= 0) return;
      work.times = static_cast<std::int32_t>(times);
      work.overlap = static_cast<std::uint8_t>(overlap);
      out.push(work);
    };
    // The numbers of forward and backward differ, since backward may hold both.
    const int first = backward ? 3 : 1;
    const int middle = first + 1;
    const int last = backward ? 5 : 0;
    const op::Work own = attention(kind, s_.tokens, s_.tokens, s_.layer.causal);
    const op::Work other = attention(kind, s_.tokens, s_.layer.causal ? s_.tokens / 2 : s_.tokens, false);
    const op::Work keys = in_context_group(op::Kind::send, 2 * kv_bytes());
    const op::Work gradients = in_context_group(op::Kind::send, s_.rows * 2 * s_.kv * 4);
    turns(own, 1, first);
    turns(keys, 1, first);
    turns(other, s_.c - 2, middle);
    turns(keys, s_.c - 2, middle);
    turns(other, 1, last);
    if (!backward) return;
    turns(gradients, s_.c - 2, middle);
    turns(gradients, 1, last);
    turns(gradients, 1, 0);
  }
  constexpr void merge(op::WorkList& out, std::int64_t elements) const {
    out.push({.kind = op::Kind::add, .m = elements, .times = static_cast<std::int32_t>(s_.c - 1)});
  }
  // Sums over the steps are in fp32; where that is the precision anyway they are the result.
  [[nodiscard]] constexpr bool rounds() const { return s_.e != 4; }
  // What the first step gave becomes the sum.
  constexpr void convert(op::WorkList& out, std::int64_t width) const {
    if (rounds()) out.push(compute(op::Kind::copy, s_.rows * width * 4));
  }

  const LayerShape& s_;
};

}  // namespace galvatron::cost::detail
