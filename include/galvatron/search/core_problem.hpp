// The core of a problem: the few choices of every layer type that a fast assignment is likely to have. It is solved
// first, with many labels in little time; what it finds prunes the search of the whole problem, which alone can prove.
// (Balas and Zemel, "An algorithm for large zero-one knapsack problems", 1980, solve knapsacks like that.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/search/layout_relaxation.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/solver.hpp>

namespace galvatron::search {

namespace detail {

/// Seconds that a byte of memory is worth on the first, the middle and the last stage, of as many layers as on average,
/// by the layout relaxation, with the stage's slots.
using BytePrices = std::vector<std::pair<Slots, double>>;
constexpr BytePrices prices_of(const Problem& p) {
  BytePrices out;
  const int stages = p.stages();
  const std::vector<int> first = p.cuts.empty() ? even_cuts(p) : p.cuts;
  const std::vector<std::int64_t> workspaces = least_workspaces(p);
  std::vector<int> some{0, stages / 2, stages - 1};
  sort_unique(some);
  for (const int stage : some) {
    const int begin = nth(first, stage);
    const StageRole role{.stage = stage,
                         .begin = begin,
                         .shortest = nth(first, stage + 1) - begin,
                         .least_workspace = nth(workspaces, stage)};
    out.emplace_back(p.slots_of(stage, 0), LayoutRelaxation(p, role, p.objective.share_of_iteration()).price());
  }
  return out;
}
/// The choices of a type nearest to the cheapest at some price, in their order, and the one that keeps least.
constexpr std::vector<int> likely_choices(const Problem& p, const LayerType& type, const BytePrices& prices,
                                          std::size_t most) {
  std::vector<std::pair<double, int>> excess;
  for (const Choice& c : type) excess.emplace_back(infinite, static_cast<int>(&c - &type[0]));
  for (const auto& [slots, price] : prices) {
    std::vector<double> cost;
    for (const Choice& c : type)
      cost.push_back(p.objective.terms_of(c).time_with(p.objective.share_of_iteration()) +
                     price * static_cast<double>(slots.kept(c)));
    const double least = *std::min_element(cost.begin(), cost.end());
    for (std::size_t j = 0; j < type.size(); ++j) excess[j].first = std::min(excess[j].first, cost[j] - least);
  }
  const auto kept = [slots = p.slots_of(0, 0)](const Choice& c) { return slots.kept(c); };
  std::vector<int> out{static_cast<int>(std::ranges::min_element(type, {}, kept) - type.begin())};
  std::ranges::sort(excess);
  for (std::size_t j = 0; j < std::min(most, excess.size()); ++j) out.push_back(excess[j].second);
  sort_unique(out);
  return out;
}

/// Leaves the likely choices in a problem, tied ends all. Returns, of every type, which they were.
constexpr std::vector<std::vector<int>> keep_likely_choices(Problem& p, std::size_t most) {
  const BytePrices prices = prices_of(p);
  std::vector<std::vector<int>> kept;
  for (std::size_t i = 0; i < p.types.size(); ++i) {
    const int number = static_cast<int>(i);
    const bool tied = p.tied && (p.layers.front() == number || p.layers.back() == number);
    kept.push_back(likely_choices(p, p.types[i], prices, tied ? p.types[i].size() : most));
    LayerType likely;
    for (const int choice : kept.back()) likely.push_back(nth(p.types[i], choice));
    p.types[i] = std::move(likely);
  }
  return kept;
}

}  // namespace detail

/// The best assignment found, of the whole problem, with less than `upper` seconds.
/// @param most  choices of a type, beside the one that keeps least; tied ends keep all
/// @param work  grows by the labels made
template <class Executor>
std::optional<Solution> fastest_of_core(const Problem& problem, std::size_t most, double upper, const Limits& limits,
                                        Executor* executor, std::int64_t& work) {
  Problem core = problem;
  std::vector<std::vector<std::vector<int>>> kept;  // (kinds of device, types) the choices of the whole problem
  for (int kind = 0; kind < core.device_kinds(); ++kind)
    kept.push_back(detail::keep_likely_choices(core.of_kind(kind), most));
  Solver solver(core, limits, executor);
  std::optional<Solution> found = solver.fastest(upper);
  work += solver.work();
  if (!found) return std::nullopt;
  for (int stage = 0; stage < problem.stages(); ++stage)
    for (int layer = nth(found->plan.first, stage); layer < nth(found->plan.first, stage + 1); ++layer) {
      int& choice = nth(found->plan.choice, layer);
      choice = nth(nth(nth(kept, problem.device_kind(stage)), nth(problem.layers, layer)), choice);
    }
  return evaluated(problem, std::move(found->plan));
}

}  // namespace galvatron::search
