// How many of a stage's layers take each strategy. The layers are alike, so that a stage is a knapsack with counts:
// bounds come from the lower convex hull of the strategies, exact answers from Pareto sets of partial counts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace galvatron::search::hetu {

inline constexpr double infinite = std::numeric_limits<double>::infinity();

/// A layer under a strategy.
struct Item {
  double time = 0;    ///< of a micro-batch, without the synchronisation of gradients
  double excess = 0;  ///< what their synchronisation adds, once an iteration
  double memory = 0;
};

/// `count` layers (at least one) in `capacity`.
struct Stage {
  std::vector<Item> items;
  int count = 1;
  double capacity = 0;
};

/// A sum that a stage contributes to: time * Σ time + excess * Σ excess.
struct Direction {
  double time = 1;
  double excess = 0;
  [[nodiscard]] double of(const Item& item) const { return time * item.time + excess * item.excess; }
  friend bool operator==(const Direction&, const Direction&) = default;
};

/// The least of a direction over mixtures of items: layers need not be whole.
class Hull {
 public:
  Hull(std::span<const Item> items, Direction direction) {
    std::vector<int> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    const auto value = [&](int i) { return direction.of(items[static_cast<std::size_t>(i)]); };
    const auto memory = [&](int i) { return items[static_cast<std::size_t>(i)].memory; };
    std::sort(order.begin(), order.end(), [&](int a, int b) {
      if (memory(a) != memory(b)) return memory(a) < memory(b);
      return value(a) != value(b) ? value(a) < value(b) : a < b;
    });
    for (const int i : order) {
      const Point next{memory(i), value(i), i};
      if (!points_.empty() && next.value >= points_.back().value) continue;
      while (points_.size() >= 2 && is_above(points_[points_.size() - 2], points_.back(), next)) points_.pop_back();
      points_.push_back(next);
    }
  }

  struct Optimum {
    double value = infinite;  ///< of a layer; infinite: nothing fits
    double price = 0;         ///< what a unit of memory is worth
    int light = 0;            ///< the items that are mixed
    int heavy = 0;
  };
  /// The best mixture with `memory` for each layer.
  [[nodiscard]] Optimum at(double memory) const {
    if (points_.empty() || memory < points_.front().memory) return {};
    std::size_t right = 0;
    while (right < points_.size() && points_[right].memory <= memory) ++right;
    const Point& a = points_[right - 1];
    if (right == points_.size()) return {a.value, 0, a.item, a.item};
    const Point& b = points_[right];
    const double slope = (a.value - b.value) / (b.memory - a.memory);
    return {a.value - slope * (memory - a.memory), slope, a.item, b.item};
  }

 private:
  struct Point {
    double memory;
    double value;
    int item;
  };
  static bool is_above(const Point& a, const Point& b, const Point& c) {
    return (b.value - a.value) * (c.memory - a.memory) >= (c.value - a.value) * (b.memory - a.memory);
  }
  std::vector<Point> points_;
};

/// Only stages with direction.time * Σ time + direction.excess * Σ excess < below are wanted.
struct Limit {
  Direction direction;
  double below = infinite;
};

/// Counts of the items, and their sums.
struct Counts {
  double time = 0;
  double excess = 0;
  double memory = 0;
  std::vector<int> of;  ///< by item
};

/// What a search may spend, and what it spent.
struct Work {
  std::int64_t most = 20'000'000;  ///< labels: about a second
  std::int64_t labels = 0;
  bool exhausted = false;
};

