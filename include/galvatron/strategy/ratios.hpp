// Ratios: how the ranks of a stage that are not alike share what layers with shards by ratio cut, and what one of them
// has of what tensor-parallel and context-parallel ranks share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// The vocabulary shards are padded to multiples of this many rows.
inline constexpr std::int64_t vocabulary_alignment = 64;

/// Lists with a ratio for each rank of a stage, in proportion, down to 0; an empty one: equally. Ranks that have the
/// same of an extent have what their ratios together say: data ranks share samples, tensor ranks heads, widths and the
/// vocabulary, and tokens are cut over the ranks that a sequence lies on between operations. The lists outlive it.
struct RankRatios {
  std::span<const int> samples{};
  std::span<const int> states{};      ///< of ZeRO
  std::span<const int> heads{};       ///< of attention, and in Ulysses' core: key/value heads with their query heads
  std::span<const int> widths{};      ///< hidden units of MLPs
  std::span<const int> vocabulary{};  ///< rows of its table, and logits
  std::span<const int> tokens{};      ///< of a sequence

  /// Some of what tensor and context ranks share is not shared equally.
  [[nodiscard]] constexpr bool cut_tensors() const {
    return !heads.empty() || !widths.empty() || !vocabulary.empty() || !tokens.empty();
  }
  /// Those that a strategy takes.
  [[nodiscard]] constexpr RankRatios of(const StrategySpec& spec) const {
    return spec.shard_kind == ShardKind::by_ratio ? *this : RankRatios{};
  }
};

/// Samples of a micro-batch on the ranks that exchange the tokens of experts. Their memory for experts is for the mean,
/// so that all of them know in how many rounds tokens come.
struct ExchangedSamples {
  std::int64_t all =
      0;  ///< of these ranks together, those of a data rank on each of its ranks; 0: all have equally many
  std::int64_t most = 0;  ///< of the rank that has most
};

/// Sums of the ratios of ranks by their coordinate along some modes.
constexpr std::vector<std::int64_t> ratio_sums(const RankLayout& ranks, RankModes modes, std::span<const int> ratios,
                                               int first_rank = 0) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(ranks.size(modes)));
  for (std::size_t i = 0; i < ratios.size(); ++i)
    out[static_cast<std::size_t>(ranks.coordinate(modes, first_rank + static_cast<int>(i)))] += ratios[i];
  return out;
}

/// What a rank has of a sequence: a run of tokens, or under zigzag two, of which one may be empty.
struct TokenShare {
  std::array<Share, 2> runs{Share{}, Share{0, 0, 1}};

  friend constexpr bool operator==(const TokenShare&, const TokenShare&) = default;
  [[nodiscard]] constexpr std::int64_t count(std::int64_t sequence) const {
    return runs[0].count(sequence) + runs[1].count(sequence);
  }
};

/// How a sequence is cut over the ranks that it lies on: over context ranks and, where `cut` > 1, what one of these has
/// over as many tensor ranks, which are neighbouring parts. Parts are runs of tokens. Under zigzag a context rank has
/// two chunks, one from either end of the sequence, and a part is two pieces of what the rank has of both: those of the
/// two chunks, or where all is of one chunk its halves.
class TokenCut {
 public:
  /// Equal parts.
  constexpr TokenCut(int parts, int cut, bool zigzag) : parts_(parts), cut_(cut), zigzag_(zigzag) {}
  /// @param ratios  of the parts, at least 0 and not all 0
  constexpr TokenCut(const std::vector<std::int64_t>& ratios, int cut, bool zigzag)
      : TokenCut(static_cast<int>(ratios.size()), cut, zigzag) {
    ends_.push_back(0);
    for (const std::int64_t ratio : ratios) ends_.push_back(ends_.back() + ratio);
  }

