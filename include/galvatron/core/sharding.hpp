// Sharding: how an extent is cut over ranks.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>

namespace galvatron {

/// Consecutive shards of [0, extent), one for each rank; their counts add up to the extent. All ends but the last are
/// multiples of the alignment, so that a shard may be empty. Shards are equal where the extent allows it, and else the
/// last ones are shorter. Whether an extent has to allow it is for strategy/legality.hpp.
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
    return {extent, ranks, round_up(divide_up(extent, ranks), alignment)};
  }
  friend constexpr bool operator==(const Sharding&, const Sharding&) = default;
  [[nodiscard]] constexpr std::int64_t extent() const { return extent_; }
  [[nodiscard]] constexpr std::int64_t ranks() const { return ranks_; }
  /// The part of the extent that a rank holds.
  [[nodiscard]] constexpr Range range(std::int64_t rank) const {
    return {std::min(rank * size_, extent_), std::min((rank + 1) * size_, extent_)};
  }
  [[nodiscard]] constexpr std::int64_t count(std::int64_t rank) const { return range(rank).count(); }
  /// What memory for the shard of any rank has: the largest count, padded to the alignment.
  [[nodiscard]] constexpr std::int64_t largest() const { return size_; }

 private:
  constexpr Sharding(std::int64_t extent, std::int64_t ranks, std::int64_t size)
      : extent_(extent), ranks_(ranks), size_(size) {}

  std::int64_t extent_;
  std::int64_t ranks_;
  std::int64_t size_;  // of a shard, padded
};

}  // namespace galvatron
