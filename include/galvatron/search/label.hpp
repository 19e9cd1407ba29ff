// Label: what the layers so far cost, and the Pareto sets of labels that the search carries from layer to layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/search/dominance.hpp>

namespace galvatron::search {

/// The cost of a run of layers of one stage, its last layer included.
///
/// A stage needs `kept` bytes and, on top, the largest workspace W of its layers. Carrying kept and `top` = kept + W,
/// one label is never worse than another, whatever layers follow, exactly if it is no larger in each of the five
/// figures: for a later workspace V the stage needs kept + max(W, V) = max(top, kept + V).
struct Label {
  double time = 0;  ///< seconds of a micro-batch
  double ramp = 0;  ///< of them, what the schedule does not deferred
  double once = 0;  ///< seconds once an iteration
  std::int64_t kept = 0;
  std::int64_t top = 0;
  std::int32_t parent = -1;  ///< index of the label of the layer before
  std::int32_t choice = 0;   ///< of the last layer

  /// By time, then the other figures; a total order, so that sorting is the same everywhere.
  friend bool operator<(const Label& a, const Label& b) {
    if (a.time != b.time) return a.time < b.time;
    if (a.ramp != b.ramp) return a.ramp < b.ramp;
    if (a.once != b.once) return a.once < b.once;
    if (a.top != b.top) return a.top < b.top;
    if (a.kept != b.kept) return a.kept < b.kept;
    return a.parent != b.parent ? a.parent < b.parent : a.choice < b.choice;
  }
  [[nodiscard]] std::int64_t workspace() const { return top - kept; }
  /// The label after another layer with these figures.
  void add(double more_time, double more_ramp, double more_once, std::int64_t more_kept, std::int64_t its_workspace) {
    const std::int64_t largest = std::max(workspace(), its_workspace);
    time += more_time;
    ramp += more_ramp;
    once += more_once;
    kept += more_kept;
    top = kept + largest;
  }
};

namespace detail {

/// Labels that were kept, in the order of time, for the question whether one of them beats the next. Labels have few
/// different workspaces; for each one a staircase has the least top for every once.
class KeptLabels {
 public:
  [[nodiscard]] bool beats(const Label& label) const {
    return std::any_of(groups_.begin(), groups_.end(), [&](const Group& group) {
      // With workspace w, top <= label.top and kept <= label.kept are one limit on top.
      return group.tops.reaches(label.once, std::min(label.top, label.kept + group.workspace));
    });
  }
  /// A label that none beats.
  void add(const Label& label) {
    const std::int64_t workspace = label.workspace();
    auto group = std::find_if(groups_.begin(), groups_.end(), [=](const Group& g) { return g.workspace == workspace; });
    if (group == groups_.end()) group = groups_.insert(groups_.end(), {workspace, {}});
    group->tops.add(label.once, label.top);
  }