namespace detail {

struct Label {
  double time = 0;
  double excess = 0;
  double memory = 0;
  std::int32_t parent = -1;  // in the list of steps
};
struct Step {
  std::int32_t parent = -1;
  std::int32_t item = 0;
  std::int32_t count = 0;
};

/// Removes labels that another one makes superfluous. Without `excess` only time and memory count.
inline void keep_best(std::vector<Label>& labels, bool excess) {
  std::sort(labels.begin(), labels.end(), [](const Label& a, const Label& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.memory != b.memory) return a.memory < b.memory;
    return a.excess != b.excess ? a.excess < b.excess : a.parent < b.parent;
  });
  // Of the labels so far, which are no slower: (memory, least excess up to that memory), excess falling.
  std::vector<std::pair<double, double>> stairs;
  std::size_t kept = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const Label label = labels[i];
    const std::pair step{label.memory, excess ? label.excess : 0};
    auto after = std::upper_bound(stairs.begin(), stairs.end(), step.first,
                                  [](double memory, const auto& s) { return memory < s.first; });
    if (after != stairs.begin() && std::prev(after)->second <= step.second) continue;
    if (after != stairs.begin() && std::prev(after)->first == step.first) --after;
    auto last = after;
    while (last != stairs.end() && last->second >= step.second) ++last;
    if (last == after) {
      stairs.insert(after, step);
    } else {
      *after = step;
      stairs.erase(after + 1, last);
    }
    labels[kept++] = label;
  }
  labels.resize(kept);
}

/// The items that no other one makes superfluous.
inline std::vector<int> useful_items(std::span<const Item> items, bool excess) {
  std::vector<int> out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    bool beaten = false;
    for (std::size_t j = 0; j < items.size() && !beaten; ++j) {
      if (j == i) continue;
      const bool no_worse = items[j].time <= items[i].time && items[j].memory <= items[i].memory &&
                            (!excess || items[j].excess <= items[i].excess);
      const bool equal = items[j].time == items[i].time && items[j].memory == items[i].memory &&
                         (!excess || items[j].excess == items[i].excess);
      beaten = no_worse && (!equal || j < i);
    }
    if (!beaten) out.push_back(static_cast<int>(i));
  }
  return out;
}

/// A limit with the figures that bound what the layers to come add to it, given the items from one on.
struct Bound {
  Direction direction;
  double below;
  double price;                // of memory
  std::vector<double> least;   // by position of an item: of the items from there on
  std::vector<double> priced;  // the same with memory at its price
};

}  // namespace detail

