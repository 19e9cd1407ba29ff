// A plan with few runs of strategies, among those that take equally long. A search finds some assignment of the least
// time. Layers of one type may change places within a stage, and with a layer of another stage that has time and memory
// to spare, so what is shown, exported and run can mostly be had in fewer runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/search/case.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

namespace detail {

/// Descends from one assignment to others of no more time that fit, with fewer runs, or as many of fewer kinds.
class RunMerger {
 public:
  RunMerger(const Case& c, Solution solution)
      : case_(c),
        p_(c.problem),
        best_(std::move(solution)),
        upper_(best_.cost.seconds * (1 + 1e-12)),
        at_(c.problem.layers.size()) {
    for (int layer = 0; layer < p_.count(); ++layer) nth(at_, c.layer(layer)) = layer;
    for (int stage = 0; stage < p_.stages(); ++stage)
      stage_of_.resize(static_cast<std::size_t>(nth(best_.plan.first, stage + 1)), stage);
    size_ = size_of(best_.plan);
  }

  [[nodiscard]] Solution run() {
    Size before;
    do {
      before = size_;
      move_a_run();
    } while (size_ < before && tries_ > 0);
    return std::move(best_);
  }

 private:
  using Size = std::pair<int, int>;  // runs, kinds of strategies
  // Neighbours of one tag, by their places in the model.
  struct Run {
    std::size_t first = 0;
    std::size_t count = 0;
    int tag = 0;
  };

  [[nodiscard]] const LayerType& type_of(int layer) const { return p_.on(nth(stage_of_, layer)).type_of(layer); }
  [[nodiscard]] int tag_of(const Assignment& plan, int layer) const {
    return nth(type_of(layer), nth(plan.choice, layer)).tag;
  }
  [[nodiscard]] Size size_of(const Assignment& plan) const {
    const std::vector<StrategySpec> all = strategies_of(case_, plan);
    int runs = 0;
    int kinds = 0;
    for (auto own = all.begin(); own != all.end(); ++own) {
      if (own == all.begin() || !(*own == *(own - 1))) ++runs;
      if (std::find(all.begin(), own, *own) == own) ++kinds;
    }
    return {runs, kinds};
  }
  // Keeps what is better. Returns whether it was.
  bool offer(Assignment plan) {
    if (tries_ <= 0) return false;
    tries_ -= p_.count();
    if (p_.tied && tag_of(plan, 0) != tag_of(plan, p_.count() - 1)) return false;
    const Size size = size_of(plan);
    if (!(size < size_)) return false;
    const Evaluation cost = evaluate(p_, plan);
    if (cost.seconds > upper_ || cost.peak > p_.budget) return false;
    best_ = {std::move(plan), cost};
    size_ = size;
    return true;
  }

  // Two runs beside each other change places. Or the layers of a run get the tag of the run beside it, and as many
  // layers of another run with that tag, at its end, get the old one, where they lengthen the next run; or none do.
  void move_a_run() {
    std::vector<Run> runs;
    for (std::size_t i = 0; i < at_.size(); ++i) {
      const int tag = tag_of(best_.plan, at_[i]);
      if (runs.empty() || runs.back().tag != tag) runs.push_back({i, 0, tag});
      ++runs.back().count;
    }
    for (std::size_t i = 0; i < runs.size(); ++i)
      for (const std::size_t beside : {i - 1, i + 1}) {
        if (beside >= runs.size()) continue;
        Assignment without = best_.plan;
        if (!give(without, runs[i].first, runs[i].count, runs[beside].tag)) continue;
        if (offer(without)) return;
        const Run& other = runs[beside];
        Assignment swapped = best_.plan;
        if (beside > i && give(swapped, runs[i].first, other.count, other.tag) &&
            give(swapped, runs[i].first + other.count, runs[i].count, runs[i].tag) && offer(std::move(swapped)))
          return;
        for (std::size_t j = 0; j < runs.size(); ++j) {
          if (j == i || runs[j].tag != runs[i].tag) continue;
          for (const std::size_t giver : {j - 1, j + 1}) {
            if (giver >= runs.size() || runs[giver].tag != runs[beside].tag || runs[giver].count < runs[i].count)
              continue;
            const std::size_t end = runs[giver].first + runs[giver].count;
            Assignment plan = without;
            if (give(plan, giver < j ? end - runs[i].count : runs[giver].first, runs[i].count, runs[i].tag) &&
                offer(std::move(plan)))
              return;
          }
        }
      }
  }
  // Layers from a place on get the choices of a tag. Returns whether all have one.
  bool give(Assignment& plan, std::size_t first, std::size_t count, int tag) const {
    for (std::size_t i = first; i < first + count; ++i) {
      const LayerType& type = type_of(at_[i]);
      const auto found = std::ranges::find(type, tag, &Choice::tag);
      if (found == type.end()) return false;
      nth(plan.choice, at_[i]) = static_cast<int>(found - type.begin());
    }
    return true;
  }

  const Case& case_;
  const Problem& p_;
  Solution best_;
  double upper_;
  std::vector<int> at_;                         // the layer of the problem at each place of the model
  std::vector<int> stage_of_;                   // (layers of the problem); cuts stay
  std::int64_t tries_ = std::int64_t{1} << 20;  // times layers: a fraction of a second
  Size size_;
};

}  // namespace detail

/// A solution that takes no longer, fits the budget as the given one does, and has at most as many runs.
inline Solution with_fewest_runs(const Case& c, Solution solution) {
  return solution.cost.peak <= c.problem.budget ? detail::RunMerger(c, std::move(solution)).run() : solution;
}

}  // namespace galvatron::search
