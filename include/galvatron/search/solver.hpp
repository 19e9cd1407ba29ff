// Solver: the exact joint search of one problem: stage partition, strategies of all layers, re-layouts.
//
// Stages meet only in sums and maxima of their terms, so each is solved alone (StageDp) and a second dynamic program
// over (stage, first layer) puts them together; its labels are partial pipelines. Everything is pruned against the best
// plan known so far.
//
// All assignments are divided into parts, by the strategy of tied ends and, with one stage, by its largest workspace. A
// part whose bound is no better than the best assignment known is never opened.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/search/fronts.hpp>
#include <galvatron/search/layout_relaxation.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/partition_bounds.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/relaxation.hpp>
#include <galvatron/search/stage_dp.hpp>
#include <galvatron/search/stage_dps.hpp>
#include <galvatron/search/tuning.hpp>

namespace galvatron::search {

/// A way to have filled the first stages of a pipeline.
struct PartialPipeline : Terms {  // of its stages, joined
  std::int64_t peak = 0;
  std::int32_t parent = -1;  ///< number in the states of the stage before
  std::int32_t length = 0;   ///< of the last stage
  std::int32_t dp = 0;       ///< that has the option
  const StageOption* option = nullptr;
  const PartialPipeline* before = nullptr;  ///< the parent

  friend constexpr bool operator<(const PartialPipeline& a, const PartialPipeline& b) {
    const auto order = [](const PartialPipeline& p) {
      return std::tie(static_cast<const Terms&>(p), p.peak, p.parent, p.length, p.option->label);
    };
    return order(a) < order(b);
  }
};

/// Keeps the pipelines that none dominates, in their order; of more than `most` those of the least score. Returns
/// whether there were more.
template <class Score>
constexpr bool keep_best(std::vector<PartialPipeline>& pipelines, std::size_t most, const Score& score) {
  keep_fastest(pipelines);
  if (pipelines.size() <= most) return false;
  std::vector<double> scores;
  for (const PartialPipeline& pipeline : pipelines) scores.push_back(score(pipeline));
  const auto last = scores.begin() + static_cast<std::ptrdiff_t>(most) - 1;
  std::nth_element(scores.begin(), last, scores.end());
  std::erase_if(pipelines, [&, worst = *last](const PartialPipeline& p) { return score(p) > worst; });
  if (pipelines.size() > most) pipelines.resize(most);
  return true;
}

/// @tparam Executor  runs pieces of the work: see Team
template <class Executor = Team>
class Solver {
 public:
  /// @param workspace_classes  of the range bounds of a single stage (see RangeBound)
  explicit constexpr Solver(const Problem& problem, const Limits& limits = {}, Executor* executor = nullptr,
                            int workspace_classes = tuning::workspace_classes)
      : problem_(problem),
        limits_(limits),
        executor_(executor),
        relaxation_(problem, problem.stages() == 1 ? workspace_classes : 1, executor),
        bounds_(problem, relaxation_),
        dps_(problem, relaxation_, bounds_, executor) {}
  Solver(const Solver&) = delete;  // its parts refer to each other
  Solver& operator=(const Solver&) = delete;

  /// No assignment is faster. It is not worth being larger than `enough`.
  [[nodiscard]] constexpr double bound(double enough = infinite) {
    const double sums = relaxation_.sums().seconds(problem_);
    if (sums >= enough) return sums;
    return bounds_.narrow(enough, {}, 0) ? std::max(sums, bounds_.least()) : enough;
  }

  /// The fullest stage of no assignment has fewer bytes.
  [[nodiscard]] constexpr std::int64_t least_peak() const { return bounds_.least_peak(); }

