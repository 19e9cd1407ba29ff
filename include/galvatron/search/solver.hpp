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
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <galvatron/search/problem.hpp>
#include <galvatron/search/stage_search.hpp>

namespace galvatron::search {

struct Solution {
  Assignment plan;
  Evaluation cost;
  bool proven = true;  ///< nothing was thinned: no assignment of this problem is better
};

class Solver {
 public:
  explicit Solver(const Problem& problem, Limits limits = {}) : problem_(problem), limits_(limits), bounds_(problem) {
    find_runs();
  }

  /// The fastest assignment with less than `upper` seconds whose stages all fit the budget; nothing when there is none.
  [[nodiscard]] std::optional<Solution> fastest(double upper = std::numeric_limits<double>::infinity()) {
    limits_.memory_only = false;
    std::optional<Solution> best;
    bool thinned = false;
    for (const Tie& tie : ties()) {
      if (tie.bound >= upper) break;
      auto found = join(tie.tag, upper, problem_.budget);
      thinned |= thinned_;
      if (!found) continue;
      Solution solution{std::move(*found), {}, true};
      solution.cost = evaluate(problem_, solution.plan);
      if (best && best->cost.seconds <= solution.cost.seconds) continue;
      upper = std::min(upper, solution.cost.seconds);
      best = std::move(solution);
    }
    if (best) best->proven = !thinned;
    return best;
  }

