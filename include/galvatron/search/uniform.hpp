// Uniform assignments: one strategy for all layers. They are the plain schemes that a search is held against, and its
// first upper bound.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <galvatron/search/case.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

namespace detail {

/// Where stages begin when the slowest one is as fast as possible; the first stages, which hold the most micro-batches,
/// get no more layers than that needs.
inline std::vector<int> balanced_cuts(const Problem& p, const std::vector<int>& choice) {
  std::vector<double> before{0};  // seconds of the layers before each one
  for (int layer = 0; layer < p.count(); ++layer)
    before.push_back(before.back() + p.choice(layer, choice[static_cast<std::size_t>(layer)]).seconds());
  const auto seconds = [&](int begin, int end) {
    return before[static_cast<std::size_t>(end)] - before[static_cast<std::size_t>(begin)];
  };
  // From the last stage to the first, each as long as `limit` allows and as leaves a layer for every other stage. The
  // cuts are the same for all limits below `next`.
  double next = 0;
  const auto cut = [&](double limit) {
    next = std::numeric_limits<double>::infinity();
    std::vector<int> first(static_cast<std::size_t>(p.stages()) + 1, 0);
    int end = first.back() = p.count();
    for (int i = p.stages(); --i > 0;) {
      const int least = p.leading + i;  // layers for the stages before
      int begin = end - 1 - (end == p.count() ? p.trailing : 0);
      while (begin > least && seconds(begin - 1, end) <= limit) --begin;
      if (begin > least) next = std::min(next, seconds(begin - 1, end));
      end = first[static_cast<std::size_t>(i)] = begin;
    }
    return first;
  };
  const auto slowest = [&](const std::vector<int>& first) {
    double out = 0;
    for (std::size_t i = 0; i + 1 < first.size(); ++i) out = std::max(out, seconds(first[i], first[i + 1]));
    return out;
  };
  double low = before.back() / p.stages();  // no less, but for rounding
  double high = before.back();              // cuts with that are known
  while (low < high * (1 - 1e-12)) {
    const double middle = (low + high) / 2;
    if (const double found = slowest(cut(middle)); found <= middle)
      high = found;
    else
      low = next;
  }
  return cut(high);
}

}  // namespace detail

struct UniformPlan {
  Assignment plan;
  Evaluation cost;
  int tag = 0;
};

/// The assignments with strategy `tag`, given by its choice in every type, in every layer; cut evenly and by load, or
/// as given.
inline std::vector<UniformPlan> uniform_plans(const Problem& p, int tag, const std::vector<int>& choice_of_type) {
  std::vector<int> choice;
  for (const int type : p.layers) choice.push_back(choice_of_type[static_cast<std::size_t>(type)]);
  std::vector<UniformPlan> out;
  std::vector<std::vector<int>> tried{p.cuts};
  if (p.cuts.empty()) tried = {even_cuts(p), detail::balanced_cuts(p, choice)};
  for (const auto& cuts : tried) {
    UniformPlan plan{{cuts, choice}, {}, tag};
    if (!out.empty() && out.front().plan.first == cuts) break;
    plan.cost = evaluate(p, plan.plan);
    out.push_back(std::move(plan));
  }
  return out;
}

}  // namespace galvatron::search