  /// The fastest assignment with less than `upper` seconds whose stages all fit the budget; nothing when there is none.
  [[nodiscard]] constexpr std::optional<Solution> fastest(double upper = infinite) {
    open_ = infinite;
    std::optional<Solution> best;
    const double wanted = upper;
    upper *= 1 + 1e-9;  // bounds are rounded
    if (problem_.movable() < problem_.stages() || !bounds_.narrow(upper)) return best;
    const auto offer = [&](Solution solution) {
      if (solution.cost.seconds >= (best ? best->cost.seconds : wanted)) return false;
      upper = std::min(upper, solution.cost.seconds * (1 + 1e-9));
      best = std::move(solution);
      return true;
    };
    const std::vector<Part> parts = parts_below(upper);
    if (problem_.stages() == 1)
      for (std::size_t i = 0; i < std::min(parts.size(), tuning::at_once) && parts[i].bound < upper; ++i) {
        const StageRole role = dps_.role_of(0, 0, parts[i], bounds_);
        if (auto solution = LayoutRelaxation(problem_.on(0), role, 0).rounded()) offer(std::move(*solution));
      }
    for (std::size_t i = 0; i < parts.size() && parts[i].bound < upper; ++i) {
      const Part& part = parts[i];
      if (limits_.interrupted()) {
        open_ = std::min(open_, part.bound);
        break;
      }
      if (!part_bounds_.emplace(bounds_).narrow(upper, part.ends)) continue;
      truncated_ = false;
      auto found = join(part, upper);
      if (truncated_) open_ = std::min(open_, std::max({part.bound, part_bounds_->least(), layout_bound()}));
      if (found && offer(evaluated(problem_, std::move(*found))) && !bounds_.narrow(upper)) break;
    }
    return best;
  }

  /// Whether the last answer is exact: neither labels were beam-truncated nor the work limited.
  [[nodiscard]] constexpr bool proven() const { return open_ == infinite; }
  /// No assignment that the last search may have missed is faster.
  [[nodiscard]] constexpr double open() const { return open_; }
  /// Labels made so far.
  [[nodiscard]] constexpr std::int64_t work() const { return work_ + dps_.work(); }

 private:
  using State = std::pair<int, std::vector<PartialPipeline>>;  // first layer of the next stage

  // Those whose bound is less than `upper`, least first.
  [[nodiscard]] constexpr std::vector<Part> parts_below(double upper) const {
    std::vector<Part> out;
    for (const TiedEnds& ends : tied_ends(problem_)) {
      const double bound = relaxation_.sums().with_ends(problem_, ends);
      if (bound >= upper) continue;
      if (problem_.stages() > 1) {
        out.push_back({.ends = ends, .bound = bound});
        continue;
      }
      PartitionBounds own(bounds_);
      if (!own.narrow(upper, ends)) continue;
      const std::size_t before = out.size();
      for (std::size_t i = 0; i < relaxation_.ranges(0, 0).classes(); ++i) {
        const auto [least, most] = relaxation_.ranges(0, 0).workspaces(i);
        const double in_class = std::max(bound, own.least_in_class(i));
        if (in_class >= upper) continue;
        // Workspaces that are no great part of the memory are not worth searches of their own.
        if (out.size() > before &&
            (!limits_.seeks_proof() || most - out.back().least_workspace <= problem_.budget / 64)) {
          out.back().most_workspace = most;
          out.back().bound = std::min(out.back().bound, in_class);
        } else {
          out.push_back({ends, least, most, in_class});
        }
      }
    }
    std::ranges::sort(out, {},
                      [](const Part& part) { return std::tie(part.bound, part.ends.tag, part.least_workspace); });
    return out;
  }
  // With one stage: what its layers take at least, changes of layout included.
  [[nodiscard]] constexpr double layout_bound() const {
    if (problem_.stages() > 1) return 0;
    const double seconds = dps_.least_seconds(0);
    return seconds < infinite ? problem_.objective({seconds, seconds}) : 0;
  }

  // With the work that is left.
  [[nodiscard]] constexpr Limits limits_left() const {
    Limits out = limits_;
    if (out.limits_work()) out.work -= std::min(out.work, work());
    return out;
  }

  // Ways to have filled the stages before one, and the good stages that go on from there.
  struct Start {
    int begin = 0;  // first layer of the stage
    const std::vector<PartialPipeline>* before = nullptr;
    std::int32_t parent = 0;  // number of the first of them
    std::int32_t dp = 0;
    int shortest = 1;  // layers of the stage
    int longest = 1;
  };

