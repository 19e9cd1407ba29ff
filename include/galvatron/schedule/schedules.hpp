// The pipeline schedules: functions that write programs.
#pragma once

#include <algorithm>
#include <string>
#include <utility>

#include <galvatron/core/error.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::schedule {

using galvatron::ScheduleKind;

/// The number of micro-batches whose stashes stage `stage` of `stages` holds at once, at most.
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

/// Zero bubble, handcrafted schedule 1 (Qi et al. 2024, arXiv 2401.10241, section 3.1): 1F1B whose backward comes in
/// two parts. The gradient of the input goes on at once; stage s puts off the gradients of its weights by s
/// micro-batches, so that the last stages answer sooner, and does them where it would wait (capital letters):
///
///   stage 0  0 1 2 . . a A 3 b B c C d D      in flight: min(P, m) on every stage, as on 1F1B's first
///   stage 1  . 0 1 . a 2 b A 3 c B d C D
///   stage 2  . . 0 a 1 b 2 c A 3 d B C D      idle (P - 1) (f + b - w), if w is at most f and b
inline Program zero_bubble_h1(int stages, int microbatches) {
  Program program;
  for (int stage = 0; stage < stages; ++stage) {
    StageProgram own;
    const int ahead = std::min(stages - 1 - stage, microbatches - 1);
    for (int i = 0; i < microbatches + ahead; ++i) {
      if (i < microbatches) detail::push_forward(own, stage, stages, i);
      if (i < ahead) continue;
      const int backward = i - ahead;
      if (stage + 1 < stages) own.push_back({Op::receive_gradient, backward});
      own.push_back({Op::backward_input, backward});
      if (stage > 0) own.push_back({Op::send_gradient, backward});
      if (backward >= stage) own.push_back({Op::backward_weight, backward - stage});
    }
    for (int i = std::max(0, microbatches - stage); i < microbatches; ++i) own.push_back({Op::backward_weight, i});
    own.push_back({Op::reduce_gradients});
    own.push_back({Op::step});
    program.push_back(std::move(own));
  }
  return program;
}

/// Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2): a stage has `virtual_stages` chunks of
/// layers, and chunk c of stage s is the virtual stage c P + s. Groups of P micro-batches go through the chunks in
/// turn. Every chunk has buffers of its own for what it sends. The bubble is 1 / v of 1F1B's:
///
///   (m + (P - 1) / v) (f + b) in all, f and b those of a stage, (P - 1) / v (f + b) of it idle
///
/// `microbatches` is a multiple of `stages`.
inline Program interleaved(int stages, int microbatches, int virtual_stages) {
  Program program;
  const int passes = microbatches * virtual_stages;
  for (int stage = 0; stage < stages; ++stage) {
    StageProgram own;
    const auto microbatch_of = [&](int pass) { return pass / (stages * virtual_stages) * stages + pass % stages; };
    const auto forward = [&](int pass) {
      const int chunk = pass % (stages * virtual_stages) / stages;
      const int i = microbatch_of(pass);
      if (stage > 0 || chunk > 0) own.push_back({Op::receive_activation, i, chunk});
      own.push_back({Op::forward, i, chunk});
      if (stage + 1 < stages || chunk + 1 < virtual_stages) own.push_back({Op::send_activation, i, chunk});
    };
    const auto backward = [&](int pass) {
      const int chunk = virtual_stages - 1 - pass % (stages * virtual_stages) / stages;
      const int i = microbatch_of(pass);
      if (stage + 1 < stages || chunk + 1 < virtual_stages) own.push_back({Op::receive_gradient, i, chunk});
      own.push_back({Op::backward, i, chunk});
      if (stage > 0 || chunk > 0) own.push_back({Op::send_gradient, i, chunk});
    };
    const int ahead = interleaved_warm_up(stages, stage, microbatches, virtual_stages);
    for (int pass = 0; pass < passes + ahead; ++pass) {
      if (pass < passes) forward(pass);
      if (pass >= ahead) backward(pass - ahead);
    }
    own.push_back({Op::reduce_gradients});
    own.push_back({Op::step});
    program.push_back(std::move(own));
  }
  return program;
}

/// The program of a schedule. Errors (usage): a count below 1, virtual stages with another schedule than the
/// interleaved one, and there fewer than 2 stages or micro-batches that the stages do not divide.
inline Result<Program> make_program(ScheduleKind kind, int stages, int microbatches, int virtual_stages = 1) {
  if (stages < 1 || microbatches < 1 || virtual_stages < 1)
    return usage_error("a pipeline needs at least 1 stage, 1 micro-batch and 1 virtual stage, not " +
                       std::to_string(stages) + ", " + std::to_string(microbatches) + " and " +
                       std::to_string(virtual_stages));
  if (kind != ScheduleKind::interleaved && virtual_stages != 1)
    return usage_error(std::string("schedule ") + name_of(kind) + " has 1 virtual stage, not " +
                       std::to_string(virtual_stages) + ": choose interleaved");
  switch (kind) {
    case ScheduleKind::gpipe:
      return gpipe(stages, microbatches);
    case ScheduleKind::one_f_one_b:
      return one_forward_one_backward(stages, microbatches);
    case ScheduleKind::zb_h1:
      return zero_bubble_h1(stages, microbatches);
    case ScheduleKind::interleaved:
      break;
  }
  if (stages < 2 || microbatches % stages != 0)
    return usage_error(
        "the interleaved schedule needs at least 2 stages and a multiple of them as micro-batches, not " +
        std::to_string(stages) + " and " + std::to_string(microbatches));
  return interleaved(stages, microbatches, virtual_stages);
}

}  // namespace galvatron::schedule