 private:
  struct Group {
    std::int64_t workspace = 0;
    Staircase<std::int64_t> tops;
  };
  std::vector<Group> groups_;
};

/// Sorts labels that come in a few sorted runs: those of one choice after the other. Their places are merged, which are
/// small, and then the labels moved once.
inline void merge_runs(std::vector<Label>& labels) {
  std::vector<std::size_t> ends;
  for (auto at = labels.begin(); at != labels.end();) {
    at = std::is_sorted_until(at, labels.end());
    ends.push_back(static_cast<std::size_t>(at - labels.begin()));
  }
  if (ends.size() < 2) return;
  if (ends.size() > labels.size() / 4) {
    std::sort(labels.begin(), labels.end());
    return;
  }
  struct Place {
    double time;
    std::size_t at;
  };
  const auto sooner = [&labels](const Place& a, const Place& b) {
    return a.time != b.time ? a.time < b.time : labels[a.at] < labels[b.at];
  };
  std::vector<Place> places;
  places.reserve(labels.size());
  for (std::size_t i = 0; i < labels.size(); ++i) places.push_back({labels[i].time, i});
  std::vector<Place> merged(places.size());
  const auto at = [](std::vector<Place>& of, std::size_t i) { return of.begin() + static_cast<std::ptrdiff_t>(i); };
  while (ends.size() > 1) {
    std::size_t runs = 0;
    std::size_t begin = 0;
    for (std::size_t k = 0; k < ends.size(); k += 2) {
      const std::size_t middle = ends[k];
      const std::size_t end = ends[std::min(k + 1, ends.size() - 1)];
      std::merge(at(places, begin), at(places, middle), at(places, middle), at(places, end), at(merged, begin), sooner);
      begin = ends[runs++] = end;
    }
    ends.resize(runs);
    places.swap(merged);
  }
  std::vector<Label> sorted;
  sorted.reserve(labels.size());
  for (const Place& place : places) sorted.push_back(labels[place.at]);
  labels.swap(sorted);
}

/// Of so many labels all are compared; of more, so many pairs of each on average.
inline constexpr std::size_t compared_of_each = 256;

/// Keeps the labels, sorted, that no other beats, and of very many some others too; returns how many.
/// @param comparisons  grows by those that took more than a look at a label
inline std::size_t keep_unbeaten(std::vector<Label>& labels, std::size_t& comparisons) {
  std::size_t kept = 0;
  if (std::all_of(labels.begin(), labels.end(), [](const Label& l) { return l.ramp == l.time; })) {
    KeptLabels best;
    for (std::size_t i = 0; i < labels.size(); ++i) {
      const Label label = labels[i];
      if (best.beats(label)) continue;
      best.add(label);
      labels[kept++] = label;
    }
    return kept;
  }
  const auto beats = [](const Label& a, const Label& b) {
    return a.ramp <= b.ramp && a.once <= b.once && a.top <= b.top && a.kept <= b.kept;
  };
  return keep_unbeaten(labels, beats, compared_of_each * labels.size(), comparisons);
}

}  // namespace detail

/// Comparisons of two labels that take as long as making one.
inline constexpr std::size_t comparisons_of_a_label = 16;

/// Removes labels that another one makes superfluous, and then, if more than `limit` are left, thins them: the range of
/// memory is cut into cells and each keeps its label of least time + once_weight * once. Returns whether it thinned.
/// The result is ordered by time and depends on nothing but the labels and their order.
/// @param work  grows by what that took beyond a look at each label, in labels
inline bool keep_best(std::vector<Label>& labels, std::size_t limit, double once_weight, std::int64_t* work = nullptr) {
  if (labels.size() < 2) return false;
  detail::merge_runs(labels);
  std::size_t comparisons = 0;
  const std::size_t kept = detail::keep_unbeaten(labels, comparisons);
  if (work != nullptr) *work += static_cast<std::int64_t>(comparisons / comparisons_of_a_label);
  labels.resize(kept);
  if (kept <= limit) return false;

  std::int64_t least = labels.front().top;
  std::int64_t most = least;
  for (const Label& label : labels) {
    least = std::min(least, label.top);
    most = std::max(most, label.top);
  }
  const std::int64_t width = (most - least) / static_cast<std::int64_t>(limit) + 1;
  std::vector<std::int32_t> cell(limit + 1, -1);
  const auto score = [once_weight](const Label& l) { return l.time + once_weight * l.once; };
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::int32_t& best = cell[static_cast<std::size_t>((labels[i].top - least) / width)];
    if (best < 0 || score(labels[i]) < score(labels[static_cast<std::size_t>(best)]))
      best = static_cast<std::int32_t>(i);
  }
  std::sort(cell.begin(), cell.end());  // back into the order of time; the unused ones come first
  std::size_t used = 0;
  for (const std::int32_t i : cell)
    if (i >= 0) labels[used++] = labels[static_cast<std::size_t>(i)];
  labels.resize(used);
  return true;
}

}  // namespace galvatron::search
