// Fronts of many candidates: those that none of the others dominates (Pareto), and the convex hulls of choices in
// (bytes, seconds): what is left of them when bytes have a price (a Lagrange multiplier).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// Pairs, for the question whether one of them is no larger than another in both coordinates.
template <class Y>
class ParetoFront {
 public:
  [[nodiscard]] constexpr bool dominates(double x, Y y) const {
    const auto above = std::upper_bound(points_.begin(), points_.end(), x,
                                        [](double value, const Point& point) { return value < point.x; });
    return above != points_.begin() && (above - 1)->y <= y;
  }
  /// A pair that it does not dominate.
  constexpr void add(double x, Y y) {
    auto first = std::lower_bound(points_.begin(), points_.end(), x,
                                  [](const Point& point, double value) { return point.x < value; });
    auto last = first;
    while (last != points_.end() && last->y >= y) ++last;
    if (first == last) {
      points_.insert(first, {x, y});
      return;
    }
    *first = {x, y};
    points_.erase(first + 1, last);
  }

 private:
  struct Point {
    double x = 0;
    Y y{};
  };
  std::vector<Point> points_;  // x ascending, y descending
};

/// Keeps the items, in their order, that none before them dominates; returns how many. After `most_comparisons` items
/// are compared with the one that dominated another last only, so that some dominated ones are kept too.
/// @param dominates    dominates(a, b): with `a` at hand `b` is of no use
/// @param comparisons  grows by the calls of it
template <class Item, class Dominates>
constexpr std::size_t keep_non_dominated(std::vector<Item>& items, const Dominates& dominates,
                                         std::size_t most_comparisons = std::numeric_limits<std::size_t>::max(),
                                         std::size_t* comparisons = nullptr) {
  std::size_t kept = 0;
  std::size_t last = 0;  // the item that dominated one last: likely to dominate the next
  std::size_t made = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item item = items[i];
    bool dominated = kept > 0 && dominates(items[last], item);
    for (std::size_t j = 0; j < kept && !dominated && made < most_comparisons; ++j, ++made)
      if (dominates(items[j], item)) {
        dominated = true;
        last = j;
      }
    if (!dominated) items[kept++] = item;
  }
  if (comparisons != nullptr) *comparisons += made;
  return kept;
}

/// A choice as a relaxation sees it.
struct HullPoint {
  double bytes = 0;
  double seconds = 0;

  /// With a price for its bytes.
  [[nodiscard]] constexpr double at(double price) const { return seconds + price * bytes; }
};

/// The lower convex hull, from the fewest bytes to the fewest seconds.
constexpr std::vector<HullPoint> lower_hull(std::vector<HullPoint> points) {
  std::sort(points.begin(), points.end(), [](const HullPoint& a, const HullPoint& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.seconds < b.seconds;
  });
  std::vector<HullPoint> hull;
  for (const HullPoint& point : points) {
    if (!hull.empty() && point.seconds >= hull.back().seconds) continue;
    while (hull.size() >= 2) {
      const HullPoint& a = hull[hull.size() - 2];
      const HullPoint& b = hull.back();
      if ((b.seconds - a.seconds) * (point.bytes - a.bytes) < (point.seconds - a.seconds) * (b.bytes - a.bytes)) break;
      hull.pop_back();
    }
    hull.push_back(point);
  }
  return hull;
}
/// Seconds saved by a byte between neighbours of a hull.
constexpr double slope(const HullPoint& a, const HullPoint& b) { return (a.seconds - b.seconds) / (b.bytes - a.bytes); }
/// The least seconds + price * bytes.
constexpr double cheapest(const std::vector<HullPoint>& hull, double price) {
  double least = infinite;
  for (const HullPoint& point : hull) least = std::min(least, point.at(price));
  return least;
}

/// Adds the slopes of a hull: the prices of a byte at which its cheapest point changes.
constexpr void add_slopes(const std::vector<HullPoint>& hull, std::vector<double>& prices) {
  for (std::size_t k = 1; k < hull.size(); ++k) prices.push_back(slope(hull[k - 1], hull[k]));
}
/// Each value once, the lowest first.
template <class T>
constexpr void sort_unique(std::vector<T>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

/// Choices whose hull is asked for again and again, with other numbers of micro-batches in flight and other limits on
/// the workspace.
class HullChoices {
 public:
  /// @param workspace  0 where there is no limit
  constexpr void add(const Choice& c, double seconds, std::int64_t workspace) {
    all_.push_back({seconds, c.states, c.stash, c.deferred, workspace});
  }

  /// Drops those that are on no hull, because another is faster and smaller in all that it keeps.
  constexpr void drop_dominated() {
    std::sort(all_.begin(), all_.end(), [](const One& a, const One& b) {
      return a.seconds != b.seconds ? a.seconds < b.seconds : a.states < b.states;
    });
    all_.resize(keep_non_dominated(all_, [](const One& a, const One& b) {
      return a.states <= b.states && a.stash <= b.stash && a.deferred <= b.deferred && a.workspace <= b.workspace;
    }));
  }

  [[nodiscard]] constexpr std::vector<HullPoint> hull(const Slots& slots, std::int64_t most_workspace) const {
    std::vector<HullPoint> points;
    points.reserve(all_.size());
    for (const One& one : all_)
      if (one.workspace <= most_workspace) points.push_back({static_cast<double>(slots.kept(one)), one.seconds});
    return lower_hull(std::move(points));
  }

 private:
  struct One {
    double seconds = 0;
    std::int64_t states = 0;
    std::int64_t stash = 0;
    std::int64_t deferred = 0;
    std::int64_t workspace = 0;
  };
  std::vector<One> all_;
};

}  // namespace galvatron::search