  [[nodiscard]] constexpr int pieces() const { return zigzag_ ? 2 : 1; }
  [[nodiscard]] constexpr Share share(int part, int piece = 0) const {
    const std::int64_t all = end(parts_);
    const std::int64_t begin = end(part);
    const std::int64_t own = end(part + 1) - begin;
    if (!zigzag_) return {begin, begin + own, all};
    const int context = part / cut_ * cut_;
    const std::int64_t chunk = end(context + cut_) - end(context);  // in halves: each of the two, of twice `all`
    std::int64_t from = 2 * (begin - end(context));
    std::int64_t to = from + 2 * own;
    (piece == 0 ? to : from) = from < chunk && chunk < to ? chunk : from + own;
    const std::int64_t before = to <= chunk ? end(context) : 2 * (all - chunk) - end(context);
    return {before + from, before + to, 2 * all};
  }
  [[nodiscard]] constexpr TokenShare of(int part) const {
    return {{share(part), zigzag_ ? share(part, 1) : Share{0, 0, 1}}};
  }

 private:
  /// The ratios of the parts before one, together.
  [[nodiscard]] constexpr std::int64_t end(int part) const {
    return ends_.empty() ? part : ends_[static_cast<std::size_t>(part)];
  }

  int parts_;
  int cut_;
  bool zigzag_;
  std::vector<std::int64_t> ends_{};
};

/// What one rank has of the extents that tensor-parallel and context-parallel ranks share.
class RankShares {
 public:
  /// Equal shares of tensor ranks alone. @param rank  of them; -1: any, whose part has the size of all others
  static constexpr RankShares even(int degree, int rank = -1) { return even({.tensor = degree}, rank, 0); }
  /// The same with context ranks. @param context  of them
  static constexpr RankShares even(const StrategySpec& spec, int rank, int context) {
    RankShares out;
    const std::int64_t first = rank < 0 ? 0 : rank;
    out.rank_ = rank;
    out.degree_ = spec.tensor;
    out.heads_ = out.widths_ = out.vocabulary_ = {first, first + 1, spec.tensor};
    out.core_heads_ = {context, context + 1, spec.context};
    const bool zigzag = spec.uses_ring();
    out.region_tokens_ = out.tokens_ = TokenCut(spec.context, 1, zigzag).of(context);
    if (spec.cuts_over_tensor())
      out.tokens_ =
          TokenCut(spec.tensor * spec.context, spec.tensor, zigzag).of(context * spec.tensor + static_cast<int>(first));
    return out;
  }
  /// Of the stage's rank `local`.
  constexpr RankShares(const StrategySpec& spec, const RankRatios& ratios, int local)
      : RankShares(even(spec, spec.tensor_rank(local), spec.rank_layout().coordinate(RankMode::cp, local))) {
    const RankRatios own = ratios.of(spec);
    const RankLayout ranks = spec.rank_layout();
    const auto set = [&](Share& share, std::span<const int> list) {
      if (list.empty() || degree_ == 1) return false;
      share = share_of(ratio_sums(ranks, RankMode::tp, list), rank_);
      return true;
    };
    set(heads_, own.heads);
    set(widths_, own.widths);
    has_even_vocabulary_ = !set(vocabulary_, own.vocabulary);
    const RankModes both = RankMode::tp | RankMode::cp;
    if (spec.exchanges_heads() && !own.heads.empty()) {
      // Of the heads of its tensor rank.
      const std::vector<std::int64_t> sums = ratio_sums(ranks, both, own.heads);
      std::vector<std::int64_t> context;
      for (int i = 0; i < spec.context; ++i) context.push_back(sums[static_cast<std::size_t>(i * spec.tensor + rank_)]);
      core_heads_ = share_of(context, ranks.coordinate(RankMode::cp, local));
      has_even_core_heads_ = false;
    }
    if (own.tokens.empty() || (spec.context == 1 && !spec.cuts_over_tensor())) return;
    const bool zigzag = spec.uses_ring();
    const TokenCut cut(ratio_sums(ranks, RankMode::cp, own.tokens), 1, zigzag);
    for (int i = 0; i < spec.context; ++i) context_tokens_.push_back(cut.of(i));
    region_tokens_ = tokens_ = context_tokens_[static_cast<std::size_t>(ranks.coordinate(RankMode::cp, local))];
    has_even_tokens_ = false;
    // Between the regions of Megatron's sequence parallelism tensor ranks have tokens of their own.
    if (spec.cuts_over_tensor())
      tokens_ = TokenCut(ratio_sums(ranks, both, own.tokens), spec.tensor, zigzag).of(ranks.coordinate(both, local));
  }

