// The price of ring attention (Liu et al., arXiv 2310.01889).
//
// A rank attends with its own queries to one block of keys and values after the other; in c steps with c - 1 sends the
// blocks go round, and while a step computes the next block arrives. Causal models use the zigzag layout
// (strategy/layout.hpp): the first step is a causal block of S/c x S/c, every other one half a block without mask, so
// that all ranks have equal work. After a step that is not the first the results are merged by their log-sum-exp, in
// fp32. Backward goes round again; the gradients of keys and values (fp32) travel with their block, one step behind,
// and take one step more to come home. Counted is the last rank of the ring, whose steps are all of its queries and
// half of a block's keys (those of others: half of their queries and all keys):
//
//     turn          0            1 .. c-2                       c-1                    after
//     computes      attention 0  attention j                    attention c-1
//     sends beside  k, v         k, v (backward: and dk, dv)    (backward: dk, dv)     (backward: dk, dv)
//
// By ratios ranks have unequal blocks, and each counts its own steps. A message is as large as the larger of the block
// that the rank sends and the one that it gets. Turns 1 to c - 2 count as so many of the mean size, since they overlap
// as a whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::cost::detail {

/// What the steps of a ring attend to and send, in tokens.
class RingSteps {
 public:
  constexpr explicit RingSteps(const LayerShape& s)
      : s_(s),
        even_(s.shares.has_even_tokens()),
        rank_(even_ ? static_cast<int>(s.c) - 1 : s.spec.rank_layout().coordinate(RankMode::cp, s.batch.local_rank)) {}

  /// Of step j > 0.
  [[nodiscard]] constexpr bool sees_first_chunk(int j) const { return s_.layer.causal && source(j) < rank_; }
  [[nodiscard]] constexpr std::int64_t queries(int j) const {
    return !s_.layer.causal || sees_first_chunk(j) ? s_.tokens : second_chunk();
  }
  [[nodiscard]] constexpr std::int64_t second_chunk() const { return s_.tokens - first_chunk(rank_); }
  [[nodiscard]] constexpr std::int64_t keys(int j) const {
    return sees_first_chunk(j) ? first_chunk(source(j)) : block(source(j));
  }
  /// The larger of the block that step j sends, and the one that comes.
  [[nodiscard]] constexpr std::int64_t moved(int j) const { return std::max(block(source(j)), block(source(j + 1))); }

 private:
  /// The rank whose block step j has.
  [[nodiscard]] constexpr int source(int j) const {
    const int c = static_cast<int>(s_.c);
    return (rank_ - j + c) % c;
  }
  [[nodiscard]] constexpr std::int64_t block(int rank) const {
    return even_ ? s_.tokens : s_.shares.context_tokens()[static_cast<std::size_t>(rank)].count(s_.sequence);
  }
  [[nodiscard]] constexpr std::int64_t first_chunk(int rank) const {
    return even_ ? s_.tokens / 2
                 : s_.shares.context_tokens()[static_cast<std::size_t>(rank)].runs[0].count(s_.sequence);
  }

  const LayerShape& s_;
  bool even_;
  int rank_;
};

/// A size that steps have in the mean.
struct MeanSize {
  std::int64_t sum = 0;
  std::int64_t times = 0;

  constexpr void add(std::int64_t size) {
    sum += size;
    times += size > 0 ? 1 : 0;
  }
  [[nodiscard]] constexpr std::int64_t mean() const { return times == 0 ? 0 : divide_up(sum, times); }
};

constexpr void ring_attention(const LayerShape& s, op::Kind kind, op::WorkList& out) {
  const bool backward = kind == op::Kind::attention_backward;
  const int c = static_cast<int>(s.c);
  const std::int64_t kv_bytes = s.rows * s.kv * s.e;
  const RingSteps steps(s);
  const auto turns = [&](op::Work work, std::int64_t times, int overlap) {
    work.overlap = static_cast<std::uint8_t>(overlap);
    push_times(out, work, times);
  };
  const auto attend = [&](std::int64_t queries, std::int64_t keys, bool masked) {
    return s.attention(kind, s.b * s.heads, queries, keys, s.layer.head_dim, masked);
  };
  const auto push = [&](op::Kind what, const MeanSize& elements, std::int64_t factor) {
    push_times(out, compute(what, elements.mean() * factor), elements.times);
  };
  // Sums over the steps are in fp32; where that is the precision anyway they are the result.
  const bool rounds = s.e != 4;
  // What the first step gave becomes the sum.
  const auto convert = [&](std::int64_t width) {
    if (rounds) out.push(compute(op::Kind::copy, s.rows * width * 4));
  };

  out.push(compute(op::Kind::copy, 2 * kv_bytes));  // a block that can be sent
  // The numbers of forward and backward differ, since backward may hold both.
  const int first = backward ? 3 : 1;
  const int middle = first + 1;
  const int last = backward ? 5 : 0;
  const auto send_keys = [&](std::int64_t tokens, std::int64_t times, int overlap) {
    turns(context_group(s, op::Kind::send, s.b * tokens * 2 * s.kv * s.e), times, overlap);
  };
  const auto send_gradients = [&](std::int64_t tokens, std::int64_t times, int overlap) {
    turns(context_group(s, op::Kind::send, s.b * tokens * 2 * s.kv * 4), times, overlap);
  };
  turns(attend(s.tokens, s.tokens, s.layer.causal), s.tokens > 0 ? 1 : 0, first);
  send_keys(steps.moved(0), 1, first);
  MeanSize all_queries, second_chunk, keys, gradients, merged_queries, merged_keys;  // keys of the first two
  for (int j = 1; j < c; ++j) {
    const bool sees = steps.queries(j) > 0 && steps.keys(j) > 0;
    if (sees) {
      merged_queries.add(steps.queries(j));
      merged_keys.add(steps.keys(j));
    }
    if (j == c - 1) break;
    if (sees) (steps.queries(j) == s.tokens ? all_queries : second_chunk).add(steps.keys(j));
    keys.add(steps.moved(j));
    gradients.add(steps.moved(j - 1));
  }
  turns(attend(s.tokens, all_queries.mean(), false), all_queries.times, middle);
  turns(attend(steps.second_chunk(), second_chunk.mean(), false), second_chunk.times, middle);
  send_keys(keys.mean(), keys.times, middle);
  if (steps.queries(c - 1) > 0 && steps.keys(c - 1) > 0)
    turns(attend(steps.queries(c - 1), steps.keys(c - 1), false), 1, last);
  if (backward) {
    send_gradients(gradients.mean(), gradients.times, middle);
    send_gradients(steps.moved(c - 2), 1, last);
    send_gradients(steps.moved(c - 1), 1, 0);
    convert(s.q);
    convert(2 * s.kv);
    push(op::Kind::add, merged_queries, s.b * s.q);
    push(op::Kind::add, merged_keys, s.b * 2 * s.kv);
  } else {
    push(op::Kind::add, merged_queries, s.b * s.q);
    convert(s.q);
  }
  if (rounds) out.push(compute(op::Kind::copy, s.rows * s.q * s.e));
  if (backward) out.push(compute(op::Kind::copy, 2 * kv_bytes));
}

}  // namespace galvatron::cost::detail
