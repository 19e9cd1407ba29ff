// The time of an iteration from the times of its stages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/core_sharing.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::cost {

/// What one rank of a stage does: seconds of a micro-batch, and once an iteration. On a machine where ranks share cores
/// these are times with every rank at work.
struct StageSeconds {
  Seconds forward;
  Seconds backward;
  Seconds synchronise;  ///< gradients, after the last micro-batch
  Seconds update;       ///< optimizer, after all stages have synchronised
  Seconds weights{};    ///< part of backward that zb-h1 puts off, at most forward and at most the rest of backward
  friend constexpr bool operator==(const StageSeconds&, const StageSeconds&) = default;
};

/// How much the parts of stages count in an iteration of a schedule:
///
///     ramp sum_i (T_i - deferred W_i) + turns max_i T_i + max_i (once an iteration)
///
/// with T_i = forward_i + backward_i and W_i = weights_i of stage i, seconds of a micro-batch.
///
///     schedule      ramp       turns      deferred
///     gpipe, 1f1b   1          m - 1      0                          Galvatron (arXiv 2211.13878), section 3.3
///     interleaved   1 / v      m - 1/v    0                          bubble (P-1)/(v m): Narayanan et al.
///                                                                    (arXiv 2104.04473), section 2.2
///     zb-h1         (P-1) / P  m          1 + (min(m, P)-1)/(P-1)    bubble (P-1)(t_F + t_B - t_W): Qi et al.
///                                                                    (arXiv 2401.10241), section 3.1, for m >= P
///
/// The sources' formulas are for equal stages; for uneven ones the ramp is the mean of the stages' ramps. Virtual
/// stages of a stage are taken to be alike: simulated, iterations take up to 15 % more where some have twice the layers
/// of others, and 0 to 6 % less where fewer than P lack a layer (tests/simulate/simulation.cpp).
struct PipelineWeights {
  double ramp = 1;
  double turns = 0;
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
  const Seconds turn = kind == ScheduleKind::gpipe ? forward + backward : slowest;
  return sum * weights.ramp + turn * weights.turns + once;
}

/// True for the schedules that shared_pipeline_seconds follows.
constexpr bool is_followed_on_shared_cores(ScheduleKind kind) {
  return kind == ScheduleKind::gpipe || kind == ScheduleKind::one_f_one_b;
}

namespace detail {

/// The order of passes on one stage: positive k is the forward, negative k the backward of micro-batch |k|, from 1.
inline std::vector<int> pass_order(ScheduleKind kind, int stages, int stage, int microbatches) {
  std::vector<int> order;
  const int ahead = kind == ScheduleKind::gpipe ? microbatches : std::min(stages - 1 - stage, microbatches);
  for (int k = 1; k <= ahead; ++k) order.push_back(k);
  for (int k = ahead + 1; k <= microbatches; ++k) {
    order.push_back(k);
    order.push_back(-(k - ahead));
  }
  for (int k = microbatches - ahead + 1; k <= microbatches; ++k) order.push_back(-k);
  return order;
}

/// shared_pipeline_seconds of all micro-batches, event by event: O(m P N) for N ranks.
inline Seconds followed_pipeline_seconds(ScheduleKind kind, std::span<const StageSeconds> stages, int microbatches,
                                         const CoreSharing& sharing) {
  const int count = static_cast<int>(stages.size());
  struct Progress {
    std::vector<int> order;
    std::size_t next = 0;
    double left = 0;  // of the work at hand, in seconds at full crowding
    bool working = false;
    int inputs_taken = 0;  // out of the buffer of the stage before
    int forwards = 0;
    int gradients_taken = 0;  // out of the buffer of the stage after
    int backwards = 0;
    bool synchronised = false;
    bool updated = false;
  };
  std::vector<Progress> all(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all[static_cast<std::size_t>(i)].order = pass_order(kind, count, i, microbatches);

  CoreLoads loads(sharing, count);
  const double crowd = sharing.crowding(count * sharing.stage_ranks);
  int synchronised = 0;
  const auto begin = [&](std::size_t i, Seconds seconds) {
    all[i].left = seconds.value / crowd;
    all[i].working = true;
    loads.begin(i);
  };
  const auto start_what_can = [&] {
    bool any = false;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Progress& p = all[i];
      if (p.working) continue;
      if (p.next < p.order.size()) {
        const int pass = p.order[p.next];
        const bool last = i + 1 == all.size();
        // A stage takes what has arrived, and then needs its own buffer empty to write the result into.
        if (pass > 0) {
          if (i > 0 && all[i - 1].forwards < pass) continue;
          any |= p.inputs_taken != pass;
          p.inputs_taken = pass;
          if (!last && all[i + 1].inputs_taken < pass - 1) continue;
        } else {
          if ((last ? p.forwards : all[i + 1].backwards) < -pass) continue;
          any |= p.gradients_taken != -pass;
          p.gradients_taken = -pass;
          if (i > 0 && all[i - 1].gradients_taken < -pass - 1) continue;
        }
        begin(i, pass > 0 ? stages[i].forward : stages[i].backward);
        any = true;
      } else if (!p.synchronised) {
        begin(i, stages[i].synchronise);
        any = true;
      } else if (synchronised == count && !p.updated) {  // the norm of all gradients is known
        begin(i, stages[i].update);
        any = true;
      }
    }
    return any;
  };

  double now = 0;
  while (true) {
    while (start_what_can()) {  // what one stage begins may let its neighbour begin
    }
    double step = std::numeric_limits<double>::infinity();
    std::vector<double> slowness(all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].working) {
        slowness[i] = loads.slowness(i);
        step = std::min(step, all[i].left * slowness[i]);
      }
    if (step == std::numeric_limits<double>::infinity()) break;
    now += step;
    for (std::size_t i = 0; i < all.size(); ++i) {
      Progress& p = all[i];
      if (!p.working) continue;
      const double left = p.left * slowness[i] - step;
      p.left = left / slowness[i];
      if (left > 1e-12 * step) continue;
      p.working = false;
      loads.end(i);
      if (p.next == p.order.size()) {
        if (p.synchronised) p.updated = true;
        if (!p.synchronised) ++synchronised;
        p.synchronised = true;
      } else if (p.order[p.next++] > 0) {
        ++p.forwards;
      } else {
        ++p.backwards;
      }
    }
  }
  return {now};
}

}  // namespace detail

/// Stages that share cores: a stage that waits leaves its cores to those that work. The stages' seconds are those with
/// all ranks at work. Follows gpipe or 1f1b event by event. Of more than max(256, 16 P) micro-batches so many are
/// followed: each of the others takes the mean of their second half, when the pipeline has long been full.
inline Seconds shared_pipeline_seconds(ScheduleKind kind, std::span<const StageSeconds> stages, int microbatches,
                                       const CoreSharing& sharing) {
  const int most = std::max(256, 16 * static_cast<int>(stages.size()));
  const auto followed = [&](int m) { return detail::followed_pipeline_seconds(kind, stages, m, sharing); };
  if (microbatches <= most) return followed(microbatches);
  const Seconds all = followed(most);
  const int half = most / 2;
  return all + (all - followed(half)) * (static_cast<double>(microbatches - most) / (most - half));
}

}  // namespace galvatron::cost
