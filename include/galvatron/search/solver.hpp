// Solver: the exact joint search of one problem: stage partition, strategies of all layers, re-layouts.
//
// Stages meet only in sums and maxima of their seconds, so each is solved alone (StageTable) and a second dynamic
// program over (stage, first layer) puts them together; its labels are (sum, slowest, once). Everything is pruned
// against the best plan known so far.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/cuts.hpp>
#include <galvatron/search/joints.hpp>
#include <galvatron/search/memory_bounds.hpp>
#include <galvatron/search/one_stage.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/stage_tables.hpp>
#include <galvatron/search/ties.hpp>
#include <galvatron/search/weighings.hpp>
#include <galvatron/search/workspace_bound.hpp>

namespace galvatron::search {

/// @tparam Executor  runs pieces of the work: see Team
template <class Executor = Team>
class Solver {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  /// @param executor           shares the work on the problem; the answers are the same without one
  /// @param workspace_classes  of the bounds of stages: see Segments
  explicit Solver(const Problem& problem, Limits limits = {}, Executor* executor = nullptr, int workspace_classes = 1)
      : problem_(problem),
        limits_(limits),
        executor_(executor),
        bounds_(problem),
        weighings_(problem, bounds_, workspace_classes, executor),
        cuts_(problem, weighings_, bounds_),
        tables_(problem, bounds_, weighings_, cuts_, executor) {}
  Solver(const Solver&) = delete;  // its parts refer to each other
  Solver& operator=(const Solver&) = delete;

  /// No assignment is faster. It is not worth being larger than `enough`.
  [[nodiscard]] double bound(double enough = infinite) const {
    if (!bounds_.may_fit()) return infinite;
    if (problem_.stages() > 1) return cuts_.bound(enough, executor_);
    const std::vector<Tie> ties = ties_of(problem_, bounds_, false);
    const WorkspaceBound least(problem_, bounds_.once_share(), ties, enough / bounds_.single_stage(1));
    return std::max(bounds_.seconds(), bounds_.single_stage(least.seconds()));
  }

  /// The fastest assignment with less than `upper` seconds whose stages all fit the budget; nothing when there is none.
  [[nodiscard]] std::optional<Solution> fastest(double upper = infinite) {
    limits_.memory_only = false;
    std::optional<Solution> best;
    open_ = infinite;
    if (!bounds_.may_fit()) return best;
    if (problem_.stages() == 1) {
      OneStage search(problem_, bounds_, weighings_, limits_, executor_);
      best = search.fastest(upper);
      open_ = search.open();
      work_ += search.work();
      return best;
    }
    const double wanted = upper;
    upper *= 1 + 1e-9;  // room for rounding in the bounds
    if (problem_.movable() < problem_.stages() || !cuts_.narrow(upper)) return best;
    const std::vector<Tie> ties = ties_of(problem_, bounds_, false);
    std::vector<std::optional<Cuts>> narrowed;
    for (std::size_t i = 0; i < ties.size() && ties[i].bound < upper; ++i) {
      if (i % Cuts::group == 0) narrowed = cuts_.narrowed(ties, i, upper, executor_);
      const Tie& tie = ties[i];
      if (limits_.interrupted()) {
        open_ = std::min(open_, tie.bound);
        break;
      }
      std::optional<Cuts>& cuts = narrowed[i % Cuts::group];
      if (!cuts || (cuts->limit() > upper && !cuts->narrow(upper, tie))) continue;
      tie_cuts_.emplace(std::move(*cuts));
      thinned_ = false;
      auto found = join(tie, upper, problem_.budget);
      if (thinned_) open_ = std::min(open_, std::max(tie.bound, tie_cuts_->least()));
      if (!found) continue;
      Solution solution{std::move(*found), {}};
      solution.cost = evaluate(problem_, solution.plan);
      if (solution.cost.seconds >= (best ? best->cost.seconds : wanted)) continue;
      upper = std::min(upper, solution.cost.seconds * (1 + 1e-9));
      best = std::move(solution);
      if (!cuts_.narrow(upper)) break;
    }
    return best;
  }

