// Pareto fronts: what of many candidates none of the others dominates.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

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
                                         std::size_t most_comparisons, std::size_t& comparisons) {
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
  comparisons += made;
  return kept;
}

}  // namespace galvatron::search
