// The pipeline schedules: functions that write programs.
#pragma once

#include <algorithm>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::schedule {

using galvatron::ScheduleKind;

/// Is there a program for it?
constexpr bool is_available(ScheduleKind kind) { return is_planned(kind); }

/// "gpipe, 1f1b"
inline std::string available_schedules() {
  std::string text;
  for (const ScheduleKind kind : schedule_kinds)
    if (is_available(kind)) text += (text.empty() ? "" : ", ") + std::string(name_of(kind));
  return text;
}

/// The number of micro-batches whose stashes stage `stage` of `stages` holds at once, at most. For available kinds.
constexpr int in_flight(ScheduleKind kind, int stage, int stages, int microbatches) {
  return microbatches_in_flight(kind, stages, stage, microbatches);
}

namespace detail {

inline void push_forward(StageProgram& program, int stage, int stages, int microbatch) {
  if (stage > 0) program.push_back({Op::receive_activation, microbatch});
  program.push_back({Op::forward, microbatch});
  if (stage + 1 < stages) program.push_back({Op::send_activation, microbatch});
}

inline void push_backward(StageProgram& program, int stage, int stages, int microbatch) {
  if (stage + 1 < stages) program.push_back({Op::receive_gradient, microbatch});
  program.push_back({Op::backward, microbatch});
  if (stage > 0) program.push_back({Op::send_gradient, microbatch});
}

// `ahead` forwards first, then a forward and a backward in turn, then the backwards that are left.
inline StageProgram forwards_ahead(int stage, int stages, int microbatches, int ahead) {
  StageProgram program;
  for (int i = 0; i < microbatches + ahead; ++i) {
    if (i < microbatches) push_forward(program, stage, stages, i);
    if (i >= ahead) push_backward(program, stage, stages, i - ahead);
  }
  program.push_back({Op::reduce_gradients});
  program.push_back({Op::step});
  return program;
}

}  // namespace detail

/// GPipe (Huang et al., 2019): all forwards, then all backwards. With 3 stages, 4 micro-batches and a backward that
/// takes twice as long as a forward (digits are forwards, letters backwards of micro-batches 0 1 2 3 = a b c d):
///
///   stage 0  0 1 2 3 . . . . . . a a b b c c d d      in flight: m on every stage
///   stage 1  . 0 1 2 3 . . . a a b b c c d d . .
///   stage 2  . . 0 1 2 3 a a b b c c d d . . . .      (m + P - 1) (f + b) in all, (P - 1) (f + b) of it idle
///
/// Backwards run in the order of the forwards, so gradients are added up in the same order as with 1F1B.
inline Program gpipe(int stages, int microbatches) {
  Program program;
  for (int stage = 0; stage < stages; ++stage)
    program.push_back(detail::forwards_ahead(stage, stages, microbatches, microbatches - 1));
  return program;
}

/// One forward, one backward (PipeDream-Flush, Narayanan et al., 2021): stage s runs P - 1 - s forwards ahead, then a
/// forward and a backward in turn, then the backwards that are left. The same time as GPipe in less memory:
///
///   stage 0  0 1 2 . . . . a a 3 b b . c c . d d      in flight: min(P - s, m) on stage s
///   stage 1  . 0 1 . . a a 2 b b 3 c c . d d . .
///   stage 2  . . 0 a a 1 b b 2 c c 3 d d . . . .
inline Program one_forward_one_backward(int stages, int microbatches) {
  Program program;
  for (int stage = 0; stage < stages; ++stage)
    program.push_back(
        detail::forwards_ahead(stage, stages, microbatches, std::min(stages - 1 - stage, microbatches - 1)));
  return program;
}

/// The program of a schedule. Errors (usage): no program for this kind, or a count below 1.
inline Result<Program> make_program(ScheduleKind kind, int stages, int microbatches) {
  if (stages < 1 || microbatches < 1)
    return usage_error("a pipeline needs at least 1 stage and 1 micro-batch, not " + std::to_string(stages) + " and " +
                       std::to_string(microbatches));
  switch (kind) {
    case ScheduleKind::gpipe:
      return gpipe(stages, microbatches);
    case ScheduleKind::one_f_one_b:
      return one_forward_one_backward(stages, microbatches);
    default:
      break;
  }
  return usage_error(std::string("schedule ") + name_of(kind) +
                     " is not available; available are: " + available_schedules());
}

}  // namespace galvatron::schedule