  /// Whether the last answer is exact: neither labels were thinned nor the work limited.
  [[nodiscard]] bool proven() const { return open_ == infinite; }
  /// No assignment that the last search may have missed is faster.
  [[nodiscard]] double open() const { return open_; }
  /// Labels made so far.
  [[nodiscard]] std::int64_t work() const { return work_ + tables_.work(); }

  /// The assignment that needs the least memory, if that is less than `upper` bytes; the budget is ignored.
  [[nodiscard]] std::optional<Solution> smallest(std::int64_t upper = std::numeric_limits<std::int64_t>::max()) {
    limits_.memory_only = true;
    open_ = infinite;
    std::optional<Solution> best;
    if (problem_.movable() < problem_.stages()) return best;
    const std::vector<TieBytes> ties = tie_bytes();
    if (ties.empty()) return best;
    // What is hardly feasible is decided soonest: look a little above the bound, then further.
    const std::int64_t least = ties.front().least;
    for (std::int64_t more = least / 256 + 1; !best && least < upper; more *= 4) {
      const bool all = more > (upper - 1 - least) / 4;
      std::int64_t budget = all ? upper - 1 : least + more;
      tables_.forget();  // they are of the smaller budget
      if (const auto windows = bounds_.memory().windows(budget)) cuts_.narrow(*windows);
      tie_cuts_.emplace(cuts_);
      for (const TieBytes& tie : ties) {
        const auto windows = tie.bounds.windows(budget);
        if (!windows) break;
        tie_cuts_->narrow(*windows);
        auto found = join(tie.tie, 0, budget);
        if (!found) continue;
        Solution solution{std::move(*found), {}};
        solution.cost = evaluate(problem_, solution.plan);
        budget = solution.cost.peak - 1;
        best = std::move(solution);
      }
      if (all || limits_.interrupted()) break;
    }
    tables_.forget();
    return best;
  }

 private:
  using Table = StageTable<Executor>;
  using Joint = search::Joint<Table>;
  using State = std::pair<int, std::vector<Joint>>;  // first layer of the next stage

  // A choice of both ends and what memory any assignment with them needs.
  struct TieBytes {
    Tie tie;
    MemoryBounds bounds;
    std::int64_t least = 0;
  };
  // The least first.
  [[nodiscard]] std::vector<TieBytes> tie_bytes() const {
    std::vector<TieBytes> out;
    for (const Tie& tie : ties_of(problem_, bounds_, true)) {
      const MemoryBounds& all = bounds_.memory();
      out.push_back({tie, tie.tag < 0 ? all : all.with_ends(tie.first, tie.last), 0});
      out.back().least = out.back().bounds.least_peak();
    }
    std::stable_sort(out.begin(), out.end(), [](const TieBytes& a, const TieBytes& b) { return a.least < b.least; });
    return out;
  }

  [[nodiscard]] std::int64_t work_left() const {
    if (limits_.work == std::numeric_limits<std::int64_t>::max()) return limits_.work;
    return limits_.work - std::min(limits_.work, work());
  }

  [[nodiscard]] bool hopeless(const Joint& joint, int stage, int next, double upper) const {
    const JointFigures& f = joint.figures;
    return bounds_.with_stages(stage + 1, next, joint.bound, f.sum, f.slowest, f.once) >= upper ||
           tie_cuts_->with_stages(stage + 1, next, f.sum, f.slowest, f.once) >= upper;
  }

  // Returns whether it thinned them.
  [[nodiscard]] bool keep_best(std::vector<Joint>& joints) const {
    if (joints.empty()) return false;
    if (limits_.memory_only) {
      joints.assign(1, *std::min_element(joints.begin(), joints.end(),
                                         [](const Joint& a, const Joint& b) { return a.peak < b.peak; }));
      return false;
    }
    keep_unbeaten(joints);
    return thin(joints, most_joints_,
                [&](const Joint& j) { return problem_.objective(j.figures.sum, j.figures.slowest, j.figures.once); });
  }

