// MemoryBounds: what the stages of any assignment keep at least, whatever their seconds.
//
// Every layer counts with its smallest choice, every stage with the smallest workspace of a layer that it may have.
// What is left are whole layers in stages, which greedy filling from either end decides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <galvatron/search/problem.hpp>
#include <galvatron/search/range_bound.hpp>

namespace galvatron::search {

/// Where stages may begin.
struct Windows {
  std::vector<int> low;   ///< (P + 1) the earliest first layer of every stage; the number of layers
  std::vector<int> high;  ///< (P + 1) the latest
};

class MemoryBounds {
 public:
  explicit constexpr MemoryBounds(const Problem& problem) : p_(&problem), workspaces_(least_workspaces(problem)) {
    const auto stages = static_cast<std::size_t>(p_->stages());
    messages_.assign(stages, 0);
    sums_.resize(stages);
    smallest_.assign(stages, std::numeric_limits<std::int64_t>::max());
    for (int i = 0; i < p_->stages(); ++i) {
      const auto at = static_cast<std::size_t>(i);
      add_messages(i);
      if (i > 0 && p_->least_slots(i) == p_->least_slots(i - 1)) {
        sums_[at] = sums_[at - 1];
        smallest_[at] = smallest_[at - 1];
        continue;
      }
      std::vector<std::int64_t>& sums = sums_[at];
      sums.assign(1, 0);
      std::vector<std::int64_t> least(p_->types.size(), -1);
      for (int layer = p_->leading; layer < p_->count() - p_->trailing; ++layer) {
        std::int64_t& kept = least[static_cast<std::size_t>(type_of(layer))];
        if (kept < 0) kept = least_kept(i, layer);
        smallest_[at] = std::min(smallest_[at], kept);
        sums.push_back(sums.back() + kept);
      }
    }
    for (int i = 0; i < p_->leading; ++i) first_ += least_kept(0, i);
    for (int i = 0; i < p_->trailing; ++i) last_ += least_kept(p_->stages() - 1, p_->count() - 1 - i);
  }

  /// The same of assignments with these choices in the first and the last layer, a leading and a trailing one.
  [[nodiscard]] constexpr MemoryBounds with_ends(const Choice& first, const Choice& last) const {
    MemoryBounds out = *this;
    out.first_ += p_->least_slots(0).kept(first) - least_kept(0, 0);
    out.last_ += p_->least_slots(p_->stages() - 1).kept(last) - least_kept(p_->stages() - 1, p_->count() - 1);
    out.workspaces_.front() = std::max(out.workspaces_.front(), workspace_of(first));
    out.workspaces_.back() = std::max(out.workspaces_.back(), workspace_of(last));
    return out;
  }

  /// Bytes of a stage besides its movable layers.
  [[nodiscard]] constexpr std::int64_t besides(int stage) const {
    const auto at = static_cast<std::size_t>(stage);
    return p_->fixed + messages_[at] + workspaces_[at] + (stage == 0 ? first_ : 0) +
           (stage + 1 == p_->stages() ? last_ : 0);
  }
  /// False when no assignment fits the budget.
  [[nodiscard]] constexpr bool may_fit(std::int64_t budget) const { return windows(budget).has_value(); }
  /// The fullest stage of no assignment has fewer bytes.
  [[nodiscard]] constexpr std::int64_t least_peak() const {
    std::int64_t low = 0;  // too small
    std::int64_t high = 1;
    while (!may_fit(high) && high < most_bytes) high *= 2;
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (may_fit(middle) ? high : low) = middle;
    }
    return high;
  }
  /// Where the stages of assignments that fit the budget begin; nothing when there are none.
  [[nodiscard]] constexpr std::optional<Windows> windows(std::int64_t budget) const {
    const int stages = p_->stages();
    Windows out{p_->cuts, p_->cuts};
    if (!p_->cuts.empty()) {
      for (int i = 0; i < stages; ++i)
        if (furthest(i, movable_before(p_->cuts[static_cast<std::size_t>(i)]), budget) <
            movable_before(p_->cuts[static_cast<std::size_t>(i) + 1]))
          return std::nullopt;
      return out;
    }
    out.low.assign(static_cast<std::size_t>(stages) + 1, 0);
    out.high.assign(out.low.size(), 0);
    int at = 0;  // movable layers before
    for (int i = 0; i < stages; ++i) {
      at = std::min(furthest(i, at, budget), p_->movable() - (stages - 1 - i));
      if (at <= i) return std::nullopt;
      out.high[static_cast<std::size_t>(i) + 1] = p_->leading + at;
    }
    if (at < p_->movable()) return std::nullopt;
    for (int i = stages - 1; i > 0; --i) {
      at = std::max(nearest(i, at, budget), i);
      out.low[static_cast<std::size_t>(i)] = p_->leading + at;
      if (p_->leading + at > out.high[static_cast<std::size_t>(i)]) return std::nullopt;
    }
    out.low.back() = out.high.back() = p_->count();
    return out;
  }

