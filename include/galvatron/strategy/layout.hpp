// Where the activations between layers lie, and what a change of that layout has to move.
#pragma once

#include <cstdint>

#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// Tokens [sequence_begin, sequence_end) of samples [batch_begin, batch_end) of a micro-batch.
struct Region {
  std::int64_t sequence_begin = 0;
  std::int64_t sequence_end = 0;
  std::int64_t batch_begin = 0;
  std::int64_t batch_end = 0;

  friend constexpr bool operator==(const Region&, const Region&) = default;
  [[nodiscard]] constexpr std::int64_t tokens() const {
    return (sequence_end - sequence_begin) * (batch_end - batch_begin);
  }
  [[nodiscard]] constexpr bool empty() const { return sequence_end <= sequence_begin || batch_end <= batch_begin; }
};

constexpr Region intersection(const Region& a, const Region& b) {
  const auto low = [](std::int64_t x, std::int64_t y) { return x > y ? x : y; };
  const auto high = [](std::int64_t x, std::int64_t y) { return x < y ? x : y; };
  return {low(a.sequence_begin, b.sequence_begin), high(a.sequence_end, b.sequence_end),
          low(a.batch_begin, b.batch_begin), high(a.batch_end, b.batch_end)};
}

/// The layout of a layer's input and output over the ranks [first_rank, first_rank + ranks()) of its stage. Samples are
/// cut over data ranks, sequences over `parts` ranks, and `replicas` neighbouring ranks hold the same: innermost the
/// replicas, then the parts, then the data ranks. A local tensor is (sequence, batch, H), sequence-major.
///
/// Parts are runs of tokens. Under zigzag a sequence is cut into 2 parts() chunks and a rank holds two of them, one
/// from either end, so that causal attention is equal work for all:
///
///     4 parts    rank   0    1    2    3   |   0    1    2    3
///     runs       tokens 0-1  2-3  4-5  6-7
///     zigzag     tokens 0    1    2    3       7    6    5    4        piece 0 | piece 1
struct ActivationLayout {
  int first_rank = 0;
  int replicas = 1;
  int parts = 1;
  int data = 1;
  bool zigzag = false;
  std::int64_t batch = 1;  ///< samples of a micro-batch over all data ranks
  std::int64_t sequence = 1;

  friend constexpr bool operator==(const ActivationLayout&, const ActivationLayout&) = default;
  [[nodiscard]] constexpr int ranks() const { return replicas * parts * data; }
  [[nodiscard]] constexpr bool holds(int rank) const { return rank >= first_rank && rank < first_rank + ranks(); }
  /// Runs of tokens that a rank holds, one after the other in its local tensor.
  [[nodiscard]] constexpr int pieces() const { return zigzag ? 2 : 1; }
  /// What `rank` of the world holds in piece `piece`.
  [[nodiscard]] constexpr Region region(int rank, int piece = 0) const {
    const int local = rank - first_rank;
    const std::int64_t samples = batch / data;
    const std::int64_t tokens = sequence / parts / pieces();
    const int part = local / replicas % parts;
    const std::int64_t s = (piece == 0 ? part : 2 * parts - 1 - part) * tokens;
    const std::int64_t b = local / replicas / parts * samples;
    return {s, s + tokens, b, b + samples};
  }
};

/// Megatron sequence parallelism cuts sequences over tensor ranks, Ulysses and ring attention over context ranks (ring:
/// zigzag), and Megatron's with a context degree over both. Layouts are equal where every rank holds the same tokens,
/// whatever the strategy is called.
constexpr ActivationLayout activation_layout(const StrategySpec& spec, int first_rank, std::int64_t microbatch,
                                             std::int64_t sequence) {
  const bool megatron = spec.sequence == SequenceKind::megatron;
  const bool ring = spec.sequence == SequenceKind::ring || (megatron && spec.context > 1);
  return {
      first_rank, megatron ? 1 : spec.tensor, (megatron ? spec.tensor : 1) * spec.context, spec.data, ring, microbatch,
      sequence};
}

/// The part of `to.region(receiver, receiver_piece)` that `sender` supplies out of `from.region(sender, sender_piece)`
/// when activations move from layout `from` to layout `to`; empty for most. Where the data is replicated, a rank serves
/// itself, and the others spread over the replicas.
constexpr Region transfer(const ActivationLayout& from, const ActivationLayout& to, int sender, int receiver,
                          int sender_piece = 0, int receiver_piece = 0) {
  const Region part = intersection(from.region(sender, sender_piece), to.region(receiver, receiver_piece));
  if (part.empty()) return {};
  if (from.replicas == 1) return part;
  const int local = sender - from.first_rank;
  const int base = from.first_rank + local / from.replicas * from.replicas;
  const bool receiver_is_replica = receiver >= base && receiver < base + from.replicas;
  const int chosen = receiver_is_replica ? receiver : base + (receiver - to.first_rank) % from.replicas;
  return chosen == sender ? part : Region{};
}

}  // namespace galvatron