/// The stages that the limits allow, of which none is better in all that counts: (Σ time, Σ excess) with `excess`, else
/// Σ time alone, and then there is at most one. Ordered by time. Every sum within the limits is matched by a result no
/// worse, unless `work` is exhausted.
inline std::vector<Counts> best_counts(const Stage& stage, std::span<const Limit> limits, bool excess, Work& work) {
  const int n = stage.count;
  std::vector<int> order = detail::useful_items(stage.items, excess);
  if (order.empty()) return {};
  const auto item = [&](std::size_t position) -> const Item& {
    return stage.items[static_cast<std::size_t>(order[position])];
  };

  std::vector<detail::Bound> bounds;
  for (const Limit& limit : limits) {
    const auto optimum = Hull(stage.items, limit.direction).at(stage.capacity / n);
    if (!(optimum.value * n < limit.below)) return {};
    bounds.push_back({limit.direction, limit.below, optimum.price, {}, {}});
  }
  // Items that look worst come first: few of them survive, and the others complete what is left.
  if (!bounds.empty()) {
    const auto reduced = [&](int i) {
      const Item& it = stage.items[static_cast<std::size_t>(i)];
      return bounds[0].direction.of(it) + bounds[0].price * it.memory;
    };
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return reduced(a) != reduced(b) ? reduced(a) > reduced(b) : a < b; });
  }
  const std::size_t items = order.size();
  std::vector<double> lightest(items + 1, infinite);
  for (std::size_t j = items; j-- > 0;) lightest[j] = std::min(lightest[j + 1], item(j).memory);
  for (detail::Bound& bound : bounds) {
    bound.least.assign(items + 1, infinite);
    bound.priced.assign(items + 1, infinite);
    for (std::size_t j = items; j-- > 0;) {
      const double value = bound.direction.of(item(j));
      bound.least[j] = std::min(bound.least[j + 1], value);
      bound.priced[j] = std::min(bound.priced[j + 1], value + bound.price * item(j).memory);
    }
  }

  std::vector<detail::Step> steps;
  std::vector<std::vector<detail::Label>> labels(static_cast<std::size_t>(n) + 1);  // by layers that have an item
  labels[0].push_back({});
  for (std::size_t j = 0; j < items; ++j) {
    std::vector<std::vector<detail::Label>> next(labels.size());
    const bool final = j + 1 == items;
    for (int k = 0; k <= n; ++k)
      for (const detail::Label& label : labels[static_cast<std::size_t>(k)])
        for (int count = final ? n - k : 0; count <= n - k; ++count) {
          if (++work.labels > work.most) {
            work.exhausted = true;
            return {};
          }
          detail::Label made = label;
          made.time += count * item(j).time;
          made.excess += count * item(j).excess;
          made.memory += count * item(j).memory;
          if (made.memory > stage.capacity) break;
          const int left = n - k - count;
          if (left > 0 && made.memory + left * lightest[j + 1] > stage.capacity) continue;
          const bool hopeless = std::any_of(bounds.begin(), bounds.end(), [&](const detail::Bound& b) {
            const double sum = b.direction.time * made.time + b.direction.excess * made.excess;
            if (left == 0) return !(sum < b.below);
            return !(sum + left * b.least[j + 1] < b.below) ||
                   !(sum + b.price * (made.memory - stage.capacity) + left * b.priced[j + 1] < b.below);
          });
          if (hopeless) continue;
          if (count > 0) {
            steps.push_back({label.parent, order[j], count});
            made.parent = static_cast<std::int32_t>(steps.size()) - 1;
          }
          next[static_cast<std::size_t>(k + count)].push_back(made);
        }
    for (auto& same : next) detail::keep_best(same, excess);
    labels = std::move(next);
  }

  std::vector<Counts> out;
  double least_excess = infinite;
  for (const detail::Label& label : labels.back()) {  // by time
    if (!out.empty() && (!excess || label.excess >= least_excess)) continue;
    least_excess = label.excess;
    Counts counts{label.time, label.excess, label.memory, std::vector<int>(stage.items.size(), 0)};
    for (std::int32_t at = label.parent; at >= 0; at = steps[static_cast<std::size_t>(at)].parent)
      counts.of[static_cast<std::size_t>(steps[static_cast<std::size_t>(at)].item)] +=
          steps[static_cast<std::size_t>(at)].count;
    out.push_back(std::move(counts));
  }
  return out;
}

/// Good counts, quickly: the best mixture rounded, then single layers moved as long as that helps. Nothing if the
/// layers do not fit.
inline std::optional<Counts> rounded_counts(const Stage& stage, Direction direction) {
  const auto optimum = Hull(stage.items, direction).at(stage.capacity / stage.count);
  if (optimum.value == infinite) return std::nullopt;
  const auto item = [&](int i) -> const Item& { return stage.items[static_cast<std::size_t>(i)]; };
  Counts out;
  out.of.assign(stage.items.size(), 0);
  int heavy = 0;
  if (optimum.heavy != optimum.light) {
    const double each = item(optimum.heavy).memory - item(optimum.light).memory;
    heavy = static_cast<int>(
        std::clamp((stage.capacity - stage.count * item(optimum.light).memory) / each, 0.0, double(stage.count)));
  }
  const auto add = [&](int i, int count) {
    out.of[static_cast<std::size_t>(i)] += count;
    out.time += count * item(i).time;
    out.excess += count * item(i).excess;
    out.memory += count * item(i).memory;
  };
  add(optimum.light, stage.count - heavy);
  add(optimum.heavy, heavy);
  const int items = static_cast<int>(stage.items.size());
  for (int round = 0; round < stage.count; ++round) {
    double best = 0;
    std::pair<int, int> move{-1, -1};
    for (int from = 0; from < items; ++from) {
      if (out.of[static_cast<std::size_t>(from)] == 0) continue;
      for (int to = 0; to < items; ++to) {
        const double gain = direction.of(item(from)) - direction.of(item(to));
        if (gain > best && out.memory + item(to).memory - item(from).memory <= stage.capacity) {
          best = gain;
          move = {from, to};
        }
      }
    }
    if (move.first < 0) break;
    add(move.first, -1);
    add(move.second, 1);
  }
  return out;
}

}  // namespace galvatron::search::hetu
