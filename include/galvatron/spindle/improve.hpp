// Improving a plan: some of its waves at a time are planned again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <galvatron/spindle/beam.hpp>
#include <galvatron/spindle/problem.hpp>

namespace galvatron::spindle {

namespace detail {

/// The operators of waves first..first + count - 1 as a problem of their own. Other waves keep their place, so MetaOps
/// wait for those of the window alone.
struct Window {
  Problem problem;
  std::vector<int> metaops;  // their numbers in the whole problem

  Window(const Problem& whole, const std::vector<Wave>& waves, std::size_t first, std::size_t count) {
    std::vector<int> operators(whole.count(), 0);
    for (std::size_t w = first; w < first + count; ++w)
      for (const Part& part : waves[w].parts) operators[static_cast<std::size_t>(part.metaop)] += part.operators;
    std::vector<int> number(whole.count(), -1);
    problem.devices = whole.devices;
    for (std::size_t m = 0; m < whole.count(); ++m) {
      if (operators[m] == 0) continue;
      number[m] = static_cast<int>(metaops.size());
      metaops.push_back(static_cast<int>(m));
      problem.metaops.push_back(whole.metaops[m]);
      problem.metaops.back().operators = operators[m];
    }
    for (MetaOp& metaop : problem.metaops) {
      for (int& before : metaop.after) before = number[static_cast<std::size_t>(before)];
      std::erase(metaop.after, -1);
    }
  }
};

/// Replaces the plan of the window of `count` waves from `first` on by a faster one. Whether there was one.
inline bool improve_window(const Problem& problem, std::vector<Wave>& waves, std::size_t first, std::size_t count,
                           const BeamLimits& limits, Work& work) {
  const auto begin = waves.begin() + static_cast<std::ptrdiff_t>(first);
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  double seconds = 0;
  for (auto wave = begin; wave != end; ++wave) seconds += wave->seconds;
  const Window window(problem, waves, first, count);
  std::vector<Wave> found = Beam(window.problem, limits, work).run(operators_of(window.problem), seconds * (1 - 1e-9));
  if (found.empty()) return false;
  for (Wave& wave : found)
    for (Part& part : wave.parts) part.metaop = window.metaops[static_cast<std::size_t>(part.metaop)];
  waves.insert(waves.erase(begin, end), found.begin(), found.end());
  return true;
}

/// Plans every window of `count` neighbouring waves again, one after the other. Whether any became faster.
inline bool improve_windows(const Problem& problem, std::vector<Wave>& waves, std::size_t count,
                            const BeamLimits& limits, Work& work) {
  bool improved = false;
  for (std::size_t first = 0; first + 1 < waves.size() && !work.is_spent(); ++first)
    improved |= improve_window(problem, waves, first, std::min(count, waves.size() - first), limits, work);
  return improved;
}

}  // namespace detail

}  // namespace galvatron::spindle
