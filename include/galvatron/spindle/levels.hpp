// Levels as problems of their own: their continuous optimum and Spindle's bi-point allocation.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include <galvatron/spindle/problem.hpp>
#include <galvatron/spindle/relaxation.hpp>

namespace galvatron::spindle {

/// The MetaOps of a level, which are independent, and their numbers in the whole problem.
struct Level {
  Problem problem;
  std::vector<int> metaops;
};

inline std::vector<Level> levels_of(const Problem& problem) {
  std::vector<Level> out(static_cast<std::size_t>(problem.levels()));
  for (std::size_t i = 0; i < problem.count(); ++i) {
    Level& level = out[static_cast<std::size_t>(problem.metaops[i].level)];
    level.problem.devices = problem.devices;
    level.problem.wave_overhead = problem.wave_overhead;
    MetaOp& own = level.problem.metaops.emplace_back(problem.metaops[i]);
    own.after.clear();
    own.level = 0;
    level.metaops.push_back(static_cast<int>(i));
  }
  std::erase_if(out, [](const Level& level) { return level.metaops.empty(); });
  return out;
}

/// Operators of every MetaOp, in order.
inline std::vector<int> operators_of(const Problem& problem) {
  std::vector<int> out;
  for (const MetaOp& metaop : problem.metaops) out.push_back(metaop.operators);
  return out;
}

/// Seconds of the levels one after the other, each with devices that change at any moment: no plan with levels as
/// barriers takes less.
inline double continuous_seconds(const Problem& problem) {
  double out = 0;
  for (const Level& level : levels_of(problem)) out += Relaxation(level.problem).bound(operators_of(level.problem));
  return out;
}

/// What a MetaOp has in the continuous optimum: a number of devices, and operators on its two neighbouring counts.
struct Allocation {
  double devices = 0;
  int lower = 0;  ///< 0: the MetaOp runs on `upper` devices for a part of the time; `upper` where these are all
  int upper = 0;
  double lower_operators = 0;
  double upper_operators = 0;

  /// Whole operators: those on the lower count are rounded half up.
  [[nodiscard]] int lower_rounded(int operators) const {
    return lower == 0 ? 0 : std::clamp(static_cast<int>(std::floor(lower_operators + 0.5)), 0, operators);
  }
};

/// The time t+ on the upper count is (n - n-) / (n+ - n-) of C, on the lower one the rest; operators are those that end
/// in it.
/// @param seconds  C, the continuous optimum of the level
inline Allocation allocation_of(const MetaOp& metaop, double seconds) {
  const Curve& curve = metaop.curve;
  const std::vector<std::size_t> points = convex_counts(curve);
  const double need = metaop.operators * curve.seconds[points.front()] / seconds;  // speed-up over the first count
  const auto speed = [&](std::size_t i) { return curve.seconds[points.front()] / curve.seconds[points[i]]; };
  std::size_t upper = 0;
  // A speed-up that is met but for rounding is met.
  while (upper + 1 < points.size() && speed(upper) < need * (1 - 1e-12)) ++upper;
  Allocation out;
  out.upper = curve.devices[points[upper]];
  out.lower = upper == 0 ? 0 : curve.devices[points[upper - 1]];
  const double below = upper == 0 ? 0 : speed(upper - 1);
  const double part = std::clamp((need - below) / (speed(upper) - below), 0.0, 1.0);
  out.devices = out.lower + part * (out.upper - out.lower);
  if (upper == 0) {
    out.upper_operators = metaop.operators;
  } else {
    out.lower_operators = (1 - part) * seconds / curve.seconds[points[upper - 1]];
    out.upper_operators = metaop.operators - out.lower_operators;
    if (part == 1) out.lower = out.upper;
  }
  return out;
}

}  // namespace galvatron::spindle
