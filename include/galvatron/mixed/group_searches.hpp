// The searches of a mixed cluster's groups, each alone.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/mixed/cases.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/search.hpp>

namespace galvatron::search::detail {

/// The searches of all groups. They look at likely choices first, and at the rest where that may be faster than the
/// best plan of the whole cluster: see finish.
template <class Executor>
class GroupSearches {
 public:
  /// The parameters are those of search_mixed; they must outlive this.
  GroupSearches(const ModelSpec& model, const ClusterView& cluster, const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options), results_(static_cast<std::size_t>(cluster.count())) {
    SearchOptions quick = options;
    quick.likely_alone = true;
    for (int group = 0; group < cluster.count(); ++group)
      if (cluster.group(group).lack_of(options.precision, options.trainer.traits.fp8_recipe).empty())
        search_group(group, quick);
  }

  /// Searches those groups in full that may have a plan faster than `best`, which has so many seconds.
  void finish(Seconds best) {
    for (int group = 0; group < cluster_.count() && !options_.interrupted(); ++group) {
      const std::optional<SearchResult>& known = result(group);
      if (!known || known->statistics.proven || known->statistics.bound >= best) continue;
      search_group(group, options_);
      if (known->feasible) best = min(best, known->best.iteration);
    }
  }

  /// None: the group is of no use, or its search failed.
  [[nodiscard]] const std::optional<SearchResult>& result(int group) const { return nth(results_, group); }
  /// The fastest plan, its peak with what the group has less than the budget.
  [[nodiscard]] std::optional<Candidate> best() const {
    std::optional<Candidate> out;
    for (const auto& found : results_)
      if (found && found->feasible && (!out || found->best.iteration < out->iteration)) out = found->best;
    return out;
  }
  /// Of the least memory, where none fits on a group.
  [[nodiscard]] std::optional<Candidate> smallest() const {
    std::optional<Candidate> out;
    for (const auto& found : results_)
      if (found && found->smallest && (!out || found->smallest->peak < out->peak)) out = found->smallest;
    return out;
  }
  /// The first: options suit no cluster, or not this one.
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  /// Of all, for a plan of the whole cluster with so many seconds.
  [[nodiscard]] SearchStatistics statistics(Seconds best) const {
    SearchStatistics out;
    for (const auto& found : results_) {
      if (!found) continue;
      SearchStatistics own = found->statistics;
      own.proven = own.proven || own.bound >= best;
      out.add(own);
    }
    return out;
  }

 private:
  void search_group(int group, const SearchOptions& options) {
    auto found = search<Executor>(model_, cluster_.group(group), options);
    if (!found) {
      if (!error_) error_ = std::move(found.error());
      return;
    }
    const auto place = [&](Candidate& candidate) {
      candidate.on.assign(static_cast<std::size_t>(candidate.stages),
                          {group, cluster_.group(group).devices / candidate.stages});
      candidate.peak += lacks(cluster_.group(group), options.memory);
    };
    if (found->feasible) place(found->best);
    if (found->smallest) place(*found->smallest);
    std::optional<SearchResult>& out = nth(results_, group);
    if (out) found->statistics.labels += out->statistics.labels;
    out = std::move(*found);
  }

  const ModelSpec& model_;
  const ClusterView& cluster_;
  const SearchOptions& options_;
  std::vector<std::optional<SearchResult>> results_;
  std::optional<Error> error_;
};

}  // namespace galvatron::search::detail
