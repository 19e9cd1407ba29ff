// How full a rank's memory is over an iteration.
//
// States, boundary and library are there all the time. The stash of a micro-batch is there from its forward pass to the
// end of its backward pass, the workspace while a pass runs. If backward comes in two parts, the stash stays until the
// second has ended, and what the first part leaves for it is there from the first on. A rank reserves the most that
// each region ever needs: what is in use never exceeds it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/simulate/repetition.hpp>

namespace galvatron::simulate {

/// What changes, from one moment until the next point.
struct MemoryPoint {
  Seconds at;
  int in_flight = 0;  ///< passes whose stash is kept; a micro-batch counts once for every chunk
  Bytes stash;
  Bytes workspace;
};

/// In use the whole time.
constexpr Bytes kept_bytes(const PlanStageCost& stage) {
  return stage.memory.states + stage.memory.boundary + stage.memory.library;
}

/// From the spans of a rank of a stage, predicted or measured; the first point is at 0. Moments never fall.
/// @param repetitions  that the spans leave out, of stage number `index`
inline std::vector<MemoryPoint> memory_over_time(const PlanStageCost& stage, std::span<const Span> spans,
                                                 std::span<const Repetition> repetitions = {}, std::size_t index = 0) {
  using schedule::Op;
  std::vector<MemoryPoint> out{{}};
  MemoryPoint now;
  const auto change = [&](Seconds at) {
    now.at = at;
    if (out.back().at == at)
      out.back() = now;
    else
      out.push_back(now);
  };
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& span = spans[i];
    for (const Repetition& repetition : repetitions) {  // those that hold anything are of schedules without chunks
      if (repetition.held == 0 || repetition.first[index] != i) continue;
      now.in_flight += repetition.held;
      now.stash += stage.chunks.front().memory.stash * static_cast<std::int64_t>(repetition.held);
      change(span.begin);
    }
    const Op op = span.instruction.op;
    const bool forward = op == Op::forward;
    const bool frees = op == Op::backward || op == Op::backward_weight;
    if (!forward && !frees && op != Op::backward_input) continue;
    const cost::PassMemory& chunk = stage.chunks[static_cast<std::size_t>(span.instruction.chunk)].memory;
    if (forward) {
      ++now.in_flight;
      now.stash += chunk.stash;
    }
    if (op == Op::backward_input) now.stash += chunk.deferred;
    now.workspace = forward                     ? chunk.forward_workspace
                    : op == Op::backward_weight ? chunk.weights_workspace
                                                : chunk.backward_workspace;
    change(span.begin);
    now.workspace = {};
    if (frees) {
      --now.in_flight;
      now.stash -= chunk.stash + (op == Op::backward_weight ? chunk.deferred : Bytes{});
    }
    change(span.end);
  }
  return out;
}

}  // namespace galvatron::simulate
