// The core of a problem: the few choices of every layer type that a fast assignment is likely to have. It is solved
// first, with many labels in little time; what it finds prunes the search of the whole problem, which alone can prove.
// (Balas and Zemel, "An algorithm for large zero-one knapsack problems", 1980, solve knapsacks like that.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/layout_relaxation.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/solver.hpp>

namespace galvatron::search {

class CoreProblem {
 public:
  /// @param most  choices of a type, beside the one that keeps least; tied ends keep all
  CoreProblem(const Problem& problem, std::size_t most) : whole_(problem), core_(problem) {
    const std::vector<Price> prices = prices_of(problem);
    for (std::size_t i = 0; i < problem.types.size(); ++i) {
      const int type = static_cast<int>(i);
      const bool tied = problem.tied && (problem.layers.front() == type || problem.layers.back() == type);
      kept_.push_back(likely(problem.types[i], prices, tied ? problem.types[i].size() : most));
      core_.types[i].clear();
      for (const int choice : kept_.back())
        core_.types[i].push_back(problem.types[i][static_cast<std::size_t>(choice)]);
    }
  }

  /// The best assignment found, of the whole problem, with less than `upper` seconds; `work` grows by the labels made.
  template <class Executor>
  [[nodiscard]] std::optional<Solution> fastest(double upper, const Limits& limits, Executor* executor,
                                                std::int64_t& work) {
    Solver solver(core_, limits, executor);
    std::optional<Solution> found = solver.fastest(upper);
    work += solver.work();
    if (!found) return found;
    for (std::size_t layer = 0; layer < found->plan.choice.size(); ++layer) {
      const auto type = static_cast<std::size_t>(whole_.layers[layer]);
      int& choice = found->plan.choice[layer];
      choice = kept_[type][static_cast<std::size_t>(choice)];
    }
    found->cost = evaluate(whole_, found->plan);
    return found;
  }

 private:
  // What a byte of memory is worth on some stages (a few of many, of as many layers as on average) by the layout
  // relaxation.
  struct Price {
    Slots slots;
    double seconds = 0;  // of a byte
  };
  [[nodiscard]] static constexpr std::vector<Price> prices_of(const Problem& p) {
    std::vector<Price> out;
    const int stages = p.stages();
    const std::vector<int> first = p.cuts.empty() ? even_cuts(p) : p.cuts;
    const std::vector<std::int64_t> workspaces = least_workspaces(p);
    for (int stage = 0; stage < stages;
         stage = stage == 0 ? std::max(1, stages / 2) : std::max(stage + 1, stages - 1)) {
      StageRole role;
      role.stage = stage;
      role.begin = first[static_cast<std::size_t>(stage)];
      role.least_workspace = workspaces[static_cast<std::size_t>(stage)];
      role.shortest = role.longest = first[static_cast<std::size_t>(stage) + 1] - role.begin;
      out.push_back({p.least_slots(stage), LayoutRelaxation(p, role, p.objective.share_of_iteration()).price()});
    }
    return out;
  }
  // Those nearest to the cheapest at some price, in their order, and the one that keeps least.
  [[nodiscard]] constexpr std::vector<int> likely(const LayerType& type, const std::vector<Price>& prices,
                                                  std::size_t most) const {
    std::vector<std::pair<double, int>> excess(type.size());
    for (std::size_t j = 0; j < type.size(); ++j) excess[j] = {std::numeric_limits<double>::max(), static_cast<int>(j)};
    for (const Price& price : prices) {
      std::vector<double> cost;
      for (const Choice& c : type) {
        const Terms terms = whole_.objective.terms_of(c);
        cost.push_back(terms.time + whole_.objective.share_of_iteration() * terms.per_iteration +
                       price.seconds * static_cast<double>(price.slots.kept(c)));
      }
      const double least = *std::min_element(cost.begin(), cost.end());
      for (std::size_t j = 0; j < type.size(); ++j) excess[j].first = std::min(excess[j].first, cost[j] - least);
    }
    const auto smaller = [&](const Choice& a, const Choice& b) {
      return whole_.slots_of(0, 0).kept(a) < whole_.slots_of(0, 0).kept(b);
    };
    const auto smallest = static_cast<int>(std::min_element(type.begin(), type.end(), smaller) - type.begin());
    std::sort(excess.begin(), excess.end());
    std::vector<int> out{smallest};
    for (std::size_t j = 0; j < std::min(most, excess.size()); ++j)
      if (excess[j].second != smallest) out.push_back(excess[j].second);
    std::sort(out.begin(), out.end());
    return out;
  }

  const Problem& whole_;
  Problem core_;
  std::vector<std::vector<int>> kept_;  // of every type, the choices of the whole problem
};

}  // namespace galvatron::search
