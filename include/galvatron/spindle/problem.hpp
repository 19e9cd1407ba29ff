// Problem: the MetaOps of a step with their scaling curves, and plans of waves, as plain numbers.
//
// Spindle (Wang et al., ASPLOS'25). A step of several tasks is a graph of operators. Equal operators in a row are a
// MetaOp. MetaOps run in waves, one after the other: in a wave each of some MetaOps has devices of its own and runs
// some of its operators.
//
//     seconds of a part    operators * T_m(devices)
//     seconds of a wave    its longest part
//     seconds of a step    the sum over its waves                     to be minimised
//     devices              sum over the parts of a wave <= N
//     precedence           a MetaOp starts in a wave after those in which its predecessors end
//
// Optional terms: seconds between two waves, and seconds for moving activations where the number of devices changes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/spindle/curve.hpp>

namespace galvatron::spindle {

/// Equal operators in a row: one task's pass through a run of equal layers.
struct MetaOp {
  std::string name;
  int operators = 1;
  Curve curve;             ///< of one operator
  std::vector<int> after;  ///< predecessors, by their numbers
  int level = 0;           ///< above those of its predecessors
  double transfer = 0;     ///< seconds in which its output, and later that one's gradient, pass through one device
};

struct Problem {
  int devices = 1;
  std::vector<MetaOp> metaops;
  double wave_overhead = 0;  ///< seconds of a wave beside its parts

  [[nodiscard]] std::size_t count() const { return metaops.size(); }
  [[nodiscard]] int levels() const {
    int out = 0;
    for (const MetaOp& metaop : metaops) out = std::max(out, metaop.level + 1);
    return out;
  }
};

/// What one MetaOp does in a wave.
struct Part {
  int metaop = 0;
  int devices = 0;
  int operators = 0;