 private:
  static constexpr std::int64_t most_bytes = std::int64_t{1} << 60;

  [[nodiscard]] constexpr int type_of(int layer) const { return p_->layers[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] constexpr int movable_before(int layer) const {
    return std::clamp(layer - p_->leading, 0, p_->movable());
  }
  [[nodiscard]] constexpr std::int64_t least_kept(int stage, int layer) const {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const Choice& c : p_->types[static_cast<std::size_t>(type_of(layer))])
      least = std::min(least, p_->least_slots(stage).kept(c));
    return least;
  }
  // What a stage keeps for its neighbours and its first layout.
  constexpr void add_messages(int stage) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    std::int64_t begins = most;
    std::int64_t ends = most;
    for (const LayerType& type : p_->types)
      for (const Choice& c : type) {
        begins = std::min(begins, (stage > 0 ? c.input : 0) + p_->slots_of(stage, 0).flight * c.pass_through);
        ends = std::min(ends, c.activation);
      }
    messages_[static_cast<std::size_t>(stage)] =
        (begins < most ? begins : 0) + (stage + 1 < p_->stages() && ends < most ? ends : 0);
  }

  // The most that a stage which begins with movable layer `begin`, or one before it, can end with; -1 where it has no
  // room for any layer.
  [[nodiscard]] constexpr int furthest(int stage, int begin, std::int64_t budget) const {
    const std::vector<std::int64_t>& sums = sums_[static_cast<std::size_t>(stage)];
    const std::int64_t room = budget - besides(stage);
    if (room < smallest_[static_cast<std::size_t>(stage)]) return -1;
    if (room >= sums.back()) return p_->movable();
    const auto after = std::upper_bound(sums.begin() + begin, sums.end(), sums[static_cast<std::size_t>(begin)] + room);
    return static_cast<int>(after - sums.begin()) - 1;
  }
  // The least that a stage which ends before movable layer `end`, or one after it, can begin with.
  [[nodiscard]] constexpr int nearest(int stage, int end, std::int64_t budget) const {
    const std::vector<std::int64_t>& sums = sums_[static_cast<std::size_t>(stage)];
    const std::int64_t room = budget - besides(stage);
    const auto first = std::lower_bound(sums.begin(), sums.begin() + end, sums[static_cast<std::size_t>(end)] - room);
    return static_cast<int>(first - sums.begin());
  }

  const Problem* p_;
  std::vector<std::int64_t> workspaces_;
  std::vector<std::int64_t> messages_;           // (stages)
  std::vector<std::vector<std::int64_t>> sums_;  // (stages, movable + 1) least bytes of the movable layers before
  std::vector<std::int64_t> smallest_;           // (stages) least bytes of any of them
  std::int64_t first_ = 0;                       // bytes of the leading layers
  std::int64_t last_ = 0;
};

}  // namespace galvatron::search
