// How many of a stage's layers take each strategy. The layers are alike, so that a stage is a knapsack with counts:
// bounds come from the lower convex hull of the strategies, exact answers from Pareto sets of partial counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/search/fronts.hpp>

namespace galvatron::search::hetu {

inline constexpr double infinite = std::numeric_limits<double>::infinity();

/// A layer under a strategy.
struct Item {
  double time = 0;    ///< of a micro-batch, without the synchronisation of gradients
  double excess = 0;  ///< what their synchronisation adds, once an iteration
  double memory = 0;

  void add(const Item& item, int count) {
    time += count * item.time;
    excess += count * item.excess;
    memory += count * item.memory;
  }
};

/// `count` layers (at least one) in `capacity`.
struct Stage {
  std::vector<Item> items;
  int count = 1;
  double capacity = 0;
};

/// Counts of the items, and their sums.
struct Counts : Item {
  std::vector<int> of;  ///< by item

  void add(const Item& item, std::size_t index, int count) {
    Item::add(item, count);
    of[index] += count;
  }
};

/// A sum that a stage contributes to: time * Σ time + excess * Σ excess.
struct Direction {
  double time = 1;
  double excess = 0;
  [[nodiscard]] double of(const Item& item) const { return time * item.time + excess * item.excess; }
  friend auto operator<=>(const Direction&, const Direction&) = default;
};

/// What a search may spend, and what it spent.
struct Work {
  std::int64_t most = 20'000'000;  ///< labels: about a second
  std::int64_t labels = 0;
  bool exhausted = false;
};

/// The items as a direction sees them.
inline std::vector<HullPoint> hull_of(std::span<const Item> items, const Direction& direction) {
  std::vector<HullPoint> points;
  for (const Item& item : items) points.push_back({item.memory, direction.of(item)});
  return lower_hull(std::move(points));
}

/// The least of a direction over mixtures of items, of which layers need not be whole.
struct Mixture {
  double value = infinite;  ///< of a layer; infinite: nothing fits
  double price = 0;         ///< what a unit of memory is worth
};
/// The best mixture with `memory` for each layer.
inline Mixture best_mixture(const std::vector<HullPoint>& hull, double memory) {
  const auto right = std::ranges::find_if(hull, [&](const HullPoint& point) { return point.bytes > memory; });
  if (right == hull.begin()) return {};
  const HullPoint& left = *(right - 1);
  if (right == hull.end()) return {left.seconds, 0};
  const double price = slope(left, *right);
  return {left.seconds - price * (memory - left.bytes), price};
}

namespace detail {

struct Label : Item {
  std::int32_t parent = -1;  // in the list of steps
};
struct Step {
  std::int32_t parent = -1;
  std::int32_t item = 0;
  std::int32_t count = 0;
};

/// Removes labels that another one dominates, and orders the others by time.
inline void keep_best(std::vector<Label>& labels) {
  std::ranges::sort(labels, {}, [](const Label& l) { return std::tuple(l.time, l.memory, l.excess, l.parent); });
  search::ParetoFront<double> front;  // (memory, excess) of those that are no slower
  std::erase_if(labels, [&](const Label& label) {
    if (front.dominates(label.memory, label.excess)) return true;
    front.add(label.memory, label.excess);
    return false;
  });
}

/// What bounds the labels of a limit with memory at a price.
struct Bound {
  Direction direction;
  double below;
  double price;
  std::vector<double> least;  // by position of an item: of a layer under the items from there on
};

}  // namespace detail

/// The counts of which none is better in both (Σ time, Σ excess), by time. Every choice whose sums are below all limits
/// is matched by one no worse, unless `work` is exhausted.
/// @param limits  of each direction, the sums that are of use are below
inline std::vector<Counts> best_counts(const Stage& stage, const std::map<Direction, double>& limits, Work& work) {
  const int n = stage.count;
  std::vector<detail::Label> order;  // the items that none dominates; `parent` is the index
  for (const Item& item : stage.items) order.push_back({item, static_cast<std::int32_t>(order.size())});
  detail::keep_best(order);
  std::vector<detail::Bound> bounds;
  for (const auto& [direction, below] : limits) {
    const Mixture best = best_mixture(hull_of(stage.items, direction), stage.capacity / n);
    if (!(best.value * n < below)) return {};
    bounds.push_back({direction, below, best.price, {}});
    bounds.push_back({direction, below, 0, {}});
  }
  // Items that look worst come first: few of them survive, and the others complete what is left.
  if (!bounds.empty())
    std::ranges::stable_sort(order, std::greater{}, [&](const Item& item) {
      return bounds[0].direction.of(item) + bounds[0].price * item.memory;
    });
  std::vector<double> lightest(order.size() + 1, infinite);
  for (std::size_t j = order.size(); j-- > 0;) lightest[j] = std::min(lightest[j + 1], order[j].memory);
  for (detail::Bound& bound : bounds) {
    bound.least.assign(order.size() + 1, infinite);
    for (std::size_t j = order.size(); j-- > 0;)
      bound.least[j] = std::min(bound.least[j + 1], bound.direction.of(order[j]) + bound.price * order[j].memory);
  }

  std::vector<detail::Step> steps;
  std::vector<std::vector<detail::Label>> labels(static_cast<std::size_t>(n) + 1);  // by layers that have an item
  labels[0].push_back({});
  for (std::size_t j = 0; j < order.size(); ++j) {
    std::vector<std::vector<detail::Label>> next(labels.size());
    const Item& item = order[j];
    for (int k = 0; k <= n; ++k)
      for (const detail::Label& label : labels[static_cast<std::size_t>(k)])
        for (int count = j + 1 == order.size() ? n - k : 0; count <= n - k; ++count) {
          if (++work.labels > work.most) {
            work.exhausted = true;
            return {};
          }
          detail::Label made = label;
          made.add(item, count);
          if (made.memory > stage.capacity) break;
          const int left = n - k - count;
          if (left > 0 && made.memory + left * lightest[j + 1] > stage.capacity) continue;
          if (std::ranges::any_of(bounds, [&](const detail::Bound& b) {
                const double sum = b.direction.of(made) + b.price * (made.memory - stage.capacity);
                return !(sum + (left > 0 ? left * b.least[j + 1] : 0) < b.below);
              }))
            continue;
          if (count > 0) {
            steps.push_back({label.parent, order[j].parent, count});
            made.parent = static_cast<std::int32_t>(steps.size()) - 1;
          }
          next[static_cast<std::size_t>(k + count)].push_back(made);
        }
    for (auto& same : next) detail::keep_best(same);
    labels = std::move(next);
  }

  std::vector<Counts> out;
  for (const detail::Label& label : labels.back()) {  // by time
    if (!out.empty() && label.excess >= out.back().excess) continue;
    Counts& counts = out.emplace_back(Counts{label, std::vector<int>(stage.items.size(), 0)});
    for (std::int32_t at = label.parent; at >= 0; at = steps[static_cast<std::size_t>(at)].parent) {
      const detail::Step& step = steps[static_cast<std::size_t>(at)];
      counts.of[static_cast<std::size_t>(step.item)] += step.count;
    }
  }
  return out;
}

/// Good counts, quickly: from the lightest items, which fit, single layers change while that saves most for its memory.
inline Counts greedy_counts(const Stage& stage, const Direction& direction) {
  const std::vector<Item>& items = stage.items;
  Counts out{{}, std::vector<int>(items.size(), 0)};
  const auto lightest = std::ranges::min_element(items, {}, &Item::memory);
  out.add(*lightest, static_cast<std::size_t>(lightest - items.begin()), stage.count);
  while (true) {
    double best = 0;
    std::pair<std::size_t, std::size_t> move;
    for (std::size_t from = 0; from < items.size(); ++from)
      for (std::size_t to = 0; to < items.size() && out.of[from] > 0; ++to) {
        const double saved = direction.of(items[from]) - direction.of(items[to]);
        const double more = items[to].memory - items[from].memory;
        const double worth = saved / std::max(more, 1e-6);
        if (saved <= 0 || worth <= best || out.memory + more > stage.capacity) continue;
        best = worth;
        move = {from, to};
      }
    if (best == 0) return out;
    out.add(items[move.first], move.first, -1);
    out.add(items[move.second], move.second, 1);
  }
}

}  // namespace galvatron::search::hetu
