// Uniform assignments: one strategy for all layers. They are the plain schemes that a search is held against, and its
// first upper bound.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <galvatron/search/cases.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

namespace detail {

inline std::optional<int> choice_with_tag(const LayerType& type, int tag) {
  for (std::size_t i = 0; i < type.size(); ++i)
    if (type[i].tag == tag) return static_cast<int>(i);
  return std::nullopt;
}

/// Where stages begin when each gets an equal number of layers, the remainder going to the last ones.
inline std::vector<int> even_cuts(const Problem& p) {
  std::vector<int> first{0};
  const int each = p.movable() / p.stages();
  const int more = p.movable() % p.stages();
  int at = p.leading;
  for (int i = 0; i + 1 < p.stages(); ++i) {
    at += each + (i >= p.stages() - more ? 1 : 0);
    first.push_back(at);
  }
  first.push_back(p.count());
  return first;
}

/// Where stages begin when each layer goes to the stage that is fastest so far: the ends count.
inline std::vector<int> balanced_cuts(const Problem& p, const std::vector<int>& choice) {
  const auto seconds = [&](int layer) { return p.choice(layer, choice[static_cast<std::size_t>(layer)]).seconds(); };
  std::vector<double> load(static_cast<std::size_t>(p.stages()), 0.0);
  std::vector<int> layers(static_cast<std::size_t>(p.stages()), 1);
  for (int i = 0; i < p.leading; ++i) load.front() += seconds(i);
  for (int i = 0; i < p.trailing; ++i) load.back() += seconds(p.count() - 1 - i);
  const double each = seconds(p.leading);
  for (double& l : load) l += each;
  for (int left = p.movable() - p.stages(); left > 0; --left) {
    const auto fastest = std::min_element(load.rbegin(), load.rend());
    *fastest += each;
    ++layers[load.size() - 1 - static_cast<std::size_t>(fastest - load.rbegin())];
  }
  std::vector<int> first{0};
  for (int i = 0, at = p.leading; i + 1 < p.stages(); ++i) first.push_back(at += layers[static_cast<std::size_t>(i)]);
  first.push_back(p.count());
  return first;
}

}  // namespace detail

struct UniformPlan {
  Assignment plan;
  Evaluation cost;
  int tag = 0;
};

/// The assignments with strategy `tag` in every layer, cut evenly and by load, or as given; none where a layer cannot
/// have it.
inline std::vector<UniformPlan> uniform_plans(const Problem& p, int tag) {
  std::vector<int> choice;
  for (const int type : p.layers) {
    const auto index = detail::choice_with_tag(p.types[static_cast<std::size_t>(type)], tag);
    if (!index) return {};
    choice.push_back(*index);
  }
  std::vector<UniformPlan> out;
  std::vector<std::vector<int>> tried{p.cuts};
  if (p.cuts.empty()) tried = {detail::even_cuts(p), detail::balanced_cuts(p, choice)};
  for (const auto& cuts : tried) {
    UniformPlan plan{{cuts, choice}, {}, tag};
    if (!out.empty() && out.front().plan.first == cuts) break;
    plan.cost = evaluate(p, plan.plan);
    out.push_back(std::move(plan));
  }
  return out;
}

}  // namespace galvatron::search
