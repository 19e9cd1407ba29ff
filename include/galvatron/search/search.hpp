// The whole search: the fastest plan of a space for a model on a cluster within a memory budget.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/search/bmw.hpp>
#include <galvatron/search/build_problem.hpp>
#include <galvatron/search/core_problem.hpp>
#include <galvatron/search/fewest_runs.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/refusals.hpp>
#include <galvatron/search/relaxation.hpp>
#include <galvatron/search/solver.hpp>
#include <galvatron/search/tuning.hpp>
#include <galvatron/search/uniform.hpp>
#include <galvatron/strategy/schemes.hpp>

namespace galvatron::search {

namespace detail {

/// Keeps the fastest candidate that fits, or the smallest while none does.
class BestOf {
 public:
  explicit BestOf(Bytes budget) : budget_(budget) {}
  /// Whether a candidate with these figures would be kept.
  [[nodiscard]] bool wants(Seconds seconds, Bytes peak) const {
    const auto rank = [this](Seconds s, Bytes p) {
      return p <= budget_ ? std::pair(0, s.value) : std::pair(1, static_cast<double>(p.count));
    };
    return !candidate_ || rank(seconds, peak) < rank(candidate_->iteration, candidate_->peak);
  }
  void offer(const Candidate& candidate) {
    if (wants(candidate.iteration, candidate.peak)) candidate_ = candidate;
  }
  [[nodiscard]] bool fits() const { return candidate_ && candidate_->peak <= budget_; }
  [[nodiscard]] const std::optional<Candidate>& candidate() const { return candidate_; }
  [[nodiscard]] Alternative as(std::string name) const {
    return {std::move(name), candidate_.value_or(Candidate{}), candidate_.has_value(), fits()};
  }

 private:
  Bytes budget_;
  std::optional<Candidate> candidate_;
};

/// One run of a search over its cases.
template <class Executor>
class Search {
 public:
  /// @param known  a plan of other cases, if there is one, that the best must beat
  Search(const Cluster& cluster, const SearchOptions& options, std::vector<Case> cases, Executor& executor,
         const std::optional<Candidate>& known = {})
      : cluster_(cluster), options_(options), cases_(std::move(cases)), executor_(executor), best_(options.memory) {
    if (known) best_.offer(*known);
    for (const Case& c : cases_) by_stages_.try_emplace(c.stages(), options.memory);
    scheme_best_.assign(std::size(schemes), BestOf(options.memory));
  }

  SearchResult run() {
    SearchResult out;
    out.statistics.cases = static_cast<int>(cases_.size());
    for (const Case& c : cases_)
      if (c.source == nullptr && (!options_.interrupted() || !best_.fits())) try_uniform(c);
    bounds_.resize(cases_.size());
    try_sources();
    executor_.each(cases_.size(), [&](std::size_t i) {
      if (options_.interrupted()) return;  // a bound of 0
      if (options_.algorithm == Algorithm::exact && cases_[i].source == nullptr && !cases_[i].problem.turns)
        drop_dominated(cases_[i].problem);
      bounds_[i] = bound_of(cases_[i]);
    });
    std::vector<std::size_t> open(cases_.size());
    std::iota(open.begin(), open.end(), std::size_t{0});
    sort_by_bound(open);
    // A quick pass over the likeliest choices finds good plans; the last one, pruned by them, proves or improves. Of
    // thousands of cases, whose problems are made when they are searched, it proves few: it has the work that is left
    // of the quick pass.
    const std::int64_t first = most_work() / 4;
    open = solve(open, options_.algorithm == Algorithm::bmw ? Pass::bmw : Pass::core, first);
    // Where hardly anything fits, few choices miss it: the smallest plan of all is one to begin with, or no plan fits.
    std::optional<Candidate> smallest;
    if (!best_.fits() && !options_.interrupted()) {
      smallest = find_smallest();
      if (!best_.fits()) open.clear();
    }
    if (best_.fits() && options_.algorithm == Algorithm::exact && !options_.likely_alone) {
      const std::int64_t all = cases_.front().source != nullptr ? first : most_work();
      open = solve(open, Pass::exact, all);
      raise_bounds(open, all / 4 * 5);
    }
    out.statistics.proven = open.empty();
    out.statistics.uniform_alone =
        !open.empty() && std::ranges::all_of(open, [this](std::size_t i) { return cases_[i].problem.turns; });
    out.statistics.labels = work_;
    out.statistics.solved = solved_;
    out.feasible = best_.fits();
    if (out.feasible) {
      out.best = *best_.candidate();
      out.statistics.bound = min(out.best.iteration, Seconds{least_bound(open)});
    } else {
      out.smallest = smallest;
      if (!open.empty()) out.statistics.bound = {};
    }
    for (const auto& [stages, best] : by_stages_)
      out.alternatives.push_back(best.as("best with pipeline " + std::to_string(stages)));
    for (std::size_t i = 0; i < std::size(schemes); ++i)
      out.alternatives.push_back(scheme_best_[i].as(schemes[i].name));
    return out;
  }

