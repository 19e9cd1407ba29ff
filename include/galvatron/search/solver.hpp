// Solver: the exact joint search of one problem: stage partition, strategies of all layers, re-layouts.
//
// Stages meet only in sums and maxima of their seconds, so each is solved alone (StageTable) and a second dynamic
// program over (stage, first layer) puts them together; its labels are (sum, slowest, once). Everything is pruned
// against the best plan known so far. Middle stages with the same micro-batches in flight and the same layers ahead of
// them share a table.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/cuts.hpp>
#include <galvatron/search/joints.hpp>
#include <galvatron/search/one_stage.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/routes.hpp>
#include <galvatron/search/stage_search.hpp>
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
        weighings_(problem, bounds_, workspace_classes),
        cuts_(problem, weighings_, bounds_) {
    find_runs();
  }

  /// No assignment is faster. It is not worth being larger than `enough`.
  [[nodiscard]] double bound(double enough = infinite) const {
    if (!bounds_.may_fit()) return infinite;
    if (problem_.stages() > 1) return cuts_.bound(enough);
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
    for (const Tie& tie : ties_of(problem_, bounds_, false)) {
      if (tie.bound >= upper) break;
      thinned_ = false;
      auto found = join(tie, upper, problem_.budget);
      if (thinned_) open_ = std::min(open_, std::max(tie.bound, tie_cuts_->least()));
      if (!found) continue;
      Solution solution{std::move(*found), {}};
      solution.cost = evaluate(problem_, solution.plan);
      if (solution.cost.seconds >= (best ? best->cost.seconds : wanted)) continue;
      upper = std::min(upper, solution.cost.seconds * (1 + 1e-9));
      best = std::move(solution);
    }
    return best;
  }

  /// Whether the last answer is exact: neither labels were thinned nor the work limited.
  [[nodiscard]] bool proven() const { return open_ == infinite; }
  /// No assignment that the last search may have missed is faster.
  [[nodiscard]] double open() const { return open_; }
  /// Labels made so far.
  [[nodiscard]] std::int64_t work() const { return work_; }

  /// The assignment that needs the least memory, if that is less than `upper` bytes; the budget is ignored.
  [[nodiscard]] std::optional<Solution> smallest(std::int64_t upper = std::numeric_limits<std::int64_t>::max()) {
    limits_.memory_only = true;
    open_ = infinite;
    forget_tables();
    std::optional<Solution> best;
    for (const Tie& tie : ties_of(problem_, bounds_, true)) {
      auto found = join(tie, 0, upper - 1);
      if (!found) continue;
      Solution solution{std::move(*found), {}};
      solution.cost = evaluate(problem_, solution.plan);
      upper = solution.cost.peak;
      best = std::move(solution);
    }
    forget_tables();
    return best;
  }

 private:
  using Table = StageTable<Executor>;
  using Tables = std::list<Table>;  // joints point to tables

  using Joint = search::Joint<Table>;
  using State = std::pair<int, std::vector<Joint>>;  // first layer of the next stage

  void find_runs() {
    const int end = problem_.count() - problem_.trailing;
    run_.assign(static_cast<std::size_t>(problem_.count()), 1);
    for (int a = end - 1; a-- > 0;) {
      const auto at = static_cast<std::size_t>(a);
      if (problem_.layers[at] == problem_.layers[at + 1]) run_[at] = run_[at + 1] + 1;
    }
  }

  // Middle stages inside one run of equal layers may use one table, whatever layer they begin with.
  const Table& middle(StageRole role, std::int64_t budget) {
    const int type = problem_.layers[static_cast<std::size_t>(role.begin)];
    const int earliest = cuts_.earliest(role.stage);
    const int longest = cuts_.latest(role.stage + 1) - earliest;
    const bool homogeneous = problem_.chunks == 1 && run_[static_cast<std::size_t>(earliest)] >= longest;
    const int start = homogeneous ? -1 - type : role.begin;
    const Slots key = problem_.chunks == 1 ? problem_.slots_of(role.stage, 0) : Slots{-role.stage};
    if (homogeneous) {
      role.begin = earliest;
      role.shortest = std::max(1, cuts_.earliest(role.stage + 1) - cuts_.latest(role.stage));
      role.longest = longest;
    }
    Middle* found = nullptr;
    for (Middle& made : middle_)
      if (made.slots == key && made.start == start) found = &made;
    if (found != nullptr) {
      if (found->shortest <= role.shortest && found->longest >= role.longest) return *found->table;
      role.shortest = std::min(role.shortest, found->shortest);
      role.longest = std::max(role.longest, found->longest);
      role.longest = std::min(role.longest, problem_.count() - problem_.trailing - role.begin);
    }
    const auto table = make_table(role, cuts_, budget, tables_);
    if (found == nullptr) {
      middle_.push_back({key, start, role.shortest, role.longest, table});
    } else {
      retired_.splice(retired_.end(), tables_, found->table);
      *found = {key, start, role.shortest, role.longest, table};
    }
    return *table;
  }

  void forget_tables() {
    middle_.clear();
    tables_.clear();
  }

  // What a table or the joins of a stage may do of the work that is left: what others leave over serves those after.
  [[nodiscard]] std::int64_t share_of_work(int stage) const {
    if (limits_.work == std::numeric_limits<std::int64_t>::max()) return limits_.work;
    return (limits_.work - std::min(limits_.work, work_)) / (problem_.stages() - stage + 1) * 2;
  }

  typename Tables::iterator make_table(const StageRole& role, const Cuts& cuts, std::int64_t budget, Tables& in) {
    Limits limits = limits_;
    limits.work = share_of_work(role.stage);
    std::optional<Routes> routes;
    if (limits.seeks_proof() && problem_.chunks == 1) {
      routes.emplace(problem_, role, weighings_.share(weighings_.size() - 1));
      routes->bound_layers();
      if (routes->seconds() == infinite) routes.reset();
    }
    const Table& table =
        in.emplace_back(problem_, bounds_, weighings_, role, limits, budget,
                        limits.memory_only ? StageLimit{} : cuts.stage_limit(), executor_, routes ? &*routes : nullptr);
    work_ += table.work();
    return std::prev(in.end());
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

  [[nodiscard]] Start start_of(int stage, const State& before, std::int32_t parent, int tag, std::int64_t budget,
                               Tables& ends) {
    StageRole role;
    role.stage = stage;
    role.begin = before.first;
    role.first = stage == 0;
    role.last = stage + 1 == problem_.stages();
    role.tag = tag;
    const auto set_lengths = [&](const Cuts& cuts) {
      role.shortest = std::max(cuts.earliest(stage + 1) - role.begin, 1 + (stage == 0 ? problem_.leading : 0));
      role.longest = cuts.latest(stage + 1) - role.begin;
    };
    set_lengths(*tie_cuts_);
    Start out{role.begin, &before.second, parent, nullptr, role.shortest, role.longest};
    if (role.first || role.last) {
      out.table = &*make_table(role, *tie_cuts_, budget, ends);
    } else {
      set_lengths(cuts_);  // the table serves other ends as well
      out.table = &middle(role, budget);
    }
    thinned_ |= out.table->thinned();
    out.longest = std::min(out.longest, out.table->longest());
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
  void limit_joints(int stage, std::int32_t before, std::size_t pairs) {
    most_joints_ = limits_.labels;
    if (limits_.work == std::numeric_limits<std::int64_t>::max() || before == 0 || pairs == 0) return;
    pairs = pairs / pairs_of_a_label + 1;
    work_ += static_cast<std::int64_t>(pairs);
    const double good = static_cast<double>(before) * static_cast<double>(share_of_work(stage + 1)) /
                        static_cast<double>(pairs) /
                        (tie_cuts_->latest(stage + 1) - tie_cuts_->earliest(stage + 1) + 1);
    most_joints_ = std::min(most_joints_, static_cast<std::size_t>(std::max(good, least_joints)));
  }

  std::optional<Assignment> join(const Tie& tie, double upper, std::int64_t budget) {
    retired_.clear();
    const int stages = problem_.stages();
    if (problem_.movable() < stages) return std::nullopt;
    if (!cuts_.narrow(limits_.memory_only ? infinite : upper)) return std::nullopt;
    tie_cuts_.emplace(cuts_);
    if (!limits_.memory_only && !tie_cuts_->narrow(upper, tie)) return std::nullopt;
    std::vector<std::vector<State>> after(static_cast<std::size_t>(stages));
    Tables ends;
    const std::vector<State> nothing{{0, {Joint{}}}};
    for (int stage = 0; stage < stages; ++stage) {
      std::vector<Start> starts;
      std::int32_t parents = 0;
      std::size_t pairs = 0;  // of a way so far and a stage
      for (const State& before : stage == 0 ? nothing : after[static_cast<std::size_t>(stage) - 1]) {
        starts.push_back(start_of(stage, before, parents, tie.tag, budget, ends));
        parents += static_cast<std::int32_t>(before.second.size());
        for (int length = starts.back().shortest; length <= starts.back().longest; ++length)
          pairs += before.second.size() * starts.back().table->options(length).size();
      }
      limit_joints(stage, parents, pairs);
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

  struct Middle {
    Slots slots;    // with chunks: minus the stage
    int start = 0;  // first layer, or -1 - type for any start in a run of equal layers
    int shortest = 0;
    int longest = 0;
    typename Tables::iterator table;  // in tables_
  };

  const Problem& problem_;
  Limits limits_;
  Executor* executor_;
  Bounds bounds_;
  Weighings weighings_;
  Cuts cuts_;                     // whatever the ends are
  std::optional<Cuts> tie_cuts_;  // with those that are being joined
  std::vector<int> run_;          // equal layers from each one on, the trailing ones left out
  bool thinned_ = false;          // in the last join
  std::size_t most_joints_ = 0;   // with one first layer of the next stage
  double open_ = infinite;
  std::int64_t work_ = 0;
  std::vector<Middle> middle_;
  Tables tables_;   // of middle_
  Tables retired_;  // that were, in this join
};

}  // namespace galvatron::search
