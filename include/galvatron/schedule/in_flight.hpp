// What the orders of schedules.hpp keep in memory, in closed form: tests/schedule/schedules.cpp counts it in the
// programs.
#pragma once

#include <cstdint>

#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron {

/// Micro-batches by which the weight gradients of chunk `chunk` of stage `stage` follow their input gradients; in zb-v
/// those of the end of a step, where earlier ones follow at once. Source: Qi et al. 2024 (arXiv 2401.10241), sections 3
/// and 6.
constexpr int weights_late(ScheduleKind kind, int stage, int chunk) {
  if (kind == ScheduleKind::zb_2p) return 2 * stage;
  return kind == ScheduleKind::zb_v && chunk == 1 && stage > 0 ? stage - 1 : stage;
}

/// Micro-batches that chunk `chunk` of stage `stage` keeps at one time between the two parts of their backward, of
/// `microbatches`; 0 where it comes in one.
constexpr int microbatches_deferred(ScheduleKind kind, int stage, int microbatches, int chunk = 0) {
  if (!splits_backward(kind)) return 0;
  const int late = weights_late(kind, stage, chunk);
  return late + 1 < microbatches ? late + 1 : microbatches;
}

/// Passes of chunks that stage `stage` of an interleaved pipeline runs ahead before its first backward. Source:
/// Narayanan et al. 2021 (arXiv 2104.04473), section 2.2, as in Megatron-LM.
constexpr int interleaved_warm_up(int stages, int stage, int microbatches, int virtual_stages) {
  const std::int64_t passes = std::int64_t{microbatches} * virtual_stages;
  const int ahead = 2 * (stages - 1 - stage) + (virtual_stages - 1) * stages;
  return ahead < passes ? ahead : static_cast<int>(passes);
}

namespace detail {

/// Passes of chunk `chunk` among the first `passes` passes of an interleaved stage: groups of P micro-batches go
/// through the chunks in turn.
constexpr int passes_of_chunk(int passes, int stages, int virtual_stages, int chunk) {
  const int group = stages * virtual_stages;
  const int rest = passes % group - chunk * stages;
  return passes / group * stages + (rest < 0 ? 0 : rest < stages ? rest : stages);
}

}  // namespace detail

/// Chunks whose stash stage `stage` of an interleaved pipeline keeps at one time, where they take memory when they need
/// it: as many as it is ahead, and the one that works. They are those of its first passes: of chunk `chunk`.
constexpr int interleaved_in_flight(int stages, int stage, int microbatches, int virtual_stages, int chunk) {
  const std::int64_t passes = std::int64_t{microbatches} * virtual_stages;
  const int ahead = interleaved_warm_up(stages, stage, microbatches, virtual_stages) + 1;
  const int held = ahead < passes ? ahead : static_cast<int>(passes);
  return detail::passes_of_chunk(held, stages, virtual_stages, chunk);
}

/// Micro-batches whose stash stage `stage` of `stages` keeps at one time, of `microbatches`; with virtual stages, of
/// its chunk `chunk`, for a number of micro-batches that the stages divide. zb-h1 keeps P on every stage, what 1F1B
/// keeps on the first: later stages defer their weight gradients (Qi et al. 2024, section 3.1). So do those of zb-2p,
/// which keeps 2 P - 1 (section 3.2). zb-v keeps 2 P + 1 passes of half a stage (section 6).
constexpr int microbatches_in_flight(ScheduleKind kind, int stages, int stage, int microbatches, int virtual_stages = 1,
                                     int chunk = 0) {
  if (kind == ScheduleKind::gpipe) return microbatches;
  const auto at_most = [microbatches](int held) { return held < microbatches ? held : microbatches; };
  if (kind == ScheduleKind::zb_h1) return at_most(stages);
  if (kind == ScheduleKind::zb_2p) return at_most(2 * stages - 1);
  if (kind == ScheduleKind::zb_v) return at_most(chunk == 0 ? 2 * stages - stage : stage + 1);
  if (kind == ScheduleKind::one_f_one_b) return at_most(stages - stage);
  // After f forwards of the steady phase there were f - ahead - 1 backwards, and these numbers grow in straight lines
  // between multiples of P: the most is at one of them, within a period of P v.
  const std::int64_t passes = std::int64_t{microbatches} * virtual_stages;
  const int ahead = interleaved_warm_up(stages, stage, microbatches, virtual_stages) + 1;
  int most = 0;
  const auto look = [&](int forwards) {
    const int backwards = forwards > ahead ? forwards - ahead : 0;
    const int held = detail::passes_of_chunk(forwards, stages, virtual_stages, chunk) -
                     detail::passes_of_chunk(backwards, stages, virtual_stages, virtual_stages - 1 - chunk);
    most = held > most ? held : most;
  };
  for (int k = 0; k <= 2 * virtual_stages + 2; ++k)
    for (const int forwards : {k * stages, ahead + k * stages})
      look(forwards < passes ? forwards : static_cast<int>(passes));
  return most;
}

}  // namespace galvatron