  friend bool operator==(const Part&, const Part&) = default;
};

struct Wave {
  std::vector<Part> parts;
  double seconds = 0;  ///< of the longest part
};

/// How a step is executed, and how good that is at least.
struct Plan {
  std::vector<Wave> waves;
  double seconds = 0;
  double bound = 0;     ///< no schedule of the MetaOps takes less, in waves or not
  bool proven = false;  ///< no plan of waves takes less
};

inline double part_seconds(const Problem& problem, const Part& part) {
  const Curve& curve = problem.metaops[static_cast<std::size_t>(part.metaop)].curve;
  return part.operators * curve.seconds[curve.find(part.devices)];
}

inline double wave_seconds(const Problem& problem, const std::vector<Part>& parts) {
  double out = 0;
  for (const Part& part : parts) out = std::max(out, part_seconds(problem, part));
  return out;
}

/// Seconds of waves alone.
inline double waves_seconds(const std::vector<Wave>& waves) {
  double out = 0;
  for (const Wave& wave : waves) out += wave.seconds;
  return out;
}

/// Whether activations take time to move.
inline bool has_transfers(const Problem& problem) {
  return std::ranges::any_of(problem.metaops, [](const MetaOp& metaop) { return metaop.transfer > 0; });
}

/// Seconds before a wave in which the outputs that it reads move: from n to m devices each of the fewer ones passes its
/// share. Where the number stays, the devices can stay too.
/// @param last  devices of the last part of each MetaOp so far, 0 for none
inline double transfer_seconds(const Problem& problem, const std::vector<int>& last, const std::vector<Part>& parts) {
  double out = 0;
  const auto move = [&](int metaop, int to) {
    const int from = last[static_cast<std::size_t>(metaop)];
    if (from != 0 && from != to)
      out = std::max(out, problem.metaops[static_cast<std::size_t>(metaop)].transfer / std::min(from, to));
  };
  for (const Part& part : parts) {
    if (last[static_cast<std::size_t>(part.metaop)] != 0)
      move(part.metaop, part.devices);
    else
      for (const int before : problem.metaops[static_cast<std::size_t>(part.metaop)].after) move(before, part.devices);
  }
  return out;
}

/// Seconds of waves with their overheads and transfers.
inline double step_seconds(const Problem& problem, const std::vector<Wave>& waves) {
  double out = 0;
  std::vector<int> last(problem.count(), 0);
  const bool moves = has_transfers(problem);
  for (const Wave& wave : waves) {
    out += wave.seconds + problem.wave_overhead + (moves ? transfer_seconds(problem, last, wave.parts) : 0);
    for (const Part& part : wave.parts) last[static_cast<std::size_t>(part.metaop)] = part.devices;
  }
  return out;
}

/// The depth of each node of a graph: the longest way to it. Empty where there is a cycle.
/// @param after  predecessors of each node, numbers of nodes
inline std::vector<int> depths_of(const std::vector<std::vector<int>>& after) {
  std::vector<int> waiting(after.size());
  std::vector<std::vector<int>> successors(after.size());
  std::vector<int> ready;
  for (std::size_t i = 0; i < after.size(); ++i) {
    waiting[i] = static_cast<int>(after[i].size());
    for (const int before : after[i]) successors[static_cast<std::size_t>(before)].push_back(static_cast<int>(i));
    if (after[i].empty()) ready.push_back(static_cast<int>(i));
  }
  std::vector<int> out(after.size(), 0);
  for (std::size_t next = 0; next < ready.size(); ++next) {
    const auto at = static_cast<std::size_t>(ready[next]);
    for (const int follower : successors[at]) {
      const auto f = static_cast<std::size_t>(follower);
      out[f] = std::max(out[f], out[at] + 1);
      if (--waiting[f] == 0) ready.push_back(follower);
    }
  }
  if (ready.size() != after.size()) out.clear();
  return out;
}

/// What is wrong with a problem, in one line; empty where nothing is.
inline std::string problem_of(const Problem& problem) {
  using galvatron::detail::one_line;
  if (problem.devices < 1 || problem.devices > most_devices)
    return text_of("there must be 1 to ", most_devices, " devices, not ", problem.devices);
  if (problem.metaops.empty()) return "there is no MetaOp";
  std::vector<std::vector<int>> after;
  for (std::size_t i = 0; i < problem.count(); ++i) {
    const MetaOp& metaop = problem.metaops[i];
    const std::string name = text_of("MetaOp \"", one_line(metaop.name, 40), "\"");
    if (metaop.operators < 1) return name + ": it has no operators";
    if (metaop.curve.size() == 0) return name + ": no number of devices is valid for it";
    if (metaop.curve.devices.back() > problem.devices) return name + ": its curve has more devices than there are";
    for (const int before : metaop.after)
      if (before < 0 || static_cast<std::size_t>(before) >= problem.count()) return name + ": a predecessor is unknown";
    after.push_back(metaop.after);
  }
  if (depths_of(after).empty()) return "the MetaOps wait for each other in a cycle";
  for (const MetaOp& metaop : problem.metaops)
    for (const int before : metaop.after) {
      const MetaOp& earlier = problem.metaops[static_cast<std::size_t>(before)];
      if (earlier.level >= metaop.level)
        return text_of("MetaOp \"", one_line(metaop.name, 40), "\": its level ", metaop.level,
                       " must be above that of its predecessor \"", one_line(earlier.name, 40), "\", ", earlier.level);
    }
  return "";
}

/// Why waves are no plan of a problem, in one line: devices, precedence or operators; empty where they are one.
inline std::string wrong_with(const Problem& problem, const std::vector<Wave>& waves) {
  std::vector<int> left;
  for (const MetaOp& metaop : problem.metaops) left.push_back(metaop.operators);
  for (std::size_t w = 0; w < waves.size(); ++w) {
    const std::string wave = text_of("wave ", w);
    std::vector<int> now = left;
    std::int64_t devices = 0;
    for (const Part& part : waves[w].parts) {
      const auto m = static_cast<std::size_t>(part.metaop);
      if (part.metaop < 0 || m >= problem.count()) return wave + ": a part is of no MetaOp";
      const MetaOp& metaop = problem.metaops[m];
      const std::string name = text_of(wave, ": \"", galvatron::detail::one_line(metaop.name, 40), "\"");
      if (metaop.curve.find(part.devices) == metaop.curve.size())
        return text_of(name, ": ", part.devices, " devices are not valid");
      if (now[m] != left[m]) return name + " has two parts";
      if (part.operators < 1 || part.operators > left[m])
        return text_of(name, ": ", part.operators, " operators of ", left[m]);
      for (const int before : metaop.after)
        if (left[static_cast<std::size_t>(before)] > 0) return name + " starts before its predecessors end";
      now[m] -= part.operators;
      devices += part.devices;
    }
    if (devices > problem.devices) return text_of(wave, ": ", devices, " devices of ", problem.devices);
    left = now;
  }
  for (std::size_t m = 0; m < left.size(); ++m)
    if (left[m] > 0)
      return text_of("\"", galvatron::detail::one_line(problem.metaops[m].name, 40), "\": ", left[m],
                     " operators are in no wave");
  return "";
}

}  // namespace galvatron::spindle
