// Homogeneous plans: one degree for all groups of a batch, as FlexSP compares itself with ("static" and "adaptive").
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include <galvatron/flexsp/problem.hpp>

namespace galvatron::flexsp {

/// A batch with groups of one option. Empty groups stand in it: they take their fixed seconds.
struct HomogeneousPlan {
  int option = 0;
  std::vector<MicroBatch> microbatches;
  double seconds = 0;
};

namespace detail {

/// Documents put into groups of one option, as the released baselines do.
class HomogeneousPacking {
 public:
  HomogeneousPacking(std::span<const std::int64_t> lengths, const GroupOption& option, int groups)
      : lengths_(lengths), groups_(static_cast<std::size_t>(groups)) {
    const std::int64_t longest = *std::ranges::max_element(lengths);
    const std::int64_t tokens = option.capacity;
    limit_ = std::max(0.9 * static_cast<double>(tokens), static_cast<double>(longest));
    fit_best();
    if (fill_empty() && option.degree >= 16) level_last();
  }

  [[nodiscard]] const std::vector<std::vector<std::size_t>>& bins() const { return bins_; }
  [[nodiscard]] std::int64_t largest() const { return *std::ranges::max_element(tokens_); }

 private:
  // Best-fit decreasing: each document to the fullest group that it fits, the first of equally full ones.
  void fit_best() {
    std::vector<std::size_t> order(lengths_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return lengths_[a] > lengths_[b]; });
    for (const std::size_t k : order) {
      std::size_t best = bins_.size();
      for (std::size_t i = 0; i < bins_.size(); ++i)
        if (fits(i, k) && (best == bins_.size() || tokens_[i] > tokens_[best])) best = i;
      if (best == bins_.size()) {
        bins_.emplace_back();
        tokens_.push_back(0);
      }
      bins_[best].push_back(k);
      tokens_[best] += lengths_[k];
    }
    for (std::vector<std::size_t>& bin : bins_) std::ranges::sort(bin);
  }
  // Groups of the last micro-batch that have nothing get a document each. Returns whether there were such groups.
  bool fill_empty() {
    const std::size_t used = bins_.size();
    bins_.resize((used + groups_ - 1) / groups_ * groups_);
    tokens_.resize(bins_.size());
    for (std::size_t empty = used; empty < bins_.size(); ++empty)
      for (std::size_t i = used; i-- > 0;)
        if (bins_[i].size() > 1) {
          move(bins_[i].front(), i, empty);
          break;
        }
    return bins_.size() > used;
  }
  // Levels the tokens of the last micro-batch.
  void level_last() {
    const std::size_t first = bins_.size() - groups_;
    const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(first);
    const std::int64_t mean =
        std::accumulate(begin, tokens_.end(), std::int64_t{0}) / static_cast<std::int64_t>(groups_);
    for (std::size_t i = first + 1; i < bins_.size(); ++i) {
      if (tokens_[i] > mean) continue;
      for (std::size_t j = first; j < i; ++j) {
        const std::vector<std::size_t> candidates = bins_[j];
        for (const std::size_t k : candidates) {
          if (tokens_[i] >= mean || tokens_[j] <= mean || bins_[j].size() <= 1) break;
          if (fits(i, k)) move(k, j, i);
        }
      }
    }
  }
  [[nodiscard]] bool fits(std::size_t bin, std::size_t k) const {
    return static_cast<double>(tokens_[bin] + lengths_[k]) <= limit_;
  }
  void move(std::size_t k, std::size_t from, std::size_t to) {
    std::erase(bins_[from], k);
    bins_[to].insert(std::ranges::lower_bound(bins_[to], k), k);
    tokens_[from] -= lengths_[k];
    tokens_[to] += lengths_[k];
  }

  std::span<const std::int64_t> lengths_;
  std::size_t groups_;
  double limit_ = 0;
  std::vector<std::vector<std::size_t>> bins_;  // documents of each group, in the order of the batch
  std::vector<std::int64_t> tokens_;
};

}  // namespace detail

/// The plan with groups of one option; nothing where a document or a group has more tokens than it holds.
/// @param lengths  of the batch, in its order
inline std::optional<HomogeneousPlan> homogeneous_plan(const Problem& problem, std::span<const std::int64_t> lengths,
                                                       int option) {
  const GroupOption& kind = problem.options[static_cast<std::size_t>(option)];
  const int groups = problem.devices / kind.degree;
  if (lengths.empty() || groups < 1) return std::nullopt;
  const detail::HomogeneousPacking packing(lengths, kind, groups);
  if (packing.largest() > kind.capacity) return std::nullopt;
  HomogeneousPlan out{.option = option, .microbatches = {}, .seconds = 0};
  for (std::size_t first = 0; first < packing.bins().size(); first += static_cast<std::size_t>(groups)) {
    MicroBatch one;
    for (std::size_t i = first; i < first + static_cast<std::size_t>(groups); ++i) {
      Group group{.option = option, .lengths = {}, .seconds = 0};
      for (const std::size_t k : packing.bins()[i]) group.lengths.push_back(lengths[k]);
      group.seconds = group_seconds(kind, group.lengths);
      one.seconds = std::max(one.seconds, group.seconds);
      one.groups.push_back(std::move(group));
    }
    out.seconds += one.seconds;
    out.microbatches.push_back(std::move(one));
  }
  return out;
}

/// The fastest plan of one option, among those that `allowed` is true of; nothing where none holds all documents.
template <class Allowed>
std::optional<HomogeneousPlan> adaptive_plan(const Problem& problem, std::span<const std::int64_t> lengths,
                                             const Allowed& allowed) {
  std::optional<HomogeneousPlan> best;
  for (int option = 0; option < static_cast<int>(problem.options.size()); ++option) {
    if (!allowed(problem.options[static_cast<std::size_t>(option)])) continue;
    auto plan = homogeneous_plan(problem, lengths, option);
    if (plan && (!best || plan->seconds < best->seconds)) best = std::move(plan);
  }
  return best;
}
inline std::optional<HomogeneousPlan> adaptive_plan(const Problem& problem, std::span<const std::int64_t> lengths) {
  return adaptive_plan(problem, lengths, [](const GroupOption&) { return true; });
}

}  // namespace galvatron::flexsp