 private:
  // The largest number of seconds that a plan of this case may have and still win. On shared cores the objective is
  // near the event model's answer, mostly below it, and the latter decides.
  [[nodiscard]] double upper_for(const Case& c) const {
    if (!best_.fits()) return infinite;
    return best_.candidate()->iteration.value * (c.problem.objective.shared ? 1.1 : 1.0);
  }

  // No plan of this case is faster; where that excludes it, the first bound that does.
  [[nodiscard]] double bound_of(const Case& c) const {
    const double first = c.source != nullptr ? c.bound : LayerSums(c.problem).seconds(c.problem);
    if (first >= upper_for(c) || c.problem.turns) return first;
    const OpenCase opened(c);
    return Solver<Executor>((*opened).problem, {}, &executor_).bound(upper_for(c));
  }

  void sort_by_bound(std::vector<std::size_t>& cases) const {
    std::ranges::stable_sort(cases, {}, [this](std::size_t i) { return bounds_[i]; });
  }

  // Of cases whose problems are made when they are searched: looks for a good plan in those of the least bounds, as
  // long as that finds better ones, so that most of the others need no problem.
  void try_sources() {
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      if (cases_[i].source == nullptr) continue;
      bounds_[i] = cases_[i].bound;
      open.push_back(i);
    }
    sort_by_bound(open);
    for (std::size_t first = 0; first < std::min(open.size(), tuning::few * tuning::few); first += tuning::few) {
      const std::size_t end = std::min(open.size(), first + tuning::few);
      const double before = best_.fits() ? best_.candidate()->iteration.value : infinite;
      solve({open.begin() + static_cast<std::ptrdiff_t>(first), open.begin() + static_cast<std::ptrdiff_t>(end)},
            Pass::core, most_work() / 8);
      if (options_.interrupted() || (best_.fits() && !(best_.candidate()->iteration.value < before))) break;
    }
  }

  // One case searched.
  struct Attempt {
    std::optional<Solution> found;
    bool proven = true;  // its best plan is known, or is none of the best
    double bound = 0;    // no plan of the case is faster
    bool searched = false;
    std::int64_t work = 0;
  };
  // The likely choices, by Galvatron-BMW or exactly; all choices; all of them in half of the seconds that are open.
  enum class Pass : std::uint8_t { bmw, core, exact, halves };
  [[nodiscard]] Attempt attempt(std::size_t index, Pass pass, std::int64_t work) {
    const double upper = upper_for(cases_[index]);
    Attempt out;
    if (bounds_[index] >= upper) return out;
    if (cases_[index].problem.turns) {  // uniform plans are all that is tried
      out.proven = false;
      return out;
    }
    const OpenCase opened(cases_[index]);
    const Case& c = *opened;
    out.searched = true;
    out.proven = false;
    if (pass == Pass::bmw) {
      Bmw bmw(c.problem, &executor_);
      out.found = bmw.run();
      out.work = bmw.work();
    } else if (pass == Pass::core) {
      // Many stages join in many ways: fewer labels of each will do.
      const std::size_t few = Limits().labels / static_cast<std::size_t>(std::max(4, c.stages()));
      const Limits limits{.labels = std::max(tuning::few, few), .work = work, .stop = options_.stop};
      out.found = fastest_of_core(c.problem, tuning::few, upper, limits, &executor_, out.work);
    } else {
      const std::size_t labels = tuning::most_labels * static_cast<std::size_t>(options_.effort);
      Solver solver(c.problem, {.labels = labels, .work = work, .stop = options_.stop}, &executor_);
      const double below = pass == Pass::halves ? (bounds_[index] + upper) / 2 : upper;
      out.found = solver.fastest(below);
      out.bound = std::min(solver.open(), out.found ? out.found->cost.seconds : below);
      out.proven = out.bound >= (out.found ? out.found->cost.seconds : upper);
      out.work = solver.work();
    }
    return out;
  }