  // How a stage may go on from what there is before it.
  [[nodiscard]] constexpr std::vector<Start> starts_of(int stage, const std::vector<State>& before, const Part& part) {
    std::vector<int> begins;
    for (const State& state : before) begins.push_back(state.first);
    Limits limits = limits_left();
    if (problem_.stages() == 1 && limits.limits_work()) limits.work /= 2;  // the likeliest parts get the most
    const std::vector<std::int32_t> dps = dps_.of_stage(stage, begins, part, *part_bounds_, limits);
    std::vector<Start> out;
    std::int32_t parents = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const StageRole role = dps_.role_of(stage, begins[i], part, *part_bounds_);
      const StageDp<Executor>& dp = dps_.dp(stage, dps[i]);
      out.push_back(
          {role.begin, &before[i].second, parents, dps[i], role.shortest, std::min(role.longest, dp.longest())});
      parents += static_cast<std::int32_t>(before[i].second.size());
      truncated_ |= dp.truncated();
    }
    return out;
  }

  // The ways to have filled the stages up to this one, so that the next begins with layer `next`.
  constexpr void extend(int stage, int next, const std::vector<Start>& starts, double upper,
                        std::vector<PartialPipeline>& out) const {
    for (const Start& start : starts) {
      const int length = next - start.begin;
      if (length < start.shortest || length > start.longest) continue;
      const std::vector<StageOption>& options = dps_.dp(stage, start.dp).options(length);
      if (options.empty()) continue;
      const bool ascending = std::ranges::is_sorted(options, {}, &StageOption::fill) &&
                             std::ranges::all_of(options, &StageOption::has_three);
      std::int32_t parent = start.parent - 1;
      for (const PartialPipeline& before : *start.before) {
        ++parent;
        for (const StageOption& option : options) {
          const PartialPipeline pipeline{
              joined(before, option), std::max(before.peak, option.peak), parent, length, start.dp, &option, &before};
          if (part_bounds_->with_stages(stage + 1, next, pipeline) < upper) out.push_back(pipeline);
          // Those after it are slower, and what they spare in per-iteration cost is hidden behind a stage before.
          if (ascending && option.per_iteration <= before.per_iteration) break;
        }
      }
    }
  }

  // Keeps as many pipelines up to a stage as the next one can extend with its share of the work, if that goes as here.
  constexpr void limit_pipelines(int stage, std::size_t before, std::size_t pairs) {
    most_pipelines_ = limits_.labels;
    if (!limits_.limits_work() || before == 0 || pairs == 0) return;
    pairs = pairs / tuning::comparisons_of_a_label + 1;
    work_ += static_cast<std::int64_t>(pairs);
    const std::int64_t share_of_next = limits_left().share_of_work(problem_.stages() - stage - 1);
    const double good = static_cast<double>(before) * static_cast<double>(share_of_next) / static_cast<double>(pairs) /
                        (part_bounds_->latest(stage + 1) - part_bounds_->earliest(stage + 1) + 1);
    most_pipelines_ = limits_.kept(good);
  }

  // The fastest assignment of a part, within part_bounds_.
  constexpr std::optional<Assignment> join(const Part& part, double upper) {
    const int stages = problem_.stages();
    std::vector<std::vector<State>> after(static_cast<std::size_t>(stages) + 1);  // so many stages
    after.front().emplace_back(0, std::vector<PartialPipeline>(1));
    for (int stage = 0; stage < stages; ++stage) {
      const std::vector<Start> starts = starts_of(stage, nth(after, stage), part);
      if (starts.empty()) return std::nullopt;
      std::size_t ways = 0;   // so far
      std::size_t pairs = 0;  // of a way so far and a stage
      for (const Start& start : starts) {
        ways += start.before->size();
        for (int length = start.shortest; length <= start.longest; ++length)
          pairs += start.before->size() * dps_.dp(stage, start.dp).options(length).size();
      }
      limit_pipelines(stage, ways, pairs);
      const int first = part_bounds_->earliest(stage + 1);
      std::vector<std::vector<PartialPipeline>> made(static_cast<std::size_t>(part_bounds_->latest(stage + 1) - first) +
                                                     1);
      std::vector<char> truncated(made.size(), 0);
      share(executor_, pairs, made.size(), [&](std::size_t i) {
        extend(stage, first + static_cast<int>(i), starts, upper, made[i]);
        truncated[i] = keep_best(made[i], most_pipelines_, problem_.objective) ? 1 : 0;
      });
      for (std::size_t i = 0; i < made.size(); ++i) {
        truncated_ |= truncated[i] != 0;
        if (!made[i].empty()) nth(after, stage + 1).emplace_back(first + static_cast<int>(i), std::move(made[i]));
      }
    }
    if (after.back().empty()) return std::nullopt;
    // All layers are in a stage: there is one state.
    return trace(&*std::ranges::min_element(after.back().front().second, {}, problem_.objective));
  }

