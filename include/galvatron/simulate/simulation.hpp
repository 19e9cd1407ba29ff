// A plan replayed: when every stage does what, where its time goes, and how full its memory is.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/schedules.hpp>
#include <galvatron/simulate/parts.hpp>
#include <galvatron/simulate/replay.hpp>

namespace galvatron::simulate {

/// Where the seconds of an iteration go on one stage; they add up to the iteration.
struct StageSeconds {
  std::array<Seconds, activities> by_activity{};

  [[nodiscard]] Seconds& operator[](Activity a) { return by_activity[static_cast<std::size_t>(a)]; }
  [[nodiscard]] Seconds operator[](Activity a) const { return by_activity[static_cast<std::size_t>(a)]; }
  [[nodiscard]] Seconds total() const {
    Seconds sum;
    for (const Seconds s : by_activity) sum += s;
    return sum;
  }
  [[nodiscard]] Seconds busy() const { return total() - (*this)[Activity::waiting]; }
};

struct Simulation {
  PlanParts parts;
  schedule::Program program;
  std::vector<StageTimes> times;         ///< of virtual stages, as the replay got them
  Seconds iteration;                     ///< until the last stage has ended
  std::vector<std::vector<Span>> spans;  ///< of each stage
  std::vector<StageSeconds> stages;

  /// The part of the stages' time in which they wait for each other, in [0, 1).
  [[nodiscard]] double bubble_fraction() const {
    Seconds waiting;
    for (const StageSeconds& stage : stages) waiting += stage[Activity::waiting];
    return iteration.value > 0 ? waiting / iteration / static_cast<double>(stages.size()) : 0;
  }
};

namespace detail {

/// What the replay needs to know of a chunk.
inline StageTimes stage_times(const StageParts& stage, int chunk, double crowding) {
  const auto of = [&](schedule::Op op) { return seconds_of(stage, {op, 0, chunk}) * (1 / crowding); };
  StageTimes t;
  t.forward = of(schedule::Op::forward);
  t.backward = of(schedule::Op::backward);
  t.backward_input = of(schedule::Op::backward_input);
  t.backward_weight = of(schedule::Op::backward_weight);
  t.receive_activation = of(schedule::Op::receive_activation);
  t.receive_gradient = of(schedule::Op::receive_gradient);
  t.reduce_gradients = of(schedule::Op::reduce_gradients);
  t.step = of(schedule::Op::step);
  return t;
}

/// Waits are what lies between the spans, and what is left until the iteration ends.
inline StageSeconds stage_seconds(const StageParts& stage, std::span<const Span> spans, Seconds iteration) {
  StageSeconds out;
  Seconds busy;
  for (const Span& span : spans) {
    const Seconds lasted = span.end - span.begin;
    busy += lasted;
    const std::vector<Piece> pieces = pieces_of(stage, span.instruction);
    Seconds sum;
    for (const Piece& piece : pieces) sum += piece.seconds;
    for (const Piece& piece : pieces) out[piece.activity] += lasted * (piece.seconds / sum);
  }
  out[Activity::waiting] = max(Seconds{}, iteration - busy);
  return out;
}

}  // namespace detail

/// Replays one iteration of a plan, with the prices of cost_of. Stages that share cores are followed on them. Errors
/// (usage): those of cost_of.
inline Result<Simulation> simulate_plan(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  auto parts = parts_of(plan, model, cluster);
  if (!parts) return tl::unexpected<Error>(std::move(parts.error()));
  const int count = static_cast<int>(plan.stages.size());
  auto program = schedule::make_program(plan.schedule, count, plan.microbatches, plan.virtual_stages);
  if (!program) return tl::unexpected<Error>(std::move(program.error()));
  Simulation out;
  out.parts = std::move(*parts);
  out.program = std::move(*program);
  const int stage_ranks = plan.stages.front().rank_count;
  ReplayOptions options{.record = true};
  double crowding = 1;  // prices are those with all ranks at work
  if (cost::stages_share_cores(cluster, count, stage_ranks)) {
    options.sharing = cost::core_sharing(cluster, stage_ranks);
    crowding = options.sharing.crowding(plan.ranks());
  }
  for (int chunk = 0; chunk < plan.virtual_stages; ++chunk)
    for (const StageParts& stage : out.parts.stages) out.times.push_back(detail::stage_times(stage, chunk, crowding));
  Replay replayed = replay(out.program, out.times, options);
  out.iteration = replayed.makespan;
  out.spans = std::move(replayed.spans);
  for (std::size_t s = 0; s < out.spans.size(); ++s)
    out.stages.push_back(detail::stage_seconds(out.parts.stages[s], out.spans[s], out.iteration));
  return out;
}

}  // namespace galvatron::simulate
