// Improving a plan: some of its waves at a time are planned again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
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
    problem.wave_overhead = whole.wave_overhead;
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

/// Devices of a MetaOp's last part in these waves, 0 where it has none.
inline int last_devices(const std::vector<Wave>& waves, int metaop) {
  int out = 0;
  for (const Wave& wave : waves)
    for (const Part& part : wave.parts)
      if (part.metaop == metaop) out = part.devices;
  return out;
}

/// Replaces the plan of the window of `count` waves from `first` on by a faster one. Whether there was one.
inline bool improve_window(const Problem& problem, std::vector<Wave>& waves, std::size_t first, std::size_t count,
                           const BeamLimits& limits, Work& work) {
  const Window window(problem, waves, first, count);
  const auto at = [&](std::size_t wave) { return waves.begin() + static_cast<std::ptrdiff_t>(wave); };
  const std::vector<Wave> until(waves.begin(), at(first + count));
  const std::vector<Wave> before(waves.begin(), at(first));
  std::vector<int> last;
  for (const int metaop : window.metaops) last.push_back(last_devices(before, metaop));
  const double seconds = step_seconds(problem, until) - step_seconds(problem, before);
  std::vector<Wave> found = Beam(window.problem, limits, work).run(seconds * (1 - 1e-9), last);
  if (found.empty()) return false;
  for (Wave& wave : found)
    for (Part& part : wave.parts) part.metaop = window.metaops[static_cast<std::size_t>(part.metaop)];
  std::vector<Wave> next = before;
  next.insert(next.end(), found.begin(), found.end());
  next.insert(next.end(), at(first + count), waves.end());
  // Transfers into later waves change too.
  if (!(step_seconds(problem, next) < step_seconds(problem, waves))) return false;
  waves = std::move(next);
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
