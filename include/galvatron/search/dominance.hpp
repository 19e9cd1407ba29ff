// What of many candidates none of the others beats.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace galvatron::search::detail {

/// Pairs, for the question whether one of them is no larger than another in both figures.
template <class Y>
class Staircase {
 public:
  [[nodiscard]] bool reaches(double x, Y y) const {
    const auto above = std::upper_bound(steps_.begin(), steps_.end(), x,
                                        [](double value, const Step& step) { return value < step.x; });
    return above != steps_.begin() && (above - 1)->y <= y;
  }
  /// A pair that it does not reach.
  void add(double x, Y y) {
    auto first = std::lower_bound(steps_.begin(), steps_.end(), x,
                                  [](const Step& step, double value) { return step.x < value; });
    auto last = first;
    while (last != steps_.end() && last->y >= y) ++last;
    if (first == last) {
      steps_.insert(first, {x, y});
      return;
    }
    *first = {x, y};
    steps_.erase(first + 1, last);
  }

 private:
  struct Step {
    double x = 0;
    Y y{};
  };
  std::vector<Step> steps_;  // x ascending, y descending
};

/// Keeps the items, in their order, that none before them beats; returns how many. After `most_comparisons` items are
/// held against the one that beat another last only, so that some dominated ones are kept too.
/// @param beats        beats(a, b): with `a` at hand `b` is of no use
/// @param comparisons  grows by the calls of it
template <class Item, class Beats>
std::size_t keep_unbeaten(std::vector<Item>& items, const Beats& beats, std::size_t most_comparisons,
                          std::size_t& comparisons) {
  std::size_t kept = 0;
  std::size_t last = 0;  // the item that beat one last: likely to beat the next
  std::size_t made = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item item = items[i];
    bool beaten = kept > 0 && beats(items[last], item);
    for (std::size_t j = 0; j < kept && !beaten && made < most_comparisons; ++j, ++made)
      if (beats(items[j], item)) {
        beaten = true;
        last = j;
      }
    if (!beaten) items[kept++] = item;
  }
  comparisons += made;
  return kept;
}
template <class Item, class Beats>
std::size_t keep_unbeaten(std::vector<Item>& items, const Beats& beats) {
  std::size_t comparisons = 0;
  return keep_unbeaten(items, beats, std::numeric_limits<std::size_t>::max(), comparisons);
}

}  // namespace galvatron::search::detail
