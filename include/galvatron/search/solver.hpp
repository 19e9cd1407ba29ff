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
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/cuts.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>
#include <galvatron/search/stage_search.hpp>
#include <galvatron/search/workspace_bound.hpp>

namespace galvatron::search {

struct Solution {
  Assignment plan;
  Evaluation cost;
};

class Solver {
 public:
  static constexpr double infinite = std::numeric_limits<double>::infinity();

  /// @param team  shares the work on the problem; the answers are the same without one
  explicit Solver(const Problem& problem, Limits limits = {}, Team* team = nullptr)
      : problem_(problem),
        limits_(limits),
        team_(team),
        bounds_(problem),
        segments_(problem, problem.stages() == 1 ? bounds_.once_share() : 0.0),
        loads_(problem, Cuts::share(problem)),
        cuts_(problem, segments_, loads_, bounds_) {
    find_runs();
  }

  /// No assignment is faster.
  [[nodiscard]] double bound() const {
    if (!bounds_.may_fit()) return infinite;
    if (problem_.stages() == 1)
      return std::max(bounds_.seconds(), bounds_.single_stage(least_with_workspace(problem_, bounds_.once_share())));
    return std::max(bounds_.seconds(), cuts_.bound());
  }

  /// The fastest assignment with less than `upper` seconds whose stages all fit the budget; nothing when there is none.
  [[nodiscard]] std::optional<Solution> fastest(double upper = infinite) {
    limits_.memory_only = false;
    std::optional<Solution> best;
    if (!bounds_.may_fit()) return best;
    proven_ = true;
    const double wanted = upper;
    upper *= 1 + 1e-9;  // room for rounding in the bounds
    for (const Tie& tie : ties()) {
      if (tie.bound >= upper) break;
      auto found = join(tie.tag, upper, problem_.budget);
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
  [[nodiscard]] bool proven() const { return proven_; }
  /// Labels made so far.
  [[nodiscard]] std::int64_t work() const { return work_; }

  /// The assignment that needs the least memory, if that is less than `upper` bytes; the budget is ignored.
  [[nodiscard]] std::optional<Solution> smallest(std::int64_t upper = std::numeric_limits<std::int64_t>::max()) {
    limits_.memory_only = true;
    proven_ = true;
    middle_.clear();
    std::optional<Solution> best;
    for (const Tie& tie : ties()) {
      auto found = join(tie.tag, 0, upper - 1);
      if (!found) continue;
      Solution solution{std::move(*found), {}};
      solution.cost = evaluate(problem_, solution.plan);
      upper = solution.cost.peak;
      best = std::move(solution);
    }
    middle_.clear();
    return best;
  }

 private:
  // A way to have filled the stages so far.
  struct Joint {
    double sum = 0;
    double slowest = 0;
    double once = 0;
    double bound = 0;  // what the stages so far contribute to the bound
    std::int64_t peak = 0;
    std::int32_t parent = -1;  // in the states of the stage before
    std::int32_t length = 0;   // of the last stage
    StageOption option;
    const StageTable* table = nullptr;

    friend bool operator<(const Joint& a, const Joint& b) {
      if (a.sum != b.sum) return a.sum < b.sum;
      if (a.slowest != b.slowest) return a.slowest < b.slowest;
      if (a.once != b.once) return a.once < b.once;
      if (a.parent != b.parent) return a.parent < b.parent;
      return a.length != b.length ? a.length < b.length : a.option.label < b.option.label;
    }
  };
  using State = std::pair<int, std::vector<Joint>>;  // first layer of the next stage

  // A choice of both tied ends.
  struct Tie {
    int tag = -1;
    Choice first;
    Choice last;
    double bound = 0;  // no assignment with these ends is faster

    friend bool operator<(const Tie& a, const Tie& b) { return a.bound != b.bound ? a.bound < b.bound : a.tag < b.tag; }
  };

  // The choices of the tied ends, best bound first; one "any" without a tie.
  [[nodiscard]] std::vector<Tie> ties() const {
    if (!problem_.tied || problem_.count() < 2) return {Tie{}};
    const auto ends = [this](int layer) -> const LayerType& {
      return problem_.types[static_cast<std::size_t>(problem_.layers[static_cast<std::size_t>(layer)])];
    };
    const int last = problem_.count() - 1;
    std::vector<Tie> out;
    for (const Choice& a : ends(0))
      for (const Choice& b : ends(last)) {
        if (a.tag != b.tag) continue;
        out.push_back({a.tag, a, b, bounds_.with_ends(a, b)});
      }
    std::sort(out.begin(), out.end());
    std::vector<Tie> kept;
    for (const Tie& tie : out)
      if (std::none_of(kept.begin(), kept.end(), [&](const Tie& better) {
            const Slots last_slots = problem_.slots_of(problem_.stages() - 1, problem_.chunks - 1);
            return replaces(better.first, tie.first, problem_.objective, problem_.slots_of(0, 0),
                            limits_.memory_only) &&
                   replaces(better.last, tie.last, problem_.objective, last_slots, limits_.memory_only);
          }))
        kept.push_back(tie);
    return kept;
  }

  void find_runs() {
    const int end = problem_.count() - problem_.trailing;
    run_.assign(static_cast<std::size_t>(problem_.count()), 1);
    for (int a = end - 1; a-- > 0;) {
      const auto at = static_cast<std::size_t>(a);
      if (problem_.layers[at] == problem_.layers[at + 1]) run_[at] = run_[at + 1] + 1;
    }
  }

  // Middle stages inside one run of equal layers may use one table, whatever layer they begin with.
  const StageTable& middle(StageRole role, std::int64_t budget) {
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
    auto table = make_table(role, budget);
    const StageTable& out = *table;
    if (found == nullptr) {
      middle_.push_back({key, start, role.shortest, role.longest, std::move(table)});
    } else {
      retired_.push_back(std::move(found->table));
      *found = {key, start, role.shortest, role.longest, std::move(table)};
    }
    return out;
  }

  std::unique_ptr<StageTable> make_table(const StageRole& role, std::int64_t budget) {
    Limits limits = limits_;
    limits.work -= std::min(limits.work, work_);
    auto table = std::make_unique<StageTable>(problem_, bounds_, segments_, loads_, role, limits, budget,
                                              limits.memory_only ? StageLimit{} : cuts_.stage_limit());
    work_ += table->work();
    return table;
  }

  [[nodiscard]] bool hopeless(const Joint& joint, int stage, int next, double upper) const {
    if (limits_.memory_only) return false;
    return bounds_.with_stages(stage + 1, next, joint.bound, joint.sum, joint.slowest, joint.once) >= upper ||
           cuts_.with_stages(stage + 1, next, joint.sum, joint.slowest, joint.once) >= upper;
  }

  void keep_best_joints(std::vector<Joint>& joints) {
    if (limits_.memory_only) {
      Joint least = joints.front();
      for (const Joint& joint : joints)
        if (joint.peak < least.peak) least = joint;
      joints.assign(1, least);
      return;
    }
    std::sort(joints.begin(), joints.end());
    std::vector<Joint> out;
    for (const Joint& joint : joints) {
      const bool beaten = std::any_of(out.begin(), out.end(), [&](const Joint& other) {
        return other.slowest <= joint.slowest && other.once <= joint.once;
      });
      if (!beaten) out.push_back(joint);
    }
    if (out.size() > limits_.labels) {
      proven_ = false;
      const auto score = [&](const Joint& j) { return problem_.objective(j.sum, j.slowest, j.once); };
      std::vector<double> scores;
      for (const Joint& j : out) scores.push_back(score(j));
      std::sort(scores.begin(), scores.end());
      const double most = scores[limits_.labels - 1];
      std::erase_if(out, [&](const Joint& j) { return score(j) > most; });
      if (out.size() > limits_.labels) out.resize(limits_.labels);
    }
    joints = std::move(out);
  }

  std::optional<Assignment> join(int tag, double upper, std::int64_t budget) {
    retired_.clear();
    const int stages = problem_.stages();
    const int count = problem_.count();
    if (problem_.movable() < stages) return std::nullopt;
    if (!cuts_.narrow(limits_.memory_only ? infinite : upper)) return std::nullopt;
    std::vector<std::vector<State>> after(static_cast<std::size_t>(stages));
    std::vector<std::unique_ptr<StageTable>> ends;
    for (int stage = 0; stage < stages; ++stage) {
      const bool last = stage + 1 == stages;
      std::vector<std::vector<Joint>> made(static_cast<std::size_t>(count) + 1);  // by the next stage's first layer
      const std::vector<State> start{{0, {Joint{}}}};
      const std::vector<State>& before = stage == 0 ? start : after[static_cast<std::size_t>(stage) - 1];
      std::int32_t parent = 0;
      for (const auto& [begin, joints] : before) {
        StageRole role;
        role.stage = stage;
        role.begin = begin;
        role.first = stage == 0;
        role.last = last;
        role.tag = tag;
        role.shortest = std::max(cuts_.earliest(stage + 1) - begin, 1 + (stage == 0 ? problem_.leading : 0));
        role.longest = cuts_.latest(stage + 1) - begin;
        const int shortest = role.shortest;
        const int longest = role.longest;
        const StageTable* table = nullptr;
        if (role.first || role.last) {
          ends.push_back(make_table(role, budget));
          table = ends.back().get();
        } else {
          table = &middle(role, budget);
        }
        proven_ = proven_ && !table->thinned();
        for (std::size_t j = 0; j < joints.size(); ++j, ++parent)
          for (int length = shortest; length <= std::min(longest, table->longest()); ++length)
            for (const StageOption& option : table->options(length)) {
              Joint joint = joints[j];
              joint.sum += option.ramp;
              joint.slowest = std::max(joint.slowest, option.time);
              joint.once = std::max(joint.once, option.once);
              joint.bound += bounds_.finished(stage, option.time, option.ramp, option.once);
              joint.peak = std::max(joint.peak, option.peak);
              if (joint.peak > budget) continue;  // the table may be from when the budget was larger
              joint.parent = parent;
              joint.length = length;
              joint.option = option;
              joint.table = table;
              // With one stage the option carries the objective itself.
              if (stages > 1 && hopeless(joint, stage, begin + length, upper)) continue;
              made[static_cast<std::size_t>(begin + length)].push_back(joint);
            }
      }
      for (std::size_t next = 0; next < made.size(); ++next) {
        if (made[next].empty()) continue;
        keep_best_joints(made[next]);
        after[static_cast<std::size_t>(stage)].emplace_back(static_cast<int>(next), std::move(made[next]));
      }
    }

    const Joint* best = nullptr;
    const auto score = [&](const Joint& j) {
      if (limits_.memory_only) return static_cast<double>(j.peak);
      return stages == 1 ? j.sum : problem_.objective(j.sum, j.slowest, j.once);
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
      parts.push_back(joint->table->choices(joint->length, joint->option));
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

  struct Middle {
    Slots slots;    // with chunks: minus the stage
    int start = 0;  // first layer, or -1 - type for any start in a run of equal layers
    int shortest = 0;
    int longest = 0;
    std::unique_ptr<StageTable> table;
  };

  const Problem& problem_;
  Limits limits_;
  Team* team_;
  Bounds bounds_;
  Segments segments_;
  Segments loads_;
  Cuts cuts_;
  std::vector<int> run_;  // equal layers from each one on, the trailing ones left out
  bool proven_ = true;
  std::int64_t work_ = 0;
  std::vector<Middle> middle_;
  std::vector<std::unique_ptr<StageTable>> retired_;
};

}  // namespace galvatron::search
