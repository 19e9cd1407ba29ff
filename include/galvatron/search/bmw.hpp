// BMW: Galvatron's search for balanced workloads, as it was published; a local search over where stages begin.
//
// With C_i the seconds and O_i the bytes of stage i, the balance of time is alpha_t = 1 - max C_i / sum C_i, that of
// memory alpha_m = 1 - max O_i / sum O_i, both in [0, 1 - 1/P]. The cuts p_m balance memory, p_t time, and good cuts
// lie between them: start at p_m; search the strategies of every stage; move a layer off an end of the slowest stage to
// its neighbour; accept if the slowest stage is not slower than before, the fullest not fuller than under p_t, and all
// fit; go on until nothing is accepted. Source: Wang et al., Galvatron-BMW (arXiv 2307.02031), section 4.
//
// Solver searches cuts and strategies together and is never worse; this one is here to be compared with, and for
// problems beyond it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/solver.hpp>
#include <galvatron/search/uniform.hpp>

namespace galvatron::search {

template <class Executor = Team>
class Bmw {
 public:
  explicit Bmw(const Problem& problem, Executor* executor = nullptr) : p_(problem), executor_(executor) {}

  /// Cuts that make the fullest stage least full, each layer at the least that it may keep.
  [[nodiscard]] std::vector<int> memory_balanced() const {
    Problem p = p_;
    const Relaxation relaxation(p);
    PartitionBounds bounds(p, relaxation);
    p.budget = bounds.least_peak();
    bounds.narrow(infinite);
    std::vector<int> out;
    for (int stage = 0; stage <= p.stages(); ++stage) out.push_back(bounds.latest(stage));
    return out;
  }
  /// Cuts that make the slowest stage fastest, each layer at its fastest.
  [[nodiscard]] std::vector<int> time_balanced() const {
    if (!p_.cuts.empty()) return p_.cuts;
    std::vector<int> fastest;
    for (const int type : p_.layers) {
      const LayerType& choices = nth(p_.types, type);
      const auto best = std::ranges::min_element(choices, {}, &Choice::seconds);
      fastest.push_back(static_cast<int>(best - choices.begin()));
    }
    return detail::balanced_cuts(p_, fastest);
  }

  /// The plan that the local search ends with, or the time-balanced one if that is faster; nothing when neither fits.
  [[nodiscard]] std::optional<Solution> run() {
    if (p_.movable() < p_.stages()) return std::nullopt;
    std::optional<Solution> best = solved(time_balanced());
    const std::int64_t most_bytes = best ? std::min(best->cost.peak, p_.budget) : p_.budget;
    std::optional<Solution> at = solved(memory_balanced());
    std::vector<std::vector<int>> seen;
    while (at) {
      if (!best || at->cost.seconds < best->cost.seconds) best = at;
      seen.push_back(at->plan.first);
      at = moved(*at, most_bytes, seen);
    }
    return best;
  }
  /// Labels made.
  [[nodiscard]] std::int64_t work() const { return work_; }

 private:
  // The best strategies for these cuts; nothing when a stage does not fit.
  std::optional<Solution> solved(const std::vector<int>& cuts) {
    Problem problem = p_;
    problem.cuts = cuts;
    Solver<Executor> solver(problem, {.labels = 16}, executor_);
    std::optional<Solution> found = solver.fastest();
    work_ += solver.work();
    return found;
  }

  [[nodiscard]] static auto slowest_of(const Solution& s) {
    return std::ranges::max_element(s.cost.stages, {}, &StageCost::seconds);
  }

  // The faster of the accepted neighbours, if there is one that was not seen.
  std::optional<Solution> moved(const Solution& from, std::int64_t most_bytes,
                                const std::vector<std::vector<int>>& seen) {
    std::optional<Solution> out;
    if (!p_.cuts.empty()) return out;
    const auto slowest = slowest_of(from);
    const auto at = static_cast<int>(slowest - from.cost.stages.begin());
    const int own = nth(from.plan.first, at + 1) - nth(from.plan.first, at) - (at == 0 ? p_.leading : 0) -
                    (at + 1 == p_.stages() ? p_.trailing : 0);
    if (own < 2) return out;
    for (const int border : {at, at + 1}) {
      if (border == 0 || border == p_.stages()) continue;
      std::vector<int> cuts = from.plan.first;
      nth(cuts, border) += border == at ? 1 : -1;
      if (std::ranges::find(seen, cuts) != seen.end()) continue;
      auto next = solved(cuts);
      if (!next || slowest_of(*next)->seconds() > slowest->seconds() * (1 + 1e-12) || next->cost.peak > most_bytes)
        continue;
      if (!out || next->cost.seconds < out->cost.seconds) out = std::move(next);
    }
    return out;
  }

  const Problem& p_;
  Executor* executor_;
  std::int64_t work_ = 0;
};

}  // namespace galvatron::search
