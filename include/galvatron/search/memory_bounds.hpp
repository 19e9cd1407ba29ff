// MemoryBounds: what the stages of any assignment keep at least, whatever their seconds; and where stages may begin.
//
// Every layer counts with its smallest choice, every stage with the smallest workspace of a layer that it may have.
// What is left are whole layers in stages, which greedy filling from either end decides.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <galvatron/search/problem.hpp>
#include <galvatron/search/range_bound.hpp>

namespace galvatron::search {

/// Where stages may begin.
struct Windows {
  std::vector<int> low;   ///< (P + 1) the earliest first layer of every stage; the number of layers
  std::vector<int> high;  ///< (P + 1) the latest

  /// Any that leave every stage a layer.
  explicit constexpr Windows(const Problem& p)
      : low(static_cast<std::size_t>(p.stages()) + 1, 0), high(low.size(), p.count()) {
    high.front() = 0;
    low.back() = p.count();
  }
};

/// Narrows windows by what a stage may have.
/// @param holds  holds(stage, begin, end): whether a stage may have these layers; if not, it may not have more either
template <class Holds>
class WindowSearch {
 public:
  constexpr WindowSearch(const Problem& problem, Holds holds) : p_(problem), holds_(holds), cuts_(problem.cuts) {
    if (p_.stages() == 1) cuts_ = even_cuts(p_);
  }

  /// False when there is no partition.
  [[nodiscard]] constexpr bool narrow(Windows& windows) const {
    const int stages = p_.stages();
    if (!cuts_.empty()) {
      windows.low = windows.high = cuts_;
      return fixed_hold();
    }
    for (int i = 0; i + 1 < stages; ++i) {
      const int next = furthest(i, nth(windows.high, i));
      if (next < 0) return false;
      nth(windows.high, i + 1) = std::min(nth(windows.high, i + 1), next);
    }
    for (int i = stages - 1; i > 0; --i) {
      const int begin = nearest(i, nth(windows.low, i + 1));
      nth(windows.low, i) = std::max(nth(windows.low, i), begin);
      if (begin < 0 || nth(windows.low, i) > nth(windows.high, i)) return false;
    }
    return holds_(0, 0, nth(windows.low, 1));
  }
  /// The same without windows.
  [[nodiscard]] constexpr bool is_possible() const {
    if (!cuts_.empty()) return fixed_hold();
    int begin = 0;
    for (int stage = 0; stage + 1 < p_.stages(); ++stage) {
      begin = furthest(stage, begin);
      if (begin < 0) return false;
    }
    return holds_(p_.stages() - 1, begin, p_.count());
  }

 private:
  [[nodiscard]] constexpr bool fixed_hold() const {
    for (std::size_t i = 0; i + 1 < cuts_.size(); ++i)
      if (!holds_(static_cast<int>(i), cuts_[i], cuts_[i + 1])) return false;
    return true;
  }
  // The value nearest to `bad`, above or below `good`, for which `rule` holds; -1 when it does not hold for `good`.
  template <class Rule>
  [[nodiscard]] static constexpr int last_good(int good, int bad, const Rule& rule) {
    if (!rule(good)) return -1;
    while (bad - good > 1 || good - bad > 1) {
      const int middle = (good + bad) / 2;
      (rule(middle) ? good : bad) = middle;
    }
    return good;
  }
  // The largest begin of the stage after one that begins with `begin` or before it; -1 if no stage does. (A stage
  // that cannot take the layer `begin` alone may end before it.)
  [[nodiscard]] constexpr int furthest(int stage, int begin) const {
    const int first = begin + 1 + (stage == 0 ? p_.leading : 0);
    const int end = p_.count() - p_.trailing - (p_.stages() - 1 - stage) + 1;
    if (first >= end) return -1;
    const int next = last_good(first, end, [&](int to) { return holds_(stage, begin, to); });
    return next < 0 && stage > 0 ? begin : next;
  }
  // The least begin of a stage that ends before `end` or after it; -1 when there is none.
  [[nodiscard]] constexpr int nearest(int stage, int end) const {
    const bool last = stage + 1 == p_.stages();
    const int first = end - 1 - (last ? p_.trailing : 0);
    const int before = p_.leading + stage - 1;
    if (first <= before) return -1;
    const int begin = last_good(first, before, [&](int from) { return holds_(stage, from, end); });
    return begin < 0 && !last ? end : begin;
  }

