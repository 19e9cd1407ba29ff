// Sharding: how an extent is cut over ranks.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>

namespace galvatron {

/// Consecutive shards of [0, extent), one for each rank; their counts add up to the extent. All ends but the last are
/// multiples of the alignment, so that a shard may be empty. Even shards are equal where the extent allows it, and else
/// the last ones are shorter. Whether an extent has to allow it is for strategy/legality.hpp.
class Sharding {
 public:
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    friend constexpr bool operator==(const Range&, const Range&) = default;
    [[nodiscard]] constexpr std::int64_t count() const { return end - begin; }
  };

  /// @param ranks, alignment  at least 1
  static constexpr Sharding even(std::int64_t extent, std::int64_t ranks, std::int64_t alignment = 1) {
    return {extent, ranks, alignment, round_up(divide_up(extent, ranks), alignment), {}};
  }
  /// Shards as large as the ratios, which are at least 0 and not all 0, say. An end is where the sum of the ratios up
  /// to it puts it, rounded down to the alignment, and exact where the ratios are integers.
  template <class Ratio>
    requires std::integral<Ratio> || std::floating_point<Ratio>
  static constexpr Sharding by_ratios(std::int64_t extent, std::span<const Ratio> ratios, std::int64_t alignment = 1) {
    using Sum = std::conditional_t<std::integral<Ratio>, std::int64_t, double>;
    Sum all{};
    for (const Ratio ratio : ratios) all += static_cast<Sum>(ratio);
    std::vector<std::int64_t> ends;
    Sum sum{};
    for (const Ratio ratio : ratios) {
      sum += static_cast<Sum>(ratio);
      ends.push_back(end_of(extent, sum, all, alignment));
    }
    return {extent, static_cast<std::int64_t>(ratios.size()), alignment, 0, std::move(ends)};
  }
  /// Where the shards end whose ratios add up to `part` of `all`.
  template <class Sum>
  static constexpr std::int64_t end_of(std::int64_t extent, Sum part, Sum all, std::int64_t alignment = 1) {
    return part == all ? extent : scaled(extent, part, all) / alignment * alignment;
  }

  friend constexpr bool operator==(const Sharding&, const Sharding&) = default;
  [[nodiscard]] constexpr std::int64_t extent() const { return extent_; }
  [[nodiscard]] constexpr std::int64_t ranks() const { return ranks_; }
  /// The part of the extent that a rank holds.
  [[nodiscard]] constexpr Range range(std::int64_t rank) const {
    if (ends_.empty()) return {std::min(rank * size_, extent_), std::min((rank + 1) * size_, extent_)};
    const auto i = static_cast<std::size_t>(rank);
    return {i == 0 ? 0 : ends_[i - 1], ends_[i]};
  }
  [[nodiscard]] constexpr std::int64_t count(std::int64_t rank) const { return range(rank).count(); }
  /// What memory for the shard of any rank has: the largest count, padded to the alignment.
  [[nodiscard]] constexpr std::int64_t largest() const {
    if (ends_.empty()) return size_;
    std::int64_t most = 0;
    for (std::int64_t rank = 0; rank < ranks_; ++rank) most = std::max(most, count(rank));
    return round_up(most, alignment_);
  }

 private:
  constexpr Sharding(std::int64_t extent, std::int64_t ranks, std::int64_t alignment, std::int64_t size,
                     std::vector<std::int64_t> ends)
      : extent_(extent), ranks_(ranks), alignment_(alignment), size_(size), ends_(std::move(ends)) {}

  static constexpr std::int64_t scaled(std::int64_t extent, std::int64_t part, std::int64_t all) {
    return extent / all * part + extent % all * part / all;  // extent * part may be too large
  }
  static constexpr std::int64_t scaled(std::int64_t extent, double part, double all) {
    return std::min(extent, static_cast<std::int64_t>(static_cast<double>(extent) * (part / all)));
  }

  std::int64_t extent_;
  std::int64_t ranks_;
  std::int64_t alignment_;
  std::int64_t size_;               // of an even shard, padded
  std::vector<std::int64_t> ends_;  // by ratios; empty: even
};

/// What one rank has of every extent that is cut in the same proportions: from `begin` to `end` of `all`. The ranks'
/// shares follow each other, and their parts of an extent are those of Sharding::by_ratios.
struct Share {
  std::int64_t begin = 0;
  std::int64_t end = 1;
  std::int64_t all = 1;

  friend constexpr bool operator==(const Share&, const Share&) = default;
  [[nodiscard]] constexpr Sharding::Range of(std::int64_t extent, std::int64_t alignment = 1) const {
    return {Sharding::end_of(extent, begin, all, alignment), Sharding::end_of(extent, end, all, alignment)};
  }
  [[nodiscard]] constexpr std::int64_t count(std::int64_t extent) const { return of(extent).count(); }
};

}  // namespace galvatron