  /// The assignment that needs the least memory, if that is less than `upper` bytes; the budget is ignored.
  [[nodiscard]] std::optional<Solution> smallest(std::int64_t upper = std::numeric_limits<std::int64_t>::max()) {
    limits_.memory_only = true;
    middle_.clear();
    std::optional<Solution> best;
    for (const Tie& tie : ties()) {
      auto found = join(tie.tag, 0, upper - 1);
      if (!found) continue;
      Solution solution{std::move(*found), {}, !thinned_};
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
    std::int64_t peak = 0;
    std::int32_t parent = -1;  // in the states of the stage before
    std::int32_t length = 0;   // of the last stage
    StageOption option;
    const StageTable* table = nullptr;
  };
  using State = std::pair<int, std::vector<Joint>>;  // first layer of the next stage

  // A choice of both tied ends.
  struct Tie {
    int tag = -1;
    Choice first;
    Choice last;
    double bound = 0;  // no assignment with these ends is faster
  };

  // The choices of the tied ends, best bound first; one "any" without a tie.
  [[nodiscard]] std::vector<Tie> ties() const {
    if (!problem_.tied || problem_.count() < 2) return {Tie{}};
    const auto ends = [this](int layer) -> const LayerType& {
      return problem_.types[static_cast<std::size_t>(problem_.layers[static_cast<std::size_t>(layer)])];
    };
    const int last = problem_.count() - 1;
    const double inner = bounds_.time[static_cast<std::size_t>(last)] - bounds_.time[1];
    const double inner_once = bounds_.once[static_cast<std::size_t>(last)] - bounds_.once[1];
    std::vector<Tie> out;
    for (const Choice& a : ends(0))
      for (const Choice& b : ends(last)) {
        if (a.tag != b.tag) continue;
        const double sum = inner + a.seconds() + b.seconds();
        const double slowest = std::max({sum / problem_.stages(), a.seconds(), b.seconds()});
        const double once = std::max({(inner_once + a.once() + b.once()) / problem_.stages(), a.once(), b.once()});
        out.push_back({a.tag, a, b, problem_.objective(sum, slowest, once)});
      }
    std::stable_sort(out.begin(), out.end(), [](const Tie& a, const Tie& b) { return a.bound < b.bound; });
    std::vector<Tie> kept;
    for (const Tie& tie : out)
      if (std::none_of(kept.begin(), kept.end(), [&](const Tie& better) {
            return replaces(better.first, tie.first, problem_.slots.front()) &&
                   replaces(better.last, tie.last, problem_.slots.back());
          }))
        kept.push_back(tie);
    return kept;
  }

  // Whether `a` may stand for `b` in any assignment without making it slower or larger.
  [[nodiscard]] bool replaces(const Choice& a, const Choice& b, std::int64_t slots) const {
    const bool memory = a.layout == b.layout && a.activation <= b.activation &&
                        a.states + slots * a.stash <= b.states + slots * b.stash &&
                        a.forward_workspace <= b.forward_workspace && a.backward_workspace <= b.backward_workspace;
    return memory && (limits_.memory_only || (a.seconds() <= b.seconds() && a.once() <= b.once()));
  }

  void find_runs() {
    const int end = problem_.count() - problem_.trailing;
    run_.assign(static_cast<std::size_t>(problem_.count()), 1);
    for (int a = end - 1; a-- > 0;) {
      const auto at = static_cast<std::size_t>(a);
      if (problem_.layers[at] == problem_.layers[at + 1]) run_[at] = run_[at + 1] + 1;
    }
  }

  // Middle stages inside one run of equal layers may use the table of any start in that run that reaches as far.
  const StageTable& middle(int begin, int longest, std::int64_t slots, double upper, std::int64_t budget) {
    const int run = run_[static_cast<std::size_t>(begin)];
    const bool homogeneous = run >= longest;
    const int type = problem_.layers[static_cast<std::size_t>(begin)];
    const auto key = std::make_tuple(slots, homogeneous ? -1 - type : begin);
    auto found = middle_.find(key);
    if (found != middle_.end() && found->second.longest >= longest) return *found->second.table;
    StageRole role;
    role.begin = begin;
    role.longest = longest;
    role.slots = slots;
    role.first = role.last = false;
    auto table = std::make_unique<StageTable>(problem_, bounds_, role, limits_, budget, upper);
    const StageTable& out = *table;
    if (found != middle_.end()) retired_.push_back(std::move(found->second.table));
    middle_[key] = {longest, std::move(table)};
    return out;
  }

  [[nodiscard]] bool hopeless(const Joint& joint, int stage, int next, double upper) const {
    if (limits_.memory_only) return false;
    const double rest = bounds_.time.back() - bounds_.time[static_cast<std::size_t>(next)];
    const int left = problem_.stages() - 1 - stage;
    const double slowest = left > 0 ? std::max(joint.slowest, rest / left) : joint.slowest;
    return problem_.objective(joint.sum + rest, slowest, joint.once) >= upper;
  }

  void keep_best_joints(std::vector<Joint>& joints) {
    if (limits_.memory_only) {
      if (joints.size() > 1) {
        joints.front() = *std::min_element(joints.begin(), joints.end(),
                                           [](const Joint& a, const Joint& b) { return a.peak < b.peak; });
        joints.resize(1);
      }
      return;
    }
    const auto key = [](const Joint& j) { return std::tie(j.sum, j.slowest, j.once); };
    std::stable_sort(joints.begin(), joints.end(), [&](const Joint& a, const Joint& b) { return key(a) < key(b); });
    std::vector<Joint> out;
    for (const Joint& joint : joints) {
      const bool beaten = std::any_of(out.begin(), out.end(), [&](const Joint& other) {
        return other.slowest <= joint.slowest && other.once <= joint.once;
      });
      if (!beaten) out.push_back(joint);
    }
    if (out.size() > limits_.labels) {
      thinned_ = true;
      const auto score = [&](const Joint& j) { return problem_.objective(j.sum, j.slowest, j.once); };
      std::stable_sort(out.begin(), out.end(), [&](const Joint& a, const Joint& b) { return score(a) < score(b); });
      out.resize(limits_.labels);
    }
    joints = std::move(out);
  }

  std::optional<Assignment> join(int tag, double upper, std::int64_t budget) {
    thinned_ = false;
    retired_.clear();
    const int stages = problem_.stages();
    const int count = problem_.count();
    if (problem_.movable() < stages) return std::nullopt;
    std::vector<std::vector<State>> after(static_cast<std::size_t>(stages));
    std::vector<std::unique_ptr<StageTable>> ends;
    for (int stage = 0; stage < stages; ++stage) {
      const bool last = stage + 1 == stages;
      std::map<int, std::vector<Joint>> made;
      const std::vector<State> start{{0, {Joint{}}}};
      const std::vector<State>& before = stage == 0 ? start : after[static_cast<std::size_t>(stage) - 1];
      std::int32_t parent = 0;
      for (const auto& [begin, joints] : before) {
        StageRole role;
        role.begin = begin;
        role.first = stage == 0;
        role.last = last;
        role.slots = problem_.slots[static_cast<std::size_t>(stage)];
        role.tag = tag;
        role.longest = last ? count - begin : count - problem_.trailing - (stages - 1 - stage) - begin;
        role.shortest = last ? role.longest : (stage == 0 ? problem_.leading : 0) + 1;
        const StageTable* table = nullptr;
        if (role.first || role.last) {
          ends.push_back(std::make_unique<StageTable>(problem_, bounds_, role, limits_, budget, upper));
          table = ends.back().get();
        } else {
          table = &middle(begin, role.longest, role.slots, upper, budget);
        }
        thinned_ |= table->thinned();
        for (std::size_t j = 0; j < joints.size(); ++j, ++parent)
          for (int length = role.shortest; length <= std::min(role.longest, table->longest()); ++length)
            for (const StageOption& option : table->options(length)) {
              Joint joint = joints[j];
              joint.sum += option.time;
              joint.slowest = std::max(joint.slowest, option.time);
              joint.once = std::max(joint.once, option.once);
              joint.peak = std::max(joint.peak, option.peak);
              if (joint.peak > budget) continue;  // the table may be from when the budget was larger
              joint.parent = parent;
              joint.length = length;
              joint.option = option;
              joint.table = table;
              // With one stage the option carries the objective itself.
              if (stages > 1 && hopeless(joint, stage, begin + length, upper)) continue;
              made[begin + length].push_back(joint);
            }
      }
      for (auto& [next, joints] : made) {
        keep_best_joints(joints);
        after[static_cast<std::size_t>(stage)].emplace_back(next, std::move(joints));
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
    int longest = 0;
    std::unique_ptr<StageTable> table;
  };

  const Problem& problem_;
  Limits limits_;
  LayerBounds bounds_;
  std::vector<int> run_;  // equal layers from each one on, the trailing ones left out
  bool thinned_ = false;
  std::map<std::tuple<std::int64_t, int>, Middle> middle_;
  std::vector<std::unique_ptr<StageTable>> retired_;
};

}  // namespace galvatron::search
