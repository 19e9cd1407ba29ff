// Where the activations between layers lie, and what a change of that layout has to move.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/sharding.hpp>
#include <galvatron/strategy/ratios.hpp>
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
  return {std::max(a.sequence_begin, b.sequence_begin), std::min(a.sequence_end, b.sequence_end),
          std::max(a.batch_begin, b.batch_begin), std::min(a.batch_end, b.batch_end)};
}

/// The layout of a layer's input and output over the ranks [first_rank, first_rank + ranks()) of its stage. Samples are
/// cut over data ranks, sequences over `parts` ranks, and `replicas` ranks hold the same: innermost the replicas, then
/// the parts, then the data ranks. Under strided tensor ranks the replicas, or as many of the parts, lie around the
/// data ranks instead (`outer`). A local tensor is (sequence, batch, H), sequence-major.
///
/// Parts are runs of tokens. Under zigzag a sequence is cut into two chunks for each context rank, which holds one from
/// either end, so that causal attention is equal work for all. Megatron's sequence parallelism cuts what a context rank
/// holds over `cut` tensor ranks, in that order, so that these have it all when they put their parts together:
///
///     4 parts        rank   0    1    2    3   |   0    1    2    3
///     runs           tokens 0-1  2-3  4-5  6-7
///     zigzag         tokens 0    1    2    3       7    6    5    4        piece 0 | piece 1
///     zigzag, cut 2  tokens 0    6    2    4       1    7    3    5
///
/// By ratios parts are unequal, and some empty (TokenCut).
struct ActivationLayout {
  int first_rank = 0;
  int replicas = 1;
  int parts = 1;
  int data = 1;
  bool zigzag = false;
  std::int64_t batch = 1;  ///< samples of a micro-batch over all data ranks
  std::int64_t sequence = 1;
  int cut = 1;    ///< tensor ranks that share what a context rank holds in zigzag: neighbouring parts
  int outer = 1;  ///< of strided tensor ranks: all replicas or, where there are none, the parts of a context rank
  /// Of the ranks: a data rank's samples are as many as those of its ranks together say. Empty: equally many. They
  /// outlive the layout.
  std::span<const int> ratios{};
  /// The same of tokens: a part's are as many as those of its ranks together say.
  std::span<const int> token_ratios{};

  friend constexpr bool operator==(const ActivationLayout& a, const ActivationLayout& b) {
    return a.first_rank == b.first_rank && a.replicas == b.replicas && a.parts == b.parts && a.data == b.data &&
           a.zigzag == b.zigzag && a.batch == b.batch && a.sequence == b.sequence && a.cut == b.cut &&
           a.outer == b.outer && std::ranges::equal(a.ratios, b.ratios) &&
           std::ranges::equal(a.token_ratios, b.token_ratios);
  }
  [[nodiscard]] constexpr int ranks() const { return replicas * parts * data; }
  /// Some ranks have more than others.
  [[nodiscard]] constexpr bool is_uneven() const { return !ratios.empty() || !token_ratios.empty(); }
  [[nodiscard]] constexpr bool holds(int rank) const { return rank >= first_rank && rank < first_rank + ranks(); }
  /// What a rank holds, as the number of its part, of its samples and of its copy.
  struct Place {
    int part = 0;
    int data = 0;
    int replica = 0;
    friend constexpr bool operator==(const Place&, const Place&) = default;
  };
  /// The ranks by tp, cp and dp. Replicas are tp and parts cp, or under strided tensor ranks without replicas both tp
  /// and cp are parts, tp the faster: see part_modes.
  [[nodiscard]] constexpr RankLayout rank_layout() const {
    return has_strided_parts() ? stage_layout(outer, parts / outer, data, true, first_rank)
                               : stage_layout(replicas, parts, data, outer > 1, first_rank);
  }
  [[nodiscard]] constexpr RankModes part_modes() const {
    return has_strided_parts() ? RankMode::tp | RankMode::cp : RankModes(RankMode::cp);
  }
  [[nodiscard]] constexpr Place place(int rank) const { return place(rank_layout(), rank); }
  /// The same with rank_layout() at hand.
  [[nodiscard]] constexpr Place place(const RankLayout& ranks, int rank) const {
    return {ranks.coordinate(part_modes(), rank), ranks.coordinate(RankMode::dp, rank),
            replicas > 1 ? ranks.coordinate(RankMode::tp, rank) : 0};
  }
  /// The rank with that place.
  [[nodiscard]] constexpr int rank_at(const Place& at) const {
    const RankLayout ranks = rank_layout();
    return first_rank + ranks.offset(part_modes(), at.part) + ranks.offset(RankMode::dp, at.data) +
           (replicas > 1 ? ranks.offset(RankMode::tp, at.replica) : 0);
  }
  /// Runs of tokens that a rank holds, one after the other in its local tensor.
  [[nodiscard]] constexpr int pieces() const { return zigzag ? 2 : 1; }
  /// How samples are cut over data ranks. Without ratios they divide evenly.
  [[nodiscard]] constexpr Sharding samples() const {
    if (ratios.empty()) return Sharding::even(batch, data);
    const std::vector<std::int64_t> sums = ratio_sums(rank_layout(), RankMode::dp, ratios, first_rank);
    return Sharding::by_ratios(batch, std::span<const std::int64_t>(sums));
  }
  /// How tokens are cut over the parts. Without ratios they divide evenly.
  [[nodiscard]] constexpr TokenCut tokens() const {
    if (token_ratios.empty()) return {parts, cut, zigzag};
    return {ratio_sums(rank_layout(), part_modes(), token_ratios, first_rank), cut, zigzag};
  }
  /// What `rank` of the world holds in piece `piece`.
  [[nodiscard]] constexpr Region region(int rank, int piece = 0) const {
    const Place at = place(rank);
    return region(at, piece, samples().range(at.data), tokens());
  }
  /// The same with the samples and tokens() at hand, for who asks of many ranks.
  [[nodiscard]] constexpr Region region(const Place& at, int piece, Sharding::Range samples,
                                        const TokenCut& tokens) const {
    const Sharding::Range own = tokens.share(at.part, piece).of(sequence);
    return {own.begin, own.end, samples.begin, samples.end};
  }

