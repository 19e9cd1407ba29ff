// The time of an iteration from the times of its stages: a formula where each stage has devices of its own, which is
// the replay of the schedule's program on equal stages (tests/cost/pipeline.cpp); the replay where stages share cores.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/schedule/schedules.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::cost {

/// What one rank of a stage does: seconds of a micro-batch, and once an iteration. On a machine where ranks share cores
/// these are times with every rank at work.
struct StageSeconds {
  Seconds forward;
  Seconds backward;
  Seconds synchronise;  ///< gradients, after the last micro-batch
  Seconds update;       ///< optimizer, after all stages have synchronised
  Seconds weights{};    ///< part of backward that may be deferred: see deferrable
  friend constexpr bool operator==(const StageSeconds&, const StageSeconds&) = default;
};

/// Of the gradients of weights of a layer those that shorten a pipeline when they are deferred; what is deferred beyond
/// that goes through all stages in any case. At most as long as forward, and as the rest of backward; in zb-2p, which
/// defers twice as many, as half of that.
/// @param backward  with the weights
constexpr Seconds deferrable(ScheduleKind kind, Seconds forward, Seconds backward, Seconds weights) {
  return min(weights, min(forward, backward * (kind == ScheduleKind::zb_2p ? 1.0 / 3 : 0.5)));
}

/// How much the parts of stages count in an iteration of a schedule:
///
///     fill_drain sum_i (T_i - deferred W_i) + steady max_i T_i + max_i (per-iteration cost)
///
/// with T_i = forward_i + backward_i and W_i = weights_i of stage i, seconds of a micro-batch.
///
///     schedule      fill_drain steady     deferred
///     gpipe, 1f1b   1          m - 1      0                          Galvatron (arXiv 2211.13878), section 3.3
///     interleaved   1 / v      m - 1/v    0                          bubble (P-1)/(v m): Narayanan et al.
///                                                                    (arXiv 2104.04473), section 2.2
///     zb-h1         (P-1) / P  m          1 + (min(m, P)-1)/(P-1)    bubble (P-1)(t_F + t_B - t_W): Qi et al.
///                                                                    (arXiv 2401.10241), section 3.1, for m >= P
///     zb-2p         (P-1) / P  m          1 + (min(m, 2P-1)-1)/(P-1) bubble (P-1)(t_F + t_B - 2 t_W): section 3.2,
///                                                                    for m >= 2P - 1
///     zb-v          0          m          0                          at least; pipeline_seconds replays it
///
/// The paper's zb-2p has no bubble where t_F = t_B = t_W, since its stages begin the next step one after the other and
/// correct an update afterwards. Here a step ends for all stages together, when the norm of all gradients is known, and
/// the first forwards of a step, (P-1) t_F, go through all stages in any case: deferrable keeps to that.
///
/// The sources' formulas are for equal stages; for uneven ones filling and draining take the mean of the stages.
/// Virtual stages of a stage are taken to be alike: simulated, iterations take up to 15 % more where some have twice
/// the layers of others, and 0 to 6 % less where fewer than P lack a layer (tests/simulate/simulation.cpp).
struct PipelineWeights {
  double fill_drain = 1;  ///< how often the sum of all stages counts
  double steady = 0;      ///< how often the slowest stage counts
  double deferred = 0;
};

constexpr PipelineWeights pipeline_weights(ScheduleKind kind, int stages, int microbatches, int virtual_stages = 1) {
  const double m = microbatches;
  const double p = stages;
  if (kind == ScheduleKind::interleaved) return {1.0 / virtual_stages, m - 1.0 / virtual_stages, 0};
  if (kind == ScheduleKind::zb_h1 && stages > 1) return {(p - 1) / p, m, 1 + (m < p ? m - 1 : p - 1) / (p - 1)};
  if (kind == ScheduleKind::zb_2p && stages > 1)
    return {(p - 1) / p, m, 1 + (m < 2 * p - 1 ? m - 1 : 2 * p - 2) / (p - 1)};
  if (kind == ScheduleKind::zb_v) return {0, m, 0};
  return {1, m - 1, 0};
}