  // Ways to have filled the stages before one, and the good stages that go on from there.
  struct Start {
    int begin = 0;  // first layer of the stage
    const std::vector<Joint>* joints = nullptr;
    std::int32_t parent = 0;  // number of the first of them
    const Table* table = nullptr;
    int shortest = 1;  // layers of the stage
    int longest = 1;
  };

  // How a stage may go on from what there is before it.
  [[nodiscard]] std::vector<Start> starts_of(int stage, const std::vector<State>& before, int tag,
                                             std::int64_t budget) {
    std::vector<int> begins;
    for (const State& state : before) begins.push_back(state.first);
    Limits limits = limits_;
    limits.work = work_left();
    const std::vector<const Table*> tables = tables_.of_stage(stage, begins, tag, *tie_cuts_, limits, budget);
    std::vector<Start> out;
    std::int32_t parents = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const StageRole role = tables_.role_of(stage, begins[i], tag, *tie_cuts_);
      out.push_back({role.begin, &before[i].second, parents, tables[i], role.shortest,
                     std::min(role.longest, tables[i]->longest())});
      parents += static_cast<std::int32_t>(before[i].second.size());
      thinned_ |= tables[i]->thinned();
    }
    return out;
  }

  // The ways to have filled the stages up to this one, so that the next begins with layer `next`.
  void join_before(int stage, int next, const std::vector<Start>& starts, double upper, std::int64_t budget,
                   std::vector<Joint>& out) const {
    RecentBeaters beaters;
    // Whether nothing good begins with this. What is less in every figure is good if anything is.
    const auto superfluous = [&](const Joint& joint) {
      if (joint.peak > budget) return true;  // the table may be from when the budget was larger
      return !limits_.memory_only && (beaters.beat(joint.figures) || hopeless(joint, stage, next, upper));
    };
    for (const Start& start : starts) {
      const int length = next - start.begin;
      if (length < start.shortest || length > start.longest) continue;
      const std::vector<StageOption>& options = start.table->options(length);
      const StageOption least = least_of(options);
      const bool ascending = std::is_sorted(options.begin(), options.end(),
                                            [](const StageOption& a, const StageOption& b) { return a.ramp < b.ramp; });
      std::int32_t parent = start.parent - 1;
      for (const Joint& before : *start.joints) {
        ++parent;
        const auto with = [&](const StageOption& option) -> Joint {
          return {{before.figures.sum + option.ramp, std::max(before.figures.slowest, option.time),
                   std::max(before.figures.once, option.once)},
                  before.bound + bounds_.finished(stage, option.time, option.ramp, option.once),
                  std::max(before.peak, option.peak),
                  parent,
                  length,
                  &option,
                  start.table};
        };
        if (const Joint best = with(least); options.empty() || superfluous(best)) continue;
        for (const StageOption& option : options) {
          if (const Joint joint = with(option); !superfluous(joint)) {
            beaters.add(joint.figures);
            out.push_back(joint);
          }
          // Those after it are slower, and what they spare once an iteration is hidden behind a stage before.
          if (ascending && option.once <= before.figures.once) break;
        }
      }
    }
  }

  // Keeps as many of a stage as the next one can join with its share of the work, if it joins as they did here.
  void limit_joints(int stage, std::size_t before, std::size_t pairs) {
    most_joints_ = limits_.labels;
    if (limits_.work == std::numeric_limits<std::int64_t>::max() || before == 0 || pairs == 0) return;
    pairs = pairs / pairs_of_a_label + 1;
    work_ += static_cast<std::int64_t>(pairs);
    const double good = static_cast<double>(before) *
                        static_cast<double>(Limits::share_of_work(work_left(), problem_.stages() - stage - 1)) /
                        static_cast<double>(pairs) /
                        (tie_cuts_->latest(stage + 1) - tie_cuts_->earliest(stage + 1) + 1);
    most_joints_ = std::min(most_joints_, static_cast<std::size_t>(std::max(good, least_joints)));
  }