 private:
  [[nodiscard]] constexpr bool has_strided_parts() const { return outer > 1 && replicas == 1; }
};

/// Of the ranks with which `rank` exchanges the tokens of experts.
/// @param samples  of the layout
constexpr ExchangedSamples exchanged_samples(const StrategySpec& spec, const ActivationLayout& layout,
                                             const Sharding& samples, int rank) {
  ExchangedSamples out;
  if (!spec.exchanges_tokens() || layout.ratios.empty()) return out;
  const RankLayout ranks = layout.rank_layout();
  for (const int member : spec.expert_layout(layout.first_rank).group(RankMode::tp | RankMode::ep, rank)) {
    const std::int64_t own = samples.count(ranks.coordinate(RankMode::dp, member));
    out.all += own;
    out.most = std::max(out.most, own);
  }
  return out;
}

/// What each rank of a layout holds, for who asks of many.
class HeldRegions {
 public:
  constexpr explicit HeldRegions(const ActivationLayout& layout)
      : layout_(layout), ranks_(layout.rank_layout()), samples_(layout.samples()), tokens_(layout.tokens()) {}

  [[nodiscard]] constexpr Region of(const ActivationLayout::Place& at, int piece) const {
    return layout_.region(at, piece, samples_.range(at.data), tokens_);
  }
  [[nodiscard]] constexpr ActivationLayout::Place place(int rank) const { return layout_.place(ranks_, rank); }
  /// Tokens of a rank in all pieces.
  [[nodiscard]] constexpr std::int64_t tokens(const ActivationLayout::Place& at) const {
    std::int64_t sum = 0;
    for (int piece = 0; piece < layout_.pieces(); ++piece) sum += of(at, piece).tokens();
    return sum;
  }
  [[nodiscard]] constexpr const ActivationLayout& layout() const { return layout_; }

 private:
  ActivationLayout layout_;
  RankLayout ranks_;
  Sharding samples_;
  TokenCut tokens_;
};

/// Megatron sequence parallelism cuts sequences over tensor ranks, Ulysses and ring attention over context ranks (ring:
/// zigzag), and Megatron's with one of them over both. Layouts are equal where every rank holds the same tokens,
/// whatever the strategy is called.
/// @param ratios  of the stage's ranks
constexpr ActivationLayout activation_layout(const StrategySpec& spec, int first_rank, std::int64_t microbatch,
                                             std::int64_t sequence, const RankRatios& ratios = {}) {
  const bool megatron = spec.cuts_over_tensor();
  const RankRatios own = ratios.of(spec);
  const bool cuts_tokens = megatron || spec.context > 1;
  return {.first_rank = first_rank,
          .replicas = megatron ? 1 : spec.tensor,
          .parts = (megatron ? spec.tensor : 1) * spec.context,
          .data = spec.data,
          .zigzag = spec.uses_ring(),
          .batch = microbatch,
          .sequence = sequence,
          .cut = megatron && spec.uses_ring() ? spec.tensor : 1,
          .outer = spec.strided ? spec.tensor : 1,
          .ratios = own.samples,
          .token_ratios = cuts_tokens ? own.tokens : std::span<const int>{}};
}

/// The same inside tensor-parallel regions, where tensor ranks have put together what Megatron's sequence parallelism
/// cuts: every rank has all tokens of its context rank.
constexpr ActivationLayout region_layout(const StrategySpec& spec, int first_rank, std::int64_t microbatch,
                                         std::int64_t sequence, const RankRatios& ratios = {}) {
  return activation_layout(spec.with_cut(false), first_rank, microbatch, sequence, ratios);
}

/// The part of `to.region(receiver, receiver_piece)` that `sender` supplies out of `from.region(sender, sender_piece)`
/// when activations move from layout `from` to layout `to`; empty for most. Where the data is replicated, a rank serves
/// itself, and the others spread over the replicas, under strided tensor ranks so that they stay in their own run.
constexpr Region transfer(const ActivationLayout& from, const ActivationLayout& to, int sender, int receiver,
                          int sender_piece = 0, int receiver_piece = 0) {
  const Region part = intersection(from.region(sender, sender_piece), to.region(receiver, receiver_piece));
  if (part.empty()) return {};
  if (from.replicas == 1) return part;
  const ActivationLayout::Place of_sender = from.place(sender);
  ActivationLayout::Place chosen = of_sender;
  if (from.holds(receiver)) chosen.replica = from.place(receiver).replica;
  if (!from.holds(receiver) || from.rank_at(chosen) != receiver) {
    const int local = receiver - to.first_rank;
    chosen.replica = (from.outer > 1 ? local / (from.ranks() / from.outer) : local) % from.replicas;
  }
  return chosen == of_sender ? part : Region{};
}

}  // namespace galvatron
