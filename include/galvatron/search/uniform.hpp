// Uniform plans: one strategy for all layers. They are the plain schemes that a plan is held against, and the first
// upper bound of a search.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/search/case.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::search {

namespace detail {

/// Where stages begin when the slowest one is as fast as possible; the first stages, which hold the most micro-batches,
/// get no more layers than that needs.
inline std::vector<int> balanced_cuts(const Problem& p, const std::vector<int>& choice) {
  std::vector<double> before{0};  // seconds of the layers before each one
  for (int layer = 0; layer < p.count(); ++layer)
    before.push_back(before.back() + p.choice(layer, nth(choice, layer)).seconds());
  const auto seconds = [&](int begin, int end) { return nth(before, end) - nth(before, begin); };
  // From the last stage to the first, each as long as `limit` allows and as leaves a layer for every other stage. The
  // cuts are the same for all limits below `next`.
  std::vector<int> first(static_cast<std::size_t>(p.stages()) + 1, 0);
  double next = 0;
  double slowest = 0;
  const auto cut = [&](double limit) {
    next = infinite;
    int end = first.back() = p.count();
    slowest = 0;
    for (int i = p.stages(); --i > 0;) {
      const int least = p.leading + i;  // layers for the stages before
      int begin = end - 1 - (end == p.count() ? p.trailing : 0);
      while (begin > least && seconds(begin - 1, end) <= limit) --begin;
      if (begin > least) next = std::min(next, seconds(begin - 1, end));
      slowest = std::max(slowest, seconds(begin, end));
      end = nth(first, i) = begin;
    }
    slowest = std::max(slowest, seconds(0, end));
  };
  double low = before.back() / p.stages();  // no less, but for rounding
  double high = before.back();              // cuts with that are known
  while (low < high * (1 - 1e-12)) {
    const double middle = (low + high) / 2;
    cut(middle);
    if (slowest <= middle)
      high = slowest;
    else
      low = next;
  }
  cut(high);
  return first;
}

}  // namespace detail

/// The assignments with one strategy, given by its choice in every type, in every layer; cut evenly and by load, or as
/// given.
inline std::vector<Solution> uniform_plans(const Problem& p, const std::vector<int>& choice_of_type) {
  std::vector<int> choice;
  for (const int type : p.layers) choice.push_back(nth(choice_of_type, type));
  std::vector<std::vector<int>> tried{p.cuts};
  if (p.cuts.empty()) tried = {even_cuts(p), detail::balanced_cuts(p, choice)};
  if (tried.size() > 1 && tried[0] == tried[1]) tried.pop_back();
  std::vector<Solution> out;
  for (const std::vector<int>& cuts : tried) out.push_back(evaluated(p, {cuts, choice}));
  return out;
}

/// What the uniform plans of a case take at least: most need no evaluation.
class UniformBounds {
 public:
  explicit UniformBounds(const Case& c)
      : p_(c.problem), layers_(p_.types.size(), 0), movable_(layers_), index_(p_.types.size()) {
    for (const int type : p_.layers) ++nth(layers_, type);
    for (int layer = p_.leading; layer < p_.count() - p_.trailing; ++layer) ++nth(movable_, nth(p_.layers, layer));
    for (std::size_t type = 0; type < index_.size(); ++type) {
      index_[type].assign(c.specs.size(), -1);
      for (std::size_t i = 0; i < p_.types[type].size(); ++i)
        nth(index_[type], p_.types[type][i].tag) = static_cast<int>(i);
      for (std::size_t tag = 0; tag < c.same[type].size(); ++tag)
        index_[type][tag] = nth(index_[type], c.same[type][tag]);
    }
    // On shared cores and with GPipe a plan may take longer than the objective says, so that order by it is not all.
    comparable_ = !p_.turns && !p_.objective.shared && (c.schedule != ScheduleKind::gpipe || p_.stages() == 1);
  }

  /// Finds the choice of every type with a tag; false where a layer cannot have the strategy.
  [[nodiscard]] bool find_choices(int tag, std::vector<int>& out) const {
    out.clear();
    for (const std::vector<int>& index : index_) {
      out.push_back(nth(index, tag));
      if (out.back() < 0) return false;
    }
    return true;
  }

  /// Of plans with these choices; 0 seconds where a plan's are not those of the objective.
  [[nodiscard]] Evaluation least(const std::vector<int>& choices) const {
    Evaluation out;
    Slots slots = p_.slots.front();
    for (const Slots& own : p_.slots) slots = min(slots, own);
    Terms all;
    double block_time = infinite;
    double kept = 0;
    std::int64_t block_bytes = unlimited;
    std::int64_t workspace = block_bytes;
    for (std::size_t type = 0; type < p_.types.size(); ++type) {
      const Choice& c = nth(p_.types[type], choices[type]);
      const Terms terms = p_.objective.terms_of(c);
      all.time += layers_[type] * terms.time;
      all.fill += layers_[type] * terms.fill;
      all.per_iteration += layers_[type] * terms.per_iteration;
      kept += layers_[type] * static_cast<double>(slots.kept(c));
      if (movable_[type] == 0) continue;
      block_time = std::min(block_time, terms.time);
      block_bytes = std::min(block_bytes, slots.kept(c));
      workspace = std::min(workspace, workspace_of(c));
    }
    // Some stage has at least the mean of all, and some at least so many blocks.
    if (p_.turns) return out;  // the first and last of its layers are no leading and trailing ones
    const int blocks = (p_.movable() + p_.stages() - 1) / p_.stages();
    out.seconds = p_.objective({std::max(all.time / p_.stages(), blocks * block_time), all.fill,
                                all.per_iteration / p_.stages()}) *
                  (1 - 1e-12);
    out.peak = p_.fixed + workspace +
               std::max(static_cast<std::int64_t>(kept / p_.stages() * (1 - 1e-12)), blocks * block_bytes);
    if (!comparable_) out.seconds = 0;
    return out;
  }

 private:
  const Problem& p_;
  std::vector<int> layers_;              // of every type
  std::vector<int> movable_;             // of them
  std::vector<std::vector<int>> index_;  // (types, tags) the choice with a tag, or -1
  bool comparable_ = true;
};

}  // namespace galvatron::search
