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

/// The layout of a layer's input and output over the ranks [first_rank, first_rank + spec.ranks()) of its stage.
/// Samples are cut over data ranks; the sequence is cut over tensor ranks under Megatron sequence parallelism and is
/// otherwise replicated on them. A local tensor is (sequence, batch, H), sequence-major.
struct ActivationLayout {
  int first_rank = 0;
  int tensor = 1;
  int data = 1;
  bool sequence_cut = false;
  std::int64_t batch = 1;  ///< samples of a micro-batch over all data ranks
  std::int64_t sequence = 1;

  friend constexpr bool operator==(const ActivationLayout&, const ActivationLayout&) = default;
  [[nodiscard]] constexpr int ranks() const { return tensor * data; }
  [[nodiscard]] constexpr bool holds(int rank) const { return rank >= first_rank && rank < first_rank + ranks(); }
  /// What `rank` of the world holds.
  [[nodiscard]] constexpr Region region(int rank) const {
    const int local = rank - first_rank;
    const std::int64_t samples = batch / data;
    const std::int64_t tokens = sequence_cut ? sequence / tensor : sequence;
    const std::int64_t s = sequence_cut ? (local % tensor) * tokens : 0;
    const std::int64_t b = (local / tensor) * samples;
    return {s, s + tokens, b, b + samples};
  }
};

constexpr ActivationLayout activation_layout(const StrategySpec& spec, int first_rank, std::int64_t microbatch,
                                             std::int64_t sequence) {
  return {first_rank, spec.tensor, spec.data, spec.sequence == SequenceKind::megatron, microbatch, sequence};
}

/// The part of `to.region(receiver)` that `sender` supplies when activations move from layout `from` to layout `to`;
/// empty for most pairs. Where the data is replicated, a rank serves itself, and the others spread over the replicas.
constexpr Region transfer(const ActivationLayout& from, const ActivationLayout& to, int sender, int receiver) {
  const Region want = to.region(receiver);
  const Region part = intersection(from.region(sender), want);
  if (part.empty()) return {};
  if (from.sequence_cut || from.tensor == 1) return part;  // no replicas
  // The replicas are the tensor ranks of the sender's data index.
  const int local = sender - from.first_rank;
  const int base = from.first_rank + local / from.tensor * from.tensor;
  const bool receiver_is_replica = receiver >= base && receiver < base + from.tensor;
  const int chosen = receiver_is_replica ? receiver : base + (receiver - to.first_rank) % from.tensor;
  return chosen == sender ? part : Region{};
}

}  // namespace galvatron
