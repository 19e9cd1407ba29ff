// The critical path of a simulated iteration: the chain of instructions that made it as long as it is, each the cause
// of the next (schedule::Replay).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/simulate/simulation.hpp>

namespace galvatron::simulate {

/// Neighbouring steps on one stage.
struct CriticalSegment {
  std::size_t stage = 0;
  Seconds begin;
  Seconds end;
  std::size_t instructions = 0;  ///< that took time
};

struct CriticalPath {
  std::vector<schedule::SpanIndex> steps;  ///< in Simulation::spans, in the order of time
  std::vector<CriticalSegment> segments;
  StageSeconds seconds;                ///< by activity; waiting is for messages on their way
  std::vector<Seconds> stage_seconds;  ///< of the path, on each stage
};

/// Its steps lie one behind the other and, but for messages on their way and turns that are left out, without a gap.
/// O(instructions that are followed).
inline CriticalPath critical_path(const Simulation& simulation) {
  const std::vector<std::vector<Span>>& followed = simulation.followed_spans();
  CriticalPath out;
  schedule::SpanIndex at;  // that ends last
  for (std::size_t s = 0; s < followed.size(); ++s)
    if (!at.exists() || followed[s].back().end > followed[at.stage][at.span].end)
      at = {static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(followed[s].size() - 1)};
  for (; at.exists(); at = simulation.causes[at.stage][at.span]) out.steps.push_back(at);
  std::reverse(out.steps.begin(), out.steps.end());
  out.stage_seconds.resize(simulation.spans.size());
  for (const schedule::SpanIndex& step : out.steps) {
    const Span& span = simulation.spans[step.stage][step.span];
    if (!(span.end > span.begin)) continue;
    const Seconds whole = seconds_of(simulation.parts, step.stage, span.instruction);
    for_each_share({&followed[step.stage][step.span], 1}, simulation.repetitions, [&](const Span&, Seconds lasted) {
      out.stage_seconds[step.stage] += lasted;
      for (const Piece& piece : pieces_of(simulation.parts, step.stage, span.instruction))
        out.seconds[piece.activity] += lasted * (piece.seconds / whole);
    });
    if (out.segments.empty() || out.segments.back().stage != step.stage)
      out.segments.push_back({step.stage, span.begin, span.end, 0});
    out.segments.back().end = span.end;
    ++out.segments.back().instructions;
  }
  out.seconds[Activity::waiting] = max(Seconds{}, simulation.iteration - out.seconds.busy());
  return out;
}

}  // namespace galvatron::simulate
