// The search on a mixed cluster: the fastest plan of any group alone, and of pipelines over several groups.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/team.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/mixed/cases.hpp>
#include <galvatron/mixed/group_searches.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/case.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/search.hpp>
#include <galvatron/search/solver.hpp>
#include <galvatron/search/tuning.hpp>

namespace galvatron::search {

/// How alternatives of a mixed cluster are called: the fastest plan that is known on one group alone, and of those that
/// use a group which the best plan leaves idle.
inline std::string alone_on(const ClusterView& cluster, int group) {
  return "best on " + cluster.group_name(group) + " alone";
}
inline std::string best_with(const ClusterView& cluster, int group) { return "best with " + cluster.group_name(group); }

namespace detail {

inline bool uses_group(const std::vector<StageDevices>& on, int group) {
  return std::ranges::any_of(on, [=](const StageDevices& stage) { return stage.group == group; });
}

/// Whether stages on several groups may be chosen: strategies and layers of stages then differ.
inline bool may_mix(const SearchOptions& options) {
  return options.algorithm == Algorithm::exact && options.trainer.is_own() && !options.one_strategy &&
         !options.even_stages;
}

/// The fastest plan known that uses a group which the best one leaves idle. It does not exist where no case has the
/// group, and does not fit where no stage of any case does.
template <class Executor>
Alternative with_idle_group(const ClusterView& cluster, int group, const SearchResult& alone,
                            const std::vector<Alternative>& found, const std::vector<Case>& cases,
                            const SearchOptions& options, Executor& executor) {
  Alternative out{best_with(cluster, group), {}, false, false};
  const auto offer = [&](const Candidate& candidate) {
    if (!out.fits || candidate.iteration < out.candidate.iteration) out.candidate = candidate;
    out.exists = out.fits = true;
  };
  if (alone.feasible) offer(alone.best);
  for (const Alternative& one : found)
    if (one.exists && one.fits && uses_group(one.candidate.on, group)) offer(one.candidate);
  if (out.fits) return out;
  std::vector<const Case*> with;
  for (const Case& c : cases)
    if (uses_group(c.on, group)) with.push_back(&c);
  out.exists = alone.statistics.cases > 0 || !with.empty();
  constexpr std::size_t most = 4096;
  for (const Case* one : some_of(with, most)) {
    if (options.interrupted()) break;
    const OpenCase opened(*one);
    const Case& c = *opened;
    Solver<Executor> solver(c.problem, {.labels = tuning::few, .stop = options.stop}, &executor);
    const auto solution = solver.fastest();
    if (!solution) continue;
    offer(candidate_of(c, *solution, cluster.group(group)));
    break;
  }
  return out;
}

/// Adds what is known of each group: of one that is idle the fastest plan with it, of one that the best plan shares
/// with others the fastest that is known on it alone.
template <class Executor>
void add_groups(SearchResult& out, const ClusterView& cluster, const GroupSearches<Executor>& groups,
                const std::vector<Case>& cases, const SearchOptions& options, Executor& executor) {
  const std::vector<Alternative> found = out.alternatives;
  for (int group = 0; group < cluster.count(); ++group) {
    const std::optional<SearchResult>& alone = groups.result(group);
    if (!alone) continue;
    if (out.feasible && !uses_group(out.best.on, group))
      out.alternatives.push_back(with_idle_group(cluster, group, *alone, found, cases, options, executor));
    else if (alone->feasible && out.best.on != alone->best.on)
      out.alternatives.push_back({alone_on(cluster, group), alone->best, true, true});
    else if (alone->smallest)
      out.alternatives.push_back({alone_on(cluster, group), *alone->smallest, true, false});
  }
}

inline std::string why_no_mixed_plan(const SearchResult& found, const ModelSpec& model, const ClusterView& cluster,
                                     const SearchOptions& options) {
  if (found.statistics.interrupted) return "the search was interrupted before it found a plan";
  const std::string none = text_of("no plan for ", model.name, " on ", cluster.name(), " fits");
  if (!found.smallest)
    return text_of(none, ": no strategy of the space spreads it over one group or several", and_hint(options.space));
  const Bytes more = found.smallest->peak - options.memory;
  return text_of(none, " ", format_bytes(options.memory), " a device, or what a device has: each would need ",
                 more.count, " bytes (", format_bytes(more), ") more", and_hint(options.space));
}

}  // namespace detail

/// The fastest plan on a mixed cluster: on one group, or with a run of pipeline stages on each of several. Errors
/// (usage): those of search on every group, where no pipeline over several is possible either.
/// @tparam Executor  as of search
template <class Executor = Team>
Result<SearchResult> search_mixed(const ModelSpec& model, const ClusterView& cluster, const SearchOptions& wanted) {
  const double begin = steady_seconds();
  auto options = completed(wanted, model, cluster);
  if (!options) return tl::unexpected<Error>(std::move(options.error()));
  detail::GroupSearches<Executor> groups(model, cluster, *options);
  Executor executor(options->threads);
  SearchResult out;
  std::optional<MixedCases<Executor>> mixed;
  if (detail::may_mix(*options)) mixed.emplace(model, cluster, *options, executor);
  const std::vector<Case> cases = mixed ? mixed->cases() : std::vector<Case>{};
  const bool are_missing = mixed && options->interrupted();
  const std::optional<Candidate> alone = groups.best();
  if (!cases.empty()) {
    SearchOptions part = *options;
    part.shares = 3;  // more of the work found hardly faster plans of thousands of cases, less leaves all of them open
    out = detail::Search(cluster.group(0), part, cases, executor, alone).run();
    std::erase_if(out.alternatives, [](const Alternative& one) { return !one.exists; });
    out.statistics.narrowed = mixed->narrowed();
  } else if (alone) {
    out.feasible = true;
    out.best = *alone;
  } else if (groups.error()) {
    return tl::unexpected<Error>(*groups.error());
  }
  if (out.feasible) {
    groups.finish(out.best.iteration);
    if (const auto found = groups.best(); found && found->iteration < out.best.iteration) out.best = *found;
  }
  out.statistics.add(groups.statistics(out.best.iteration));
  out.statistics.bound = min(out.statistics.bound, out.feasible ? out.best.iteration : Seconds{infinite});
  out.statistics.proven = out.statistics.proven && !out.statistics.narrowed;
  if (are_missing) out.statistics.lacks_cases();
  out.statistics.interrupted = options->interrupted();
  detail::add_groups(out, cluster, groups, cases, *options, executor);
  if (!out.feasible) {
    const std::optional<Candidate> smallest = groups.smallest();
    if (smallest && (!out.smallest || smallest->peak < out.smallest->peak)) out.smallest = smallest;
    out.reason = detail::why_no_mixed_plan(out, model, cluster, *options);
  }
  out.statistics.seconds = {steady_seconds() - begin};
  return out;
}

}  // namespace galvatron::search