  friend constexpr bool operator==(const RankShares&, const RankShares&) = default;
  /// Of the tensor ranks; -1: any.
  [[nodiscard]] constexpr int rank() const { return rank_; }
  [[nodiscard]] constexpr int degree() const { return degree_; }
  [[nodiscard]] constexpr bool has_even_tokens() const { return has_even_tokens_; }
  /// Of an extent that is `units` parts of one size, which are not cut: key/value heads, or hidden units.
  [[nodiscard]] constexpr Sharding::Range of(std::int64_t extent, std::int64_t units, bool of_heads) const {
    const Sharding::Range own = (of_heads ? heads_ : widths_).of(units);
    return {extent / units * own.begin, extent / units * own.end};
  }
  [[nodiscard]] constexpr const Share& heads() const { return heads_; }
  [[nodiscard]] constexpr const Share& widths() const { return widths_; }
  /// Of the heads of the tensor rank, inside the core of Ulysses. Equal ones may be parts of a key/value head.
  [[nodiscard]] constexpr const Share& core_heads() const { return core_heads_; }
  [[nodiscard]] constexpr bool has_even_core_heads() const { return has_even_core_heads_; }
  /// Of the tokens of a sequence, between the regions of Megatron's sequence parallelism.
  [[nodiscard]] constexpr const TokenShare& tokens() const { return tokens_; }
  /// Inside them.
  [[nodiscard]] constexpr const TokenShare& region_tokens() const { return region_tokens_; }
  /// The same of each context rank; empty where all have equally many.
  [[nodiscard]] constexpr std::span<const TokenShare> context_tokens() const { return context_tokens_; }
  /// Tokens of the vocabulary.
  [[nodiscard]] constexpr Sharding::Range vocabulary(std::int64_t extent) const {
    if (!has_even_vocabulary_) return vocabulary_.of(extent, vocabulary_alignment);
    return Sharding::even(extent, degree_, vocabulary_alignment).range(rank_ < 0 ? 0 : rank_);
  }
  /// Rows of its table, padding included, which is behind the last token.
  [[nodiscard]] constexpr std::int64_t vocabulary_rows(std::int64_t extent) const {
    return has_even_vocabulary_ ? Sharding::even(extent, degree_, vocabulary_alignment).largest()
                                : round_up(vocabulary(extent).count(), vocabulary_alignment);
  }
  /// The same for who makes room for any rank's first tokens.
  [[nodiscard]] constexpr RankShares of_any_rank() const {
    RankShares out = *this;
    out.rank_ = -1;
    return out;
  }

 private:
  constexpr RankShares() = default;
  static constexpr Share share_of(const std::vector<std::int64_t>& ratios, int rank) {
    Share out{0, 0, 0};
    for (int i = 0; i < static_cast<int>(ratios.size()); ++i) {
      const std::int64_t ratio = ratios[static_cast<std::size_t>(i)];
      if (i < rank) out.begin += ratio;
      if (i <= rank) out.end += ratio;
      out.all += ratio;
    }
    return out;
  }

  int rank_ = -1;
  int degree_ = 1;
  bool has_even_vocabulary_ = true;
  bool has_even_core_heads_ = true;
  bool has_even_tokens_ = true;
  Share heads_, widths_, vocabulary_, core_heads_;
  TokenShare tokens_, region_tokens_;
  std::vector<TokenShare> context_tokens_{};
};

/// The shares of the context ranks that a rank of the stage is among, in their order.
constexpr std::vector<RankShares> context_shares(const StrategySpec& spec, const RankRatios& ratios, int local) {
  std::vector<RankShares> out;
  for (const int member : spec.rank_layout().group(RankMode::cp, local)) out.emplace_back(spec, ratios, member);
  return out;
}

}  // namespace galvatron