  [[nodiscard]] constexpr Assignment trace(const PartialPipeline* pipeline) const {
    Assignment plan;
    plan.first.assign(static_cast<std::size_t>(problem_.stages()) + 1, problem_.count());
    plan.choice.resize(problem_.layers.size());
    for (int stage = problem_.stages(); stage-- > 0; pipeline = pipeline->before) {
      const int begin = nth(plan.first, stage) = nth(plan.first, stage + 1) - pipeline->length;
      const std::vector<int> own = dps_.dp(stage, pipeline->dp).choices(pipeline->length, *pipeline->option);
      std::copy(own.begin(), own.end(), plan.choice.begin() + begin);
    }
    return plan;
  }

  const Problem& problem_;
  Limits limits_;
  Executor* executor_;
  Relaxation relaxation_;
  PartitionBounds bounds_;  // whatever the ends are
  StageDps<Executor> dps_;
  std::optional<PartitionBounds> part_bounds_;  // of the part that is being joined
  bool truncated_ = false;                      // in the last join
  std::size_t most_pipelines_ = 0;              // with one first layer of the next stage
  double open_ = infinite;
  std::int64_t work_ = 0;  // besides the dynamic programs
};

/// The problem in which nothing takes time, and a stage has so many bytes: of assignments that fit, that of the least
/// memory comes first.
constexpr Problem without_seconds(Problem p, std::int64_t budget) {
  p.budget = budget;
  p.objective.kind_seconds = 0;
  for (LayerType& type : p.types)
    for (Choice& c : type) c.forward = c.backward = c.weights = c.synchronise = c.update = c.link = 0;
  for (Moves& moves : p.moves)
    for (auto* all : {&moves.relayout, &moves.input, &moves.output, &moves.input_across, &moves.output_across})
      std::fill(all->begin(), all->end(), 0.0);
  for (Problem& own : p.on_devices) own = without_seconds(std::move(own), budget);
  return p;
}

/// The assignment that needs the least memory, if that is less than `upper` bytes; the budget is ignored.
/// @param work  grows by the labels made
template <class Executor = Team>
std::optional<Solution> smallest(const Problem& problem, std::int64_t upper = unlimited, const Limits& limits = {},
                                 Executor* executor = nullptr, std::int64_t* work = nullptr) {
  std::optional<Solution> best;
  // What is hardly feasible is decided soonest: look a little above the bound, then further.
  const std::int64_t least = Solver(problem, limits, executor, 1).least_peak();
  for (std::int64_t more = least / 256 + 1; !best && least < upper && !limits.interrupted(); more *= 4) {
    const bool all = more > (upper - 1 - least) / 4;
    for (std::int64_t budget = all ? upper - 1 : least + more; budget >= least; budget = best->cost.peak - 1) {
      const Problem bytes = without_seconds(problem, budget);
      Solver<Executor> solver(bytes, limits, executor, 1);
      const std::optional<Solution> found = solver.fastest();
      if (work != nullptr) *work += solver.work();
      if (!found) break;
      best = evaluated(problem, found->plan);
    }
    if (all) break;
  }
  return best;
}

}  // namespace galvatron::search
