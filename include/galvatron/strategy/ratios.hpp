// Ratios: how the ranks of a stage that are not alike share what layers with shards by ratio cut, and what one of them
// has of what tensor-parallel ranks share.
#pragma once

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
  std::span<const int> heads{};       ///< of attention: key/value heads with their query heads
  std::span<const int> widths{};      ///< hidden units of MLPs
  std::span<const int> vocabulary{};  ///< rows of its table, and logits
  std::span<const int> tokens{};      ///< of a sequence

  /// Some of what tensor ranks share is not shared equally.
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

/// What one rank has of the extents that tensor-parallel ranks share.
class TensorShares {
 public:
  /// Equal shares. @param rank  of the tensor ranks; -1: any, whose part has the size of all others
  static constexpr TensorShares even(int degree, int rank = -1) {
    TensorShares out;
    const std::int64_t first = rank < 0 ? 0 : rank;
    out.rank_ = rank;
    out.degree_ = degree;
    out.heads_ = out.widths_ = out.tokens_ = out.vocabulary_ = {first, first + 1, degree};
    return out;
  }
  /// Of the stage's rank `local`.
  constexpr TensorShares(const StrategySpec& spec, const RankRatios& ratios, int local)
      : TensorShares(even(spec.tensor, spec.tensor_rank(local))) {
    const RankRatios own = ratios.of(spec);
    const auto set = [&](Share& share, std::span<const int> list) {
      if (list.empty() || degree_ == 1) return false;
      share = {0, 0, 0};
      const std::vector<std::int64_t> sums = ratio_sums(spec.rank_layout(), RankMode::tp, list);
      for (int i = 0; i < degree_; ++i) {
        const std::int64_t sum = sums[static_cast<std::size_t>(i)];
        if (i < rank_) share.begin += sum;
        if (i <= rank_) share.end += sum;
        share.all += sum;
      }
      return true;
    };
    set(heads_, own.heads);
    set(widths_, own.widths);
    has_even_vocabulary_ = !set(vocabulary_, own.vocabulary);
    // Tokens are on tensor ranks of their own between the regions of Megatron's sequence parallelism.
    if (spec.cuts_over_tensor()) has_even_tokens_ = !set(tokens_, own.tokens);
  }

  friend constexpr bool operator==(const TensorShares&, const TensorShares&) = default;
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
  /// Of tokens, between regions.
  [[nodiscard]] constexpr const Share& tokens() const { return tokens_; }
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
  [[nodiscard]] constexpr TensorShares of_any_rank() const {
    TensorShares out = *this;
    out.rank_ = -1;
    return out;
  }

 private:
  constexpr TensorShares() = default;

  int rank_ = -1;
  int degree_ = 1;
  bool has_even_vocabulary_ = true;
  bool has_even_tokens_ = true;
  Share heads_, widths_, tokens_, vocabulary_;
};

}  // namespace galvatron