  // The fastest assignment with these ends, and the cuts of tie_cuts_.
  std::optional<Assignment> join(const Tie& tie, double upper, std::int64_t budget) {
    tables_.begin_join();
    const int stages = problem_.stages();
    std::vector<std::vector<State>> after(static_cast<std::size_t>(stages));
    const std::vector<State> nothing{{0, {Joint{}}}};
    for (int stage = 0; stage < stages; ++stage) {
      const std::vector<Start> starts =
          starts_of(stage, stage == 0 ? nothing : after[static_cast<std::size_t>(stage) - 1], tie.tag, budget);
      if (starts.empty()) return std::nullopt;
      std::size_t ways = 0;   // so far
      std::size_t pairs = 0;  // of a way so far and a stage
      for (const Start& start : starts) {
        ways += start.joints->size();
        for (int length = start.shortest; length <= start.longest; ++length)
          pairs += start.joints->size() * start.table->options(length).size();
      }
      limit_joints(stage, ways, pairs);
      const int first = tie_cuts_->earliest(stage + 1);
      std::vector<std::vector<Joint>> made(static_cast<std::size_t>(tie_cuts_->latest(stage + 1) - first) + 1);
      std::vector<char> thinned(made.size(), 0);
      const auto piece = [&](std::size_t i) {
        join_before(stage, first + static_cast<int>(i), starts, upper, budget, made[i]);
        thinned[i] = keep_best(made[i]) ? 1 : 0;
      };
      share(executor_, pairs, made.size(), piece);
      for (std::size_t i = 0; i < made.size(); ++i) {
        thinned_ |= thinned[i] != 0;
        if (!made[i].empty())
          after[static_cast<std::size_t>(stage)].emplace_back(first + static_cast<int>(i), std::move(made[i]));
      }
    }

    const Joint* best = nullptr;
    const auto score = [&](const Joint& j) {
      if (limits_.memory_only) return static_cast<double>(j.peak);
      return problem_.objective(j.figures.sum, j.figures.slowest, j.figures.once);
    };
    for (const auto& [next, joints] : after.back())
      for (const Joint& joint : joints)
        if (best == nullptr || score(joint) < score(*best)) best = &joint;
    if (best == nullptr) return std::nullopt;
    return trace(*best, after);
  }

  [[nodiscard]] Assignment trace(const Joint& last, const std::vector<std::vector<State>>& after) const {
    std::vector<std::vector<int>> parts;
    const Joint* joint = &last;
    for (std::size_t stage = after.size(); stage-- > 0;) {
      parts.push_back(joint->table->choices(joint->length, *joint->option));
      if (stage == 0) break;
      std::int32_t at = joint->parent;
      for (const auto& [begin, joints] : after[stage - 1]) {
        if (at < static_cast<std::int32_t>(joints.size())) {
          joint = &joints[static_cast<std::size_t>(at)];
          break;
        }
        at -= static_cast<std::int32_t>(joints.size());
      }
    }
    Assignment plan;
    for (std::size_t i = parts.size(); i-- > 0;) {
      plan.first.push_back(static_cast<int>(plan.choice.size()));
      plan.choice.insert(plan.choice.end(), parts[i].begin(), parts[i].end());
    }
    plan.first.push_back(static_cast<int>(plan.choice.size()));
    return plan;
  }

  static constexpr double least_joints = 8;            // to begin with one layer, whatever the limit of work
  static constexpr std::size_t pairs_of_a_label = 16;  // most pairs are beaten at once

  const Problem& problem_;
  Limits limits_;
  Executor* executor_;
  Bounds bounds_;
  Weighings weighings_;
  Cuts cuts_;  // whatever the ends are
  StageTables<Executor> tables_;
  std::optional<Cuts> tie_cuts_;  // with those that are being joined
  bool thinned_ = false;          // in the last join
  std::size_t most_joints_ = 0;   // with one first layer of the next stage
  double open_ = infinite;
  std::int64_t work_ = 0;  // besides the tables
};

}  // namespace galvatron::search
