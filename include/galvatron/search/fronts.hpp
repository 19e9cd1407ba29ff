// Fronts of many candidates: those that none of the others dominates (Pareto), and the convex hulls of choices in
// (bytes, seconds): what is left of them when bytes have a price (a Lagrange multiplier).
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// Pairs, for the question whether one of them is no larger than another in both coordinates.
template <class Y>
class ParetoFront {
 public:
  [[nodiscard]] constexpr bool dominates(double x, Y y) const {
    const auto above = std::ranges::upper_bound(points_, x, {}, &Point::x);
    return above != points_.begin() && (above - 1)->y <= y;
  }
  /// A pair that it does not dominate.
  constexpr void add(double x, Y y) {
    const auto first = std::ranges::lower_bound(points_, x, {}, &Point::x);
    const auto last = std::find_if(first, points_.end(), [=](const Point& point) { return point.y < y; });
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

/// Keeps the items, in their order, that none before them dominates (`dominates(a, b)`: with `a` at hand `b` is of no
/// use). After `most_comparisons` items are compared with the one that dominated another last only, so that some
/// dominated ones are kept too. Returns the comparisons beyond that.
template <class Item>
constexpr std::size_t keep_non_dominated(std::vector<Item>& items,
                                         std::size_t most_comparisons = std::numeric_limits<std::size_t>::max()) {
  std::size_t last = 0;  // the item that dominated one last: likely to dominate the next
  std::size_t made = 0;
  auto end = items.begin();  // of those that are kept
  for (const Item& next : items) {
    const Item item = next;
    bool dominated = end != items.begin() && dominates(items[last], item);
    for (auto other = items.begin(); other != end && !dominated && made < most_comparisons; ++other, ++made)
      if (dominates(*other, item)) {
        dominated = true;
        last = static_cast<std::size_t>(other - items.begin());
      }
    if (!dominated) *end++ = item;
  }
  items.erase(end, items.end());
  return made;
}

/// Sorts terms and drops those that others dominate; of equal ones the first stays.
template <class Item>
constexpr void keep_fastest(std::vector<Item>& items) {
  std::sort(items.begin(), items.end());
  if (!std::all_of(items.begin(), items.end(), [](const Terms& terms) { return terms.has_three(); })) {
    keep_non_dominated(items);
    return;
  }
  ParetoFront<double> front;  // of fill and per-iteration cost: time ascends
  std::erase_if(items, [&](const Terms& terms) {
    if (front.dominates(terms.fill, terms.per_iteration)) return true;
    front.add(terms.fill, terms.per_iteration);
    return false;
  });
}

/// A choice as a relaxation sees it.
struct HullPoint {
  double bytes = 0;
  double seconds = 0;

  friend constexpr auto operator<=>(const HullPoint&, const HullPoint&) = default;
  /// With a price for its bytes.
  [[nodiscard]] constexpr double at(double price) const { return seconds + price * bytes; }
};

/// The lower convex hull, from the fewest bytes to the fewest seconds.
constexpr std::vector<HullPoint> lower_hull(std::vector<HullPoint> points) {
  std::sort(points.begin(), points.end());
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

}  // namespace galvatron::search
