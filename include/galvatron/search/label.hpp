// Label: what the layers so far cost, and the Pareto sets of labels that the search carries from layer to layer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/search/fronts.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/tuning.hpp>

namespace galvatron::search {

/// The cost of a run of layers of one stage, its last layer included.
///
/// A stage needs `kept` bytes and, on top, the largest workspace W of its layers. Carrying kept and `top` = kept + W,
/// one label is never worse than another, whatever layers follow, exactly if it is no larger in each of the five
/// figures: for a later workspace V the stage needs kept + max(W, V) = max(top, kept + V).
struct Label : Terms {
  std::int64_t top = 0;
  std::int64_t kept = 0;
  std::int32_t parent = -1;  ///< index of the label of the layer before
  std::int32_t choice = 0;   ///< of the last layer

  /// By time, then the other figures; a total order, so that sorting is the same everywhere.
  friend constexpr auto operator<=>(const Label&, const Label&) = default;
  /// Whatever layers follow.
  friend constexpr bool dominates(const Label& a, const Label& b) {
    return dominates(static_cast<const Terms&>(a), static_cast<const Terms&>(b)) && a.top <= b.top && a.kept <= b.kept;
  }
  [[nodiscard]] constexpr std::int64_t workspace() const { return top - kept; }
  /// The label after another layer with these terms and bytes, or after what lies between two layers.
  [[nodiscard]] constexpr Label after(const Terms& terms, std::int64_t more_kept, std::int64_t its_workspace) const {
    const std::int64_t all_kept = kept + more_kept;
    return {static_cast<const Terms&>(*this) + terms, all_kept + std::max(workspace(), its_workspace), all_kept, parent,
            choice};
  }
  constexpr void add(const Terms& terms, std::int64_t more_kept, std::int64_t its_workspace) {
    *this = after(terms, more_kept, its_workspace);
  }
  /// Takes the least of both in every number.
  constexpr void lower_to(const Label& other) {
    static_cast<Terms&>(*this) = min(*this, other);
    kept = std::min(kept, other.kept);
    top = std::min(top, other.top);
  }
};

namespace detail {

/// Labels that were kept, in the order of time, for the question whether one of them dominates the next. Labels have
/// few different workspaces; for each one a Pareto front has the least top for every per-iteration cost.
class KeptLabels {
 public:
  /// Keeps a label unless one dominates it. Returns whether it did.
  constexpr bool offer(const Label& label) {
    // With workspace w, top <= label.top and kept <= label.kept are one limit on top.
    for (const Group& group : groups_)
      if (group.tops.dominates(label.per_iteration, std::min(label.top, label.kept + group.workspace))) return false;
    auto group = std::ranges::find(groups_, label.workspace(), &Group::workspace);
    if (group == groups_.end()) group = groups_.insert(group, {label.workspace(), {}});
    group->tops.add(label.per_iteration, label.top);
    return true;
  }

 private:
  struct Group {
    std::int64_t workspace = 0;
    ParetoFront<std::int64_t> tops;
  };
  std::vector<Group> groups_;
};

/// Sorts labels that come in a few sorted runs, those of one choice after the other: merges them.
constexpr void merge_runs(std::vector<Label>& labels) {
  std::vector<std::ptrdiff_t> ends{0};
  for (auto at = labels.begin(); at != labels.end(); ends.push_back(at - labels.begin()))
    at = std::is_sorted_until(at, labels.end());
  std::vector<Label> merged(labels.size());
  while (ends.size() > 2) {
    std::size_t runs = 0;
    for (std::size_t k = 0; k + 1 < ends.size(); k += 2) {
      const std::ptrdiff_t middle = ends[k + 1];
      const std::ptrdiff_t end = ends[std::min(k + 2, ends.size() - 1)];
      std::merge(labels.begin() + ends[k], labels.begin() + middle, labels.begin() + middle, labels.begin() + end,
                 merged.begin() + ends[k]);
      ends[++runs] = end;
    }
    ends.resize(runs + 1);
    labels.swap(merged);
  }
}

}  // namespace detail

/// Removes dominated labels, and then, if more than `limit` are left, truncates the beam: the range of memory is cut
/// into cells and each keeps its label of least time + share * per_iteration. Returns whether it truncated. The result
/// is ordered by time and depends on nothing but the labels and their order.
/// @param work  grows by what that took beyond a look at each label, in labels
constexpr bool keep_best(std::vector<Label>& labels, std::size_t limit, double share, std::int64_t& work) {
  if (labels.size() < 2) return false;
  detail::merge_runs(labels);
  const auto is_plain = [](const Label& label) { return label.fill == label.time && label.has_three(); };
  if (std::ranges::all_of(labels, is_plain)) {
    detail::KeptLabels best;
    std::erase_if(labels, [&](const Label& label) { return !best.offer(label); });
  } else {  // of more than some hundred a few dominated ones stay
    const std::size_t comparisons = keep_non_dominated(labels, 256 * labels.size());
    work += static_cast<std::int64_t>(comparisons / tuning::comparisons_of_a_label);
  }
  if (labels.size() <= limit) return false;

  const auto [low, high] = std::ranges::minmax_element(labels, {}, &Label::top);
  const std::int64_t least = low->top;
  const std::int64_t width = (high->top - least) / static_cast<std::int64_t>(limit) + 1;
  std::vector<std::int32_t> cell(limit + 1, -1);
  for (std::size_t i = 0; i < labels.size(); ++i) {
    std::int32_t& best = cell[static_cast<std::size_t>((labels[i].top - least) / width)];
    if (best < 0 || labels[i].time_with(share) < nth(labels, best).time_with(share))
      best = static_cast<std::int32_t>(i);
  }
  std::erase(cell, -1);
  std::ranges::sort(cell);  // back into the order of time
  for (std::size_t i = 0; i < cell.size(); ++i) labels[i] = nth(labels, cell[i]);
  labels.resize(cell.size());
  return true;
}

}  // namespace galvatron::search
