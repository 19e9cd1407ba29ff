// Branch and bound: documents into given groups, so that none ends after the target of its micro-batch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/flexsp/packing.hpp>

namespace galvatron::flexsp {

enum class Answer { yes, no, unknown };

/// Depth-first search over documents in descending order. What prunes:
///
///     the device-seconds that are left until the target, less those of groups that no document fits any more
///                        >=  the device-seconds that the documents that follow take in their best groups
///     of groups that are alike so far, one is tried; documents of the same length go to groups in ascending order
class Assignment {
 public:
  /// @param bins  the groups; what is in them stays and is counted
  /// @param documents  ascending numbers
  /// @param targets  seconds of each micro-batch
  Assignment(const Instance& instance, std::vector<Bin>& bins, std::span<const int> documents,
             std::span<const double> targets)
      : instance_(instance), bins_(bins), documents_(documents), targets_(targets) {
    const std::size_t n = documents.size();
    rest_.resize(n + 1);
    for (std::size_t i = n; i-- > 0;) {
      double least = infinite;
      for (const Bin& bin : bins)
        if (instance.fits(bin.option, documents[i], target(bin)))
          least = std::min(least, instance.area(bin.option, documents[i]));
      rest_[i] = rest_[i + 1] + least;
    }
    for (const Bin& bin : bins) free_ += instance.degree(bin.option) * (target(bin) - bin.finish);
    tolerance_ = 1e-12 * std::abs(free_);
    candidates_.resize(n);
    chosen_.resize(n);
  }

  /// yes: the bins have all documents, in ascending order of their tokens if they were empty. no: there is no such
  /// assignment. @param nodes  documents that may be tried in a group
  Answer operator()(std::int64_t nodes) {
    nodes_ = nodes;
    for (const Bin& bin : bins_)
      if (bin.finish > target(bin)) return Answer::no;
    std::int64_t tokens = 0;
    for (const Bin& bin : bins_) tokens += instance_.capacity(bin.option) - bin.tokens;
    for (const int i : documents_) tokens -= instance_.tokens(i);
    if (tokens < 0) return Answer::no;
    if (descend(0, free_)) {
      for (std::size_t i = documents_.size(); i-- > 0;) bins_[chosen_[i]].documents.push_back(documents_[i]);
      return Answer::yes;
    }
    return nodes_ <= 0 ? Answer::unknown : Answer::no;
  }
  [[nodiscard]] std::int64_t nodes_left() const { return std::max<std::int64_t>(nodes_, 0); }

 private:
  [[nodiscard]] double target(const Bin& bin) const { return targets_[static_cast<std::size_t>(bin.part)]; }

  static constexpr double infinite = std::numeric_limits<double>::infinity();
  struct Candidate {
    double waste;
    double left;
    std::size_t bin;
    friend bool operator<(const Candidate& a, const Candidate& b) {
      return std::tie(a.waste, a.left, a.bin) < std::tie(b.waste, b.left, b.bin);
    }
  };

  bool descend(std::size_t at, double free) {
    if (at == documents_.size()) return true;
    const int i = documents_[at];
    const double slack = free - rest_[at];
    if (slack < -tolerance_) return false;
    const double own = rest_[at] - rest_[at + 1];
    const int last = documents_.back();
    const bool repeats = at > 0 && instance_.tokens(documents_[at - 1]) == instance_.tokens(i);
    std::vector<Candidate>& candidates = candidates_[at];
    candidates.clear();
    for (std::size_t g = repeats ? chosen_[at - 1] : 0; g < bins_.size(); ++g) {
      const Bin& bin = bins_[g];
      const double cost = instance_.cost(bin.option, i);
      const double left = target(bin) - bin.finish - cost;
      if (left < 0 || !fits(instance_, bin, i)) continue;
      bool alike = false;
      for (std::size_t other = repeats ? chosen_[at - 1] : 0; other < g && !alike; ++other)
        alike = bins_[other].option == bin.option && target(bins_[other]) == target(bin) &&
                bins_[other].tokens == bin.tokens && bins_[other].finish == bin.finish;
      if (alike) continue;
      double waste = instance_.area(bin.option, i) - own;
      if (at + 1 < documents_.size() && left < instance_.cost(bin.option, last))
        waste += left * instance_.degree(bin.option);
      if (waste > slack + tolerance_) continue;
      candidates.push_back({waste, left, g});
    }
    std::sort(candidates.begin(), candidates.end());
    for (const Candidate& candidate : candidates) {
      if (--nodes_ <= 0) return false;
      Bin& bin = bins_[candidate.bin];
      const double finish = bin.finish;
      bin.finish += instance_.cost(bin.option, i);
      bin.tokens += instance_.tokens(i);
      chosen_[at] = candidate.bin;
      if (descend(at + 1, free - own - candidate.waste)) return true;
      bin.finish = finish;
      bin.tokens -= instance_.tokens(i);
    }
    return false;
  }

  const Instance& instance_;
  std::vector<Bin>& bins_;
  std::span<const int> documents_;
  std::span<const double> targets_;
  double tolerance_ = 0;
  double free_ = 0;
  std::vector<double> rest_;  // least device-seconds of the documents from here on
  std::vector<std::vector<Candidate>> candidates_;
  std::vector<std::size_t> chosen_;
  std::int64_t nodes_ = 0;
};

}  // namespace galvatron::flexsp
