// A plan replayed: when every stage does what, where its time goes, and its critical path: the chain of instructions
// that made the iteration as long as it is, each the cause of the next (schedule::Replay).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/schedule/schedules.hpp>
#include <galvatron/simulate/parts.hpp>
#include <galvatron/simulate/repetition.hpp>

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
  PlanCost cost;
  Seconds iteration;                     ///< until the last stage has ended
  std::vector<std::vector<Span>> spans;  ///< of each stage
  std::vector<StageSeconds> stages;
  int followed = 0;                      ///< micro-batches; fewer than the plan has where there are very many
  std::vector<Repetition> repetitions;   ///< what is left out then
  std::vector<std::vector<Span>> alone;  ///< then: the spans as if those that are followed were all
  std::vector<std::vector<schedule::SpanIndex>> causes;  ///< of the spans that are followed

  /// The spans without a gap for what is left out.
  [[nodiscard]] const std::vector<std::vector<Span>>& followed_spans() const { return alone.empty() ? spans : alone; }

  /// The part of the stages' time in which they wait for each other, in [0, 1).
  [[nodiscard]] double bubble_fraction() const {
    Seconds waiting;
    for (const StageSeconds& stage : stages) waiting += stage[Activity::waiting];
    return iteration.value > 0 ? waiting / iteration / static_cast<double>(stages.size()) : 0;
  }
};

namespace detail {

/// Adds what an instruction that lasted so long was spent on.
inline void spread(StageSeconds& out, const PlanCost& cost, std::size_t stage, const schedule::Instruction& instruction,
                   Seconds lasted) {
  const Seconds whole = seconds_of(cost, stage, instruction);
  for (const Piece& piece : pieces_of(cost, stage, instruction))
    out[piece.activity] += lasted * (piece.seconds / whole);
}

/// Waits are what lies between the spans, and what is left until the iteration ends.
inline StageSeconds stage_seconds(const PlanCost& cost, std::size_t stage, std::span<const Span> followed,
                                  std::span<const Repetition> repetitions, Seconds iteration) {
  StageSeconds out;
  Seconds busy;
  for_each_share(followed, repetitions, [&](const Span& span, Seconds lasted) {
    busy += lasted;
    spread(out, cost, stage, span.instruction, lasted);
  });
  out[Activity::waiting] = max(Seconds{}, iteration - busy);
  return out;
}

/// Adds what is left out to a simulation of some of the micro-batches.
inline void count_repetitions(Simulation& simulation, const schedule::Program& whole,
                              const schedule::Program& followed) {
  simulation.alone = simulation.spans;
  simulation.repetitions = repetitions_of(whole.stages, followed.stages, simulation.alone);
  for (std::size_t s = 0; s < whole.stages.size(); ++s)
    simulation.spans[s] =
        shown_spans(whole.stages[s], followed.stages[s], std::move(simulation.spans[s]), simulation.repetitions, s);
  for (const Repetition& repetition : simulation.repetitions) simulation.iteration += repetition.lasted();
}

}  // namespace detail

/// Replays one iteration of a plan, with the prices of cost_of. Stages that share cores are followed on them. Of very
/// many micro-batches some are followed: see Repetition. Errors (usage): those of cost_of; a pipeline of so many stages
/// that too many instructions would have to be followed.
/// @param most  instructions that are followed
inline Result<Simulation> simulate_plan(const Plan& plan, const ModelSpec& model, const ClusterView& cluster,
                                        std::int64_t most = most_followed) {
  auto priced = cost_of(plan, model, cluster);
  if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
  const int count = static_cast<int>(plan.stages.size());
  Simulation out;
  out.followed = followed_microbatches(plan.schedule, count, plan.microbatches, plan.virtual_stages, most);
  if (const std::int64_t needed = std::int64_t{7} * out.followed * count * plan.virtual_stages; needed > most_simulated)
    return usage_error("a simulation of " + std::to_string(count) + " stages, " + std::to_string(plan.microbatches) +
                       " micro-batches and " + std::to_string(plan.virtual_stages) + " virtual stages would follow " +
                       std::to_string(needed) + " instructions, and at most " + std::to_string(most_simulated) +
                       " are followed: simulate a plan of fewer stages (`galvatron cost` prices any)");
  const auto program_of = [&](int microbatches) {
    return schedule::make_program(plan.schedule, count, microbatches, plan.virtual_stages);
  };
  const auto program = program_of(out.followed);
  if (!program) return tl::unexpected<Error>(program.error());
  out.cost = std::move(*priced);
  schedule::ReplayOptions options{.record = true};
  double crowding = 1;  // prices are those with all ranks at work
  const Cluster& first = cluster.group(plan.stages.front().group);
  if (!plan.mixes_groups() && cost::stages_share_cores(first, count, plan.ranks())) {
    options.sharing = cost::core_sharing(first, plan.stage_ranks());
    crowding = options.sharing.crowding();
  }
  std::vector<schedule::StageTimes> times;  // of virtual stages
  for (int v = 0; v < count * plan.virtual_stages; ++v) {
    times.emplace_back();
    const auto stage = static_cast<std::size_t>(stage_of_virtual_stage(plan.schedule, count, v));
    for (std::size_t op = 0; op < schedule::ops; ++op)
      times.back().by_op[op] =
          seconds_of(out.cost, stage, {static_cast<schedule::Op>(op), 0, v / count}) * (1 / crowding);
  }
  schedule::Replay replayed = schedule::replay(*program, times, options);
  out.iteration = replayed.makespan;
  out.spans = std::move(replayed.spans);
  out.causes = std::move(replayed.causes);
  if (out.followed < plan.microbatches)
    detail::count_repetitions(out, value_or_throw(program_of(plan.microbatches)), *program);
  for (std::size_t s = 0; s < out.spans.size(); ++s)
    out.stages.push_back(detail::stage_seconds(out.cost, s, out.followed_spans()[s], out.repetitions, out.iteration));
  return out;
}

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
    for_each_share({&followed[step.stage][step.span], 1}, simulation.repetitions, [&](const Span&, Seconds lasted) {
      out.stage_seconds[step.stage] += lasted;
      detail::spread(out.seconds, simulation.cost, step.stage, span.instruction, lasted);
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
