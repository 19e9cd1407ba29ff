// The critical path of a simulated iteration: the chain of instructions that made it as long as it is.
//
// From the instruction that ended last it goes back to what each had to wait for: the instruction before on the same
// stage, the send of the message that it received, the neighbour that emptied the buffer which it writes, or, before a
// step, the stage that was last to reduce its gradients.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/simulate/simulation.hpp>

namespace galvatron::simulate {

/// An instruction on the path.
struct CriticalStep {
  std::size_t stage = 0;
  std::size_t span = 0;  ///< in Simulation::spans of the stage
};

/// Neighbouring steps on one stage.
struct CriticalSegment {
  std::size_t stage = 0;
  Seconds begin;
  Seconds end;
  std::size_t instructions = 0;  ///< that took time
};

struct CriticalPath {
  std::vector<CriticalStep> steps;  ///< in the order of time
  std::vector<CriticalSegment> segments;
  StageSeconds seconds;                ///< by activity; waiting is for messages on their way
  std::vector<Seconds> stage_seconds;  ///< of the path, on each stage
};

namespace detail {

class PathFinder {
 public:
  explicit PathFinder(const Simulation& simulation)
      : spans_(simulation.followed_spans()), places_(simulation.spans.size()) {
    for (std::size_t s = 0; s < places_.size(); ++s)
      for (std::size_t i = 0; i < spans_[s].size(); ++i) places_[s].emplace(key(spans_[s][i].instruction), i);
    chunks_ = static_cast<int>(simulation.times.size() / std::max<std::size_t>(1, places_.size()));
  }

  std::vector<CriticalStep> find() const {
    std::vector<CriticalStep> out;
    std::optional<CriticalStep> at;
    for (std::size_t s = 0; s < spans_.size(); ++s) at = later(at, last_of(s, spans_[s].size()));
    while (at) {
      out.push_back(*at);
      at = before(*at);
    }
    std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  using Op = schedule::Op;
  using Instruction = schedule::Instruction;

  static std::uint64_t key(const Instruction& i) {
    return (static_cast<std::uint64_t>(i.op) << 56) | (static_cast<std::uint64_t>(i.chunk) << 32) |
           static_cast<std::uint64_t>(i.microbatch);
  }
  [[nodiscard]] const Span& span(CriticalStep at) const { return spans_[at.stage][at.span]; }
  // The first of the two unless the second ended later.
  [[nodiscard]] std::optional<CriticalStep> later(std::optional<CriticalStep> a, std::optional<CriticalStep> b) const {
    return !a || (b && span(*b).end > span(*a).end) ? b : a;
  }
  static std::optional<CriticalStep> last_of(std::size_t stage, std::size_t end) {
    return end > 0 ? std::optional<CriticalStep>({stage, end - 1}) : std::nullopt;
  }
  [[nodiscard]] std::optional<CriticalStep> find(std::size_t stage, const Instruction& instruction) const {
    const auto place = places_[stage].find(key(instruction));
    return place == places_[stage].end() ? std::nullopt : std::optional<CriticalStep>({stage, place->second});
  }
  // The stage and chunk behind or before a virtual stage.
  [[nodiscard]] std::pair<std::size_t, int> neighbour(std::size_t stage, int chunk, bool behind) const {
    const std::size_t count = places_.size();
    if (behind) return stage + 1 < count ? std::pair{stage + 1, chunk} : std::pair{std::size_t{0}, chunk + 1};
    return stage > 0 ? std::pair{stage - 1, chunk} : std::pair{count - 1, chunk - 1};
  }

  [[nodiscard]] std::optional<CriticalStep> before(CriticalStep at) const {
    const Instruction& instruction = span(at).instruction;
    std::optional<CriticalStep> cause = last_of(at.stage, at.span);
    if (cause && span(*cause).end >= span(at).begin) return cause;
    switch (instruction.op) {
      case Op::receive_activation:
      case Op::receive_gradient: {
        const bool gradient = instruction.op == Op::receive_gradient;
        const auto [stage, chunk] = neighbour(at.stage, instruction.chunk, gradient);
        const Op send = gradient ? Op::send_gradient : Op::send_activation;
        return later(cause, find(stage, {send, instruction.microbatch, chunk}));
      }
      case Op::forward:
        return later(cause, emptied(at, Op::send_activation));
      case Op::backward:
      case Op::backward_input:
        return later(cause, emptied(at, Op::send_gradient));
      case Op::step:
        for (std::size_t s = 0; s < places_.size(); ++s)
          if (const auto step = find(s, {Op::step, 0, 0})) cause = later(cause, last_of(s, step->span));
        return cause;
      default:
        return cause;
    }
  }
  // The neighbour's receive of what this chunk sent last.
  [[nodiscard]] std::optional<CriticalStep> emptied(CriticalStep at, Op send) const {
    const int chunk = span(at).instruction.chunk;
    for (std::size_t i = at.span; i-- > 0;) {
      const Instruction& sent = spans_[at.stage][i].instruction;
      if (sent.op != send || sent.chunk != chunk) continue;
      const bool activation = send == Op::send_activation;
      const auto [stage, peer] = neighbour(at.stage, chunk, activation);
      if (peer < 0 || peer >= chunks_) return std::nullopt;
      return find(stage, {activation ? Op::receive_activation : Op::receive_gradient, sent.microbatch, peer});
    }
    return std::nullopt;
  }

  const std::vector<std::vector<Span>>& spans_;
  std::vector<std::unordered_map<std::uint64_t, std::size_t>> places_;
  int chunks_ = 1;
};

}  // namespace detail

/// Its steps lie one behind the other and, but for messages on their way and turns that are left out, without a gap.
/// O(instructions that are followed).
inline CriticalPath critical_path(const Simulation& simulation) {
  CriticalPath out;
  out.steps = detail::PathFinder(simulation).find();
  out.stage_seconds.resize(simulation.spans.size());
  for (const CriticalStep& step : out.steps) {
    const Span& span = simulation.spans[step.stage][step.span];
    if (!(span.end > span.begin)) continue;
    const StageParts& stage = simulation.parts.stages[step.stage];
    const Seconds whole = seconds_of(stage, span.instruction);
    for_each_share({&simulation.followed_spans()[step.stage][step.span], 1}, simulation.repetitions,
                   [&](const Span&, Seconds lasted) {
                     out.stage_seconds[step.stage] += lasted;
                     for (const Piece& piece : pieces_of(stage, span.instruction))
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
