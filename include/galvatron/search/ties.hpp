// The choices of tied ends: an embedding and a head that share a weight have one strategy.
#pragma once

#include <algorithm>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/problem.hpp>

namespace galvatron::search {

/// A choice of both ends.
struct Tie {
  int tag = -1;  ///< -1: any
  Choice first;
  Choice last;
  double bound = 0;  ///< no assignment with these ends is faster

  friend bool operator<(const Tie& a, const Tie& b) { return a.bound != b.bound ? a.bound < b.bound : a.tag < b.tag; }
};

/// The choices of the tied ends, best bound first, without those that others replace; one "any" without a tie.
inline std::vector<Tie> ties_of(const Problem& p, const Bounds& bounds, bool memory_only) {
  if (!p.tied || p.count() < 2) return {Tie{}};
  const auto choices = [&p](int layer) -> const LayerType& {
    return p.types[static_cast<std::size_t>(p.layers[static_cast<std::size_t>(layer)])];
  };
  std::vector<Tie> out;
  for (const Choice& a : choices(0))
    for (const Choice& b : choices(p.count() - 1))
      if (a.tag == b.tag) out.push_back({a.tag, a, b, bounds.with_ends(a, b)});
  std::sort(out.begin(), out.end());
  const Slots first = p.slots_of(0, 0);
  const Slots last = p.slots_of(p.stages() - 1, p.chunks - 1);
  std::vector<Tie> kept;
  for (const Tie& tie : out)
    if (std::none_of(kept.begin(), kept.end(), [&](const Tie& better) {
          return replaces(better.first, tie.first, p.objective, first, memory_only) &&
                 replaces(better.last, tie.last, p.objective, last, memory_only);
        }))
      kept.push_back(tie);
  return kept;
}

}  // namespace galvatron::search