  const Problem& p_;
  Holds holds_;
  std::vector<int> cuts_;  // where they are given
};

class MemoryBounds {
 public:
  explicit constexpr MemoryBounds(const Problem& problem) : p_(&problem) {
    std::vector<std::vector<std::int64_t>> workspaces;  // (kinds of device, stages)
    for (int kind = 0; kind < p_->device_kinds(); ++kind) workspaces.push_back(least_workspaces(p_->of_kind(kind)));
    for (int i = 0; i < p_->stages(); ++i) {
      const Problem& own = p_->on(i);
      // What a stage keeps for its neighbours and its first layout.
      std::int64_t begins = unlimited;
      std::int64_t ends = unlimited;
      std::vector<std::vector<std::int64_t>> least(static_cast<std::size_t>(p_->chunks));  // (chunks, types)
      for (int chunk = 0; chunk < p_->chunks; ++chunk)
        for (const LayerType& type : own.types) {
          std::int64_t& of_type = nth(least, chunk).emplace_back(unlimited);
          for (const Choice& c : type) of_type = std::min(of_type, p_->slots_of(i, chunk).kept(c));
        }
      for (const LayerType& type : own.types)
        for (const Choice& c : type) {
          begins = std::min(begins, (i > 0 ? p_->buffers * c.input : 0) + p_->slots_of(i, 0).flight * c.pass_through);
          ends = std::min(ends, p_->buffers * c.activation);
        }
      besides_.push_back(
          {own.fixed + begins + (i + 1 < p_->stages() ? ends : 0), nth(nth(workspaces, p_->device_kind(i)), i)});
      sums_.push_back({0});
      for (int layer = 0; layer < p_->count(); ++layer)
        sums_.back().push_back(sums_.back().back() + nth(nth(least, p_->chunk_of(layer)), nth(p_->layers, layer)));
    }
  }

  /// The same of assignments with these choices in the first and the last layer, a leading and a trailing one.
  [[nodiscard]] constexpr MemoryBounds with_ends(const Choice& first, const Choice& last) const {
    MemoryBounds out = *this;
    const auto replace = [&](int stage, int layer, const Choice& c) {
      Besides& besides = nth(out.besides_, stage);
      besides.bytes += p_->slots_at(stage, layer).kept(c) - kept(stage, layer, layer + 1);
      besides.workspace = std::max(besides.workspace, workspace_of(c));
    };
    replace(0, 0, first);
    replace(p_->stages() - 1, p_->count() - 1, last);
    return out;
  }

  /// False when no assignment fits the budget.
  [[nodiscard]] constexpr bool may_fit(std::int64_t budget) const { return windows(budget).has_value(); }
  /// The fullest stage of no assignment has fewer bytes.
  [[nodiscard]] constexpr std::int64_t least_peak() const {
    std::int64_t enough = 1;
    while (!may_fit(enough) && enough < std::int64_t{1} << 60) enough *= 2;
    return first_where(enough / 2 + 1, enough, [this](std::int64_t bytes) { return may_fit(bytes); });
  }
  /// Where the stages of assignments that fit the budget begin; nothing when there are none.
  [[nodiscard]] constexpr std::optional<Windows> windows(std::int64_t budget) const {
    const auto holds = [&](int stage, int begin, int end) {
      const Besides& besides = nth(besides_, stage);
      return besides.bytes + besides.workspace + kept(stage, begin, end) <= budget;
    };
    Windows out(*p_);
    if (!WindowSearch(*p_, holds).narrow(out)) return std::nullopt;
    return out;
  }

 private:
  // Of a stage besides what its layers keep.
  struct Besides {
    std::int64_t bytes = 0;
    std::int64_t workspace = 0;
  };
  [[nodiscard]] constexpr std::int64_t kept(int stage, int begin, int end) const {
    return nth(nth(sums_, stage), end) - nth(nth(sums_, stage), begin);
  }

  const Problem* p_;
  std::vector<Besides> besides_;                 // (stages)
  std::vector<std::vector<std::int64_t>> sums_;  // (stages, layers + 1) least bytes of the layers before
};

}  // namespace galvatron::search