  // Searches cases and returns those that are not done with. Cases of one group are pruned by the same plan, whoever of
  // them is first, so that the answer does not depend on the number of threads.
  // @param until  labels made by then, this pass and those before together; without a plan that fits it goes on
  std::vector<std::size_t> solve(const std::vector<std::size_t>& open, Pass pass, std::int64_t until) {
    std::vector<std::size_t> unproven;
    // The last pass takes long enough for a case to end others: one by one, each with all that is left of the work.
    const std::size_t at_once = pass >= Pass::exact ? 1 : tuning::at_once;
    for (std::size_t first = 0; first < open.size(); first += at_once) {
      if (options_.interrupted() || (work_ >= until && best_.fits())) {
        unproven.insert(unproven.end(), open.begin() + static_cast<std::ptrdiff_t>(first), open.end());
        break;
      }
      const std::size_t count = std::min(at_once, open.size() - first);
      std::vector<Attempt> attempts(count);
      std::int64_t not_pruned = 0;
      for (std::size_t i = 0; i < count; ++i)
        not_pruned += bounds_[open[first + i]] < upper_for(cases_[open[first + i]]);
      const std::int64_t work = std::max<std::int64_t>(0, until - work_) / std::max<std::int64_t>(1, not_pruned);
      executor_.each(count, [&](std::size_t i) { attempts[i] = attempt(open[first + i], pass, work); });
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t index = open[first + i];
        Attempt& own = attempts[i];
        bounds_[index] = std::max(bounds_[index], own.bound);
        work_ += own.work;
        solved_ += own.searched ? 1 : 0;
        if (own.found) {
          const OpenCase opened(cases_[index]);
          const Case& c = *opened;
          Candidate candidate = candidate_of(c, *own.found, cluster_);
          if (best_.wants(candidate.iteration, candidate.peak)) {
            const Candidate merged = candidate_of(c, with_fewest_runs(c, *own.found), cluster_);
            if (merged.iteration.value <= candidate.iteration.value * (1 + 1e-12)) candidate = merged;
          }
          const bool exact = candidate.iteration.value <= own.found->cost.seconds * (1 + 1e-9);  // the objective is
          own.proven = own.proven && (exact || c.problem.objective.shared);
          offer(c, candidate);
        }
        if (!own.proven) unproven.push_back(index);
      }
    }
    return unproven;
  }

  // Of cases that the last pass left open: looks for plans in the lower half of the seconds that each leaves open,
  // again and again. Far fewer labels are below that than below the best plan, so that the half is found empty soon.
  // @param until  as of solve
  void raise_bounds(std::vector<std::size_t>& open, std::int64_t until) {
    constexpr double worth = 1 + 1e-5;
    for (double before = 0; !open.empty() && least_bound(open) > before * worth; sort_by_bound(open)) {
      before = least_bound(open);
      open = solve(open, Pass::halves, until);
    }
  }
  [[nodiscard]] double least_bound(const std::vector<std::size_t>& cases) const {
    double out = infinite;
    for (const std::size_t index : cases) out = std::min(out, bounds_[index]);
    return out;
  }

  void offer(const Case& c, const Candidate& candidate) {
    best_.offer(candidate);
    by_stages_.at(c.stages()).offer(candidate);
  }

  // Offers the uniform plans of a case to all that one of them may be the best of.
  void try_uniform(const Case& c) {
    const UniformBounds bounds(c);
    std::vector<BestOf*> of;
    std::vector<int> choices;
    for (std::size_t tag = 0; tag < c.specs.size(); ++tag) {
      if (!bounds.find_choices(static_cast<int>(tag), choices)) continue;
      of = {&best_, &by_stages_.at(c.stages())};
      for (std::size_t i = 0; i < std::size(schemes); ++i)
        if (schemes[i].has(c.stages(), c.specs[tag])) of.push_back(&scheme_best_[i]);
      const auto wanted = [&](double seconds, std::int64_t peak) {
        return std::any_of(of.begin(), of.end(), [&](BestOf* best) { return best->wants({seconds}, {peak}); });
      };
      const Evaluation least = bounds.least(choices);
      if (!wanted(least.seconds, least.peak)) continue;
      for (const Solution& plan : uniform_plans(c.problem, choices)) {
        if (!wanted(plan.cost.seconds, plan.cost.peak)) continue;
        const Candidate candidate = candidate_of(c, plan, cluster_);
        for (BestOf* best : of) best->offer(candidate);
      }
    }
  }