/// Replayed iterations of a program: of more than `most` micro-batches so many are replayed, and each of the others
/// takes the mean of their second half, when the pipeline has long been full.
/// @param replayed  replayed(m): seconds of m micro-batches
template <class Replayed>
Seconds followed_seconds(int microbatches, int most, const Replayed& replayed) {
  if (microbatches <= most) return replayed(microbatches);
  const Seconds all = replayed(most);
  const int half = most / 2;
  return all + (all - replayed(half)) * (static_cast<double>(microbatches - most) / (most - half));
}

/// zb-v, whose turns have no sum of passes for any lengths: the replay of its program, both chunks of a stage alike. Of
/// many micro-batches it is off by 1 % at most where the passes of stages differ twentyfold, by 0.2 % in 99 of 100.
inline Seconds v_pipeline_seconds(std::span<const StageSeconds> stages, int microbatches) {
  using schedule::Op;
  const int count = static_cast<int>(stages.size());
  std::vector<schedule::StageTimes> times(stages.size());
  Seconds once;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const StageSeconds& stage = stages[i];
    times[i][Op::forward] = stage.forward * 0.5;
    times[i][Op::backward_input] = (stage.backward - stage.weights) * 0.5;
    times[i][Op::backward_weight] = stage.weights * 0.5;
    once = max(once, stage.synchronise + stage.update);
  }
  return once + followed_seconds(microbatches, 8 * count + 32, [&](int m) {
           return schedule::replay(value_or_throw(schedule::make_program(ScheduleKind::zb_v, count, m, 2)), times)
               .makespan;
         });
}

/// Every stage on devices of its own: see PipelineWeights. What stages do once an iteration they do side by side. GPipe
/// drains between the passes: its forwards and backwards have maxima of their own.
inline Seconds pipeline_seconds(ScheduleKind kind, std::span<const StageSeconds> stages, int microbatches,
                                int virtual_stages = 1) {
  if (kind == ScheduleKind::zb_v && stages.size() > 1) return v_pipeline_seconds(stages, microbatches);
  const PipelineWeights weights = pipeline_weights(kind, static_cast<int>(stages.size()), microbatches, virtual_stages);
  Seconds sum;
  Seconds slowest;
  Seconds forward;
  Seconds backward;
  Seconds once;
  for (const StageSeconds& stage : stages) {
    sum += stage.forward + stage.backward - stage.weights * weights.deferred;
    slowest = max(slowest, stage.forward + stage.backward);
    forward = max(forward, stage.forward);
    backward = max(backward, stage.backward);
    once = max(once, stage.synchronise + stage.update);
  }
  const Seconds steady = kind == ScheduleKind::gpipe ? forward + backward : slowest;
  return sum * weights.fill_drain + steady * weights.steady + once;
}

/// True for the schedules that shared_pipeline_seconds replays.
constexpr bool is_followed_on_shared_cores(ScheduleKind kind) {
  return kind == ScheduleKind::gpipe || kind == ScheduleKind::one_f_one_b;
}

/// Stages that share cores: a stage that waits leaves its cores to those that work. The stages' seconds are those with
/// all ranks at work. Replays gpipe or 1f1b, of at most max(256, 16 P) micro-batches: see followed_seconds.
inline Seconds shared_pipeline_seconds(ScheduleKind kind, std::span<const StageSeconds> stages, int microbatches,
                                       const schedule::CoreSharing& sharing) {
  using schedule::Op;
  const int count = static_cast<int>(stages.size());
  const double crowding = sharing.of_stages(stages.size()).crowding();
  std::vector<schedule::StageTimes> times(stages.size());
  for (std::size_t i = 0; i < stages.size(); ++i) {
    times[i][Op::forward] = {stages[i].forward.value / crowding};
    times[i][Op::backward] = {stages[i].backward.value / crowding};
    times[i][Op::reduce_gradients] = {stages[i].synchronise.value / crowding};
    times[i][Op::step] = {stages[i].update.value / crowding};
  }
  return followed_seconds(microbatches, std::max(256, 16 * count), [&](int m) {
    return schedule::replay(value_or_throw(schedule::make_program(kind, count, m)), times, {sharing}).makespan;
  });
}

}  // namespace galvatron::cost
