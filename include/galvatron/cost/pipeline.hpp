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
  Seconds weights{};    ///< part of backward that zb-h1 defers, at most forward and at most the rest of backward
  friend constexpr bool operator==(const StageSeconds&, const StageSeconds&) = default;
};

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
  return {1, m - 1, 0};
}

/// Every stage on devices of its own: see PipelineWeights. What stages do once an iteration they do side by side. GPipe
/// drains between the passes: its forwards and backwards have maxima of their own.
inline Seconds pipeline_seconds(ScheduleKind kind, std::span<const StageSeconds> stages, int microbatches,
                                int virtual_stages = 1) {
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
/// all ranks at work. Replays gpipe or 1f1b. Of more than max(256, 16 P) micro-batches so many are replayed: each of
/// the others takes the mean of their second half, when the pipeline has long been full.
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
  const auto replayed = [&](int m) {
    return schedule::replay(value_or_throw(schedule::make_program(kind, count, m)), times, {sharing}).makespan;
  };
  const int most = std::max(256, 16 * count);
  if (microbatches <= most) return replayed(microbatches);
  const Seconds all = replayed(most);
  const int half = most / 2;
  return all + (all - replayed(half)) * (static_cast<double>(microbatches - most) / (most - half));
}

}  // namespace galvatron::cost
