// Plans of waves that need no search of Spindle's, and the variants of a problem that a search asks Spindle's planner.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/plan/wave_problem.hpp>
#include <galvatron/spindle/place.hpp>
#include <galvatron/spindle/problem.hpp>

namespace galvatron {

/// Waves with the devices of their parts.
struct PlacedWaves {
  std::vector<spindle::Wave> waves;
  spindle::Placement placement;
};

/// A problem whose passes are whole: a MetaOp is one operator.
inline WaveProblem with_whole_passes(WaveProblem of) {
  for (std::size_t m = 0; m < of.runs.size(); ++m) {
    const double operators = std::exchange(of.runs[m].operators, 1);
    of.runs[m].leading = 0;
    of.problem.metaops[m].operators = 1;
    for (double& seconds : of.problem.metaops[m].curve.seconds) seconds *= operators;
    spindle::Sizes& sizes = of.terms.sizes[m];
    for (double* bytes : {&sizes.kept_bytes, &sizes.gradient_bytes, &sizes.state_bytes}) *bytes *= operators;
  }
  return of;
}

/// A problem whose parts take powers of two of devices.
inline WaveProblem on_powers_of_two(WaveProblem of) {
  for (spindle::MetaOp& metaop : of.problem.metaops) {
    spindle::Curve all;
    std::swap(all, metaop.curve);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (std::has_single_bit(static_cast<unsigned>(all.devices[i]))) metaop.curve.add(all.devices[i], all.seconds[i]);
  }
  return of;
}

/// Moves parts to blocks of neighbouring devices, in the waves in which all find one.
inline void place_in_blocks(int devices, spindle::Placement& placement) {
  for (auto& parts : placement) {
    std::vector<int> sizes;
    for (const auto& part : parts) sizes.push_back(static_cast<int>(part.size()));
    auto blocks = parts;
    if (detail::align(blocks, sizes, devices)) parts = std::move(blocks);
  }
}

namespace detail {

inline std::vector<int> range(int first, int count) {
  std::vector<int> out;
  for (int i = 0; i < count; ++i) out.push_back(first + i);
  return out;
}

/// The most devices of at most so many that a MetaOp can use; 0: none.
inline int usable(const spindle::MetaOp& metaop, int devices) {
  int out = 0;
  for (const int n : metaop.curve.devices)
    if (n <= devices) out = n;
  return out;
}
inline double task_seconds(const WaveProblem& of, int task, int devices) {
  double out = 0;
  for (std::size_t m = 0; m < of.runs.size(); ++m) {
    if (of.runs[m].task != task) continue;
    const spindle::MetaOp& metaop = of.problem.metaops[m];
    const int n = usable(metaop, devices);
    if (n == 0) return 0;
    out += metaop.operators * metaop.curve.seconds[metaop.curve.find(n)];
  }
  return out;
}
/// Every task's passes on a group of so many devices, one after the other.
inline PlacedWaves side_by_side(const WaveProblem& of, const std::vector<int>& devices) {
  PlacedWaves out;
  std::vector<std::size_t> next(devices.size(), 0);  // wave of each task
  for (std::size_t m = 0; m < of.runs.size(); ++m) {
    const auto task = static_cast<std::size_t>(of.runs[m].task);
    int first = 0;
    for (std::size_t t = 0; t < task; ++t) first += devices[t];
    const std::size_t wave = next[task]++;
    if (out.waves.size() == wave) out.waves.emplace_back(), out.placement.emplace_back();
    const int n = usable(of.problem.metaops[m], devices[task]);
    out.waves[wave].parts.push_back({static_cast<int>(m), n, of.runs[m].operators});
    out.placement[wave].push_back(range(first, n));
  }
  return out;
}

}  // namespace detail

/// MetaOps one after the other, each on its fastest number of devices.
inline PlacedWaves in_order(const WaveProblem& of) {
  PlacedWaves out;
  for (int m = 0; m < static_cast<int>(of.runs.size()); ++m) {
    const int devices = of.problem.metaops[static_cast<std::size_t>(m)].curve.devices.back();
    out.waves.push_back({{{m, devices, of.runs[static_cast<std::size_t>(m)].operators}}});
    out.placement.push_back({detail::range(0, devices)});
  }
  return out;
}

/// The same with equally many devices for all passes through a component; none where their batches have none in
/// common.
inline std::optional<PlacedWaves> in_order_on_equal_devices(const WaveProblem& of) {
  PlacedWaves out;
  for (int m = 0; m < static_cast<int>(of.runs.size()); ++m) {
    const MetaOpRun& run = of.runs[static_cast<std::size_t>(m)];
    std::optional<int> most;
    for (const int n : of.problem.metaops[static_cast<std::size_t>(m)].curve.devices) {
      bool common = true;
      for (std::size_t other = 0; other < of.runs.size(); ++other)
        common = common && (of.runs[other].component != run.component ||
                            std::ranges::find(of.problem.metaops[other].curve.devices, n) !=
                                of.problem.metaops[other].curve.devices.end());
      if (common) most = n;
    }
    if (!most) return std::nullopt;
    out.waves.push_back({{{m, *most, run.operators}}});
    out.placement.push_back({detail::range(0, *most)});
  }
  return out;
}

/// A group of devices for each task: the slowest task gets more until there are none left. None where a task does
/// not run on its share, or where there are more tasks than devices.
inline std::optional<PlacedWaves> in_groups(const WaveProblem& of, std::size_t task_count) {
  const auto tasks = static_cast<int>(task_count);
  std::vector<int> devices(task_count, 1);
  int left = of.problem.devices;
  for (int task = 0; task < tasks; ++task) {
    int& own = devices[static_cast<std::size_t>(task)];
    while (own <= left && detail::task_seconds(of, task, own) == 0) ++own;
    left -= own;
  }
  if (left < 0) return std::nullopt;
  for (bool grows = true; grows;) {
    int slowest = 0;
    for (int task = 1; task < tasks; ++task)
      if (detail::task_seconds(of, task, devices[static_cast<std::size_t>(task)]) >
          detail::task_seconds(of, slowest, devices[static_cast<std::size_t>(slowest)]))
        slowest = task;
    int& own = devices[static_cast<std::size_t>(slowest)];
    const double now = detail::task_seconds(of, slowest, own);
    int more = 1;
    while (more <= left && !(detail::task_seconds(of, slowest, own + more) < now)) ++more;
    grows = more <= left;
    if (grows) own += more, left -= more;
  }
  return detail::side_by_side(of, devices);
}

}  // namespace galvatron