  // The plan that needs the least memory, if there is any, which is offered as well.
  std::optional<Candidate> find_smallest() {
    std::int64_t least = unlimited;
    std::optional<Candidate> smallest = best_.candidate();
    if (smallest) least = smallest->peak.count;
    // The most promising first, until no other can be smaller.
    std::vector<std::pair<std::int64_t, std::size_t>> order(cases_.size());
    executor_.each(cases_.size(), [&](std::size_t i) {
      const OpenCase opened(cases_[i]);
      const bool turns = (*opened).problem.turns;
      order[i] = {turns ? unlimited : Solver<Executor>((*opened).problem, {}, nullptr, 1).least_peak(), i};
    });
    std::sort(order.begin(), order.end());
    for (const auto& [bound, index] : order) {
      if (bound >= least || options_.interrupted()) break;
      const OpenCase opened(cases_[index]);
      const Case& c = *opened;
      // Memory alone has few labels: never beam-truncated, so the answer is exact.
      const Limits limits{.labels = 1 << 16, .stop = options_.stop};
      const auto found = search::smallest(c.problem, least, limits, &executor_, &work_);
      if (!found) continue;
      least = found->cost.peak;
      smallest = candidate_of(c, *found, cluster_);
      offer(c, *smallest);
    }
    return smallest;
  }

  [[nodiscard]] std::int64_t most_work() const { return tuning::most_work * options_.effort / options_.shares; }

  const Cluster& cluster_;
  const SearchOptions& options_;
  std::vector<Case> cases_;
  Executor& executor_;
  std::vector<double> bounds_;  // of every case: lower bound of the seconds of its plans
  BestOf best_;
  std::map<int, BestOf> by_stages_;
  std::vector<BestOf> scheme_best_;
  std::int64_t work_ = 0;
  int solved_ = 0;  // cases that were searched, in all passes
};

}  // namespace detail

/// The fastest plan. Errors (usage): bad options (see completed), a cluster whose figures give no prices. An infeasible
/// search is a result with `reason` and, if any budget admits a plan, the smallest one. Deterministic.
/// @tparam Executor  made with options.threads, runs pieces of the search; the answer is the same with any: see Team
template <class Executor = Team>
Result<SearchResult> search(const ModelSpec& model, const Cluster& cluster, const SearchOptions& wanted) {
  const double begin = steady_seconds();
  auto options = completed(wanted, model, cluster);
  if (!options) return tl::unexpected<Error>(std::move(options.error()));
  Executor executor(options->threads);
  auto [settings, cases, narrowed] = make_cases(model, cluster, *options, executor);
  const bool are_missing = options->interrupted();
  if (const std::string why = detail::why_no_prices(cases, cluster); !why.empty()) return usage_error(why);
  SearchResult result;
  if (cases.empty()) {
    result.reason = detail::why_no_case(model, cluster, *options);
  } else {
    result = detail::Search(cluster, *options, std::move(cases), executor).run();
    const Bytes least = result.smallest ? result.smallest->peak : Bytes{};
    if (!result.feasible)
      result.reason = text_of("no plan for ", model.name, " on ", cluster.name, " fits ", format_bytes(options->memory),
                              " a device: the smallest budget that works is ", least.count, " bytes (",
                              format_bytes(least), ")", detail::and_hint(options->space));
  }
  result.statistics.narrowed = narrowed;
  result.statistics.proven = result.statistics.proven && !narrowed;
  if (are_missing) result.statistics.lacks_cases();
  result.statistics.interrupted = options->interrupted();
  if (!result.feasible && options->interrupted()) result.reason = "the search was interrupted before it found a plan";
  result.statistics.seconds = {steady_seconds() - begin};
  return result;
}

}  // namespace galvatron::search
