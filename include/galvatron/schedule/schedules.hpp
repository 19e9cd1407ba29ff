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

namespace detail {

/// Adds passes [first, last), of which every `period`th is the same for micro-batches that are `step` further: as often
/// as it goes all of them at once, then those that are left.
/// @param write  write(program, pass) appends the instructions of one
template <class Write>
void add_passes(StageBlocks& blocks, std::int64_t first, std::int64_t last, int period, int step, const Write& write) {
  Block whole{{}, std::max<std::int64_t>(0, last - first) / period, step};
  if (whole.repeats > 0)
    for (std::int64_t pass = first; pass < first + period; ++pass) write(whole.once, pass);
  Block rest;
  for (std::int64_t pass = first + whole.repeats * period; pass < last; ++pass) write(rest.once, pass);
  blocks.push_back(std::move(whole));
  blocks.push_back(std::move(rest));
}

inline void add_end(StageBlocks& blocks) { blocks.push_back({{{Op::reduce_gradients}, {Op::step}}}); }

inline void push_forward(StageProgram& program, int stage, int stages, std::int64_t microbatch) {
  const int i = static_cast<int>(microbatch);
  if (stage > 0) program.push_back({Op::receive_activation, i});
  program.push_back({Op::forward, i});
  if (stage + 1 < stages) program.push_back({Op::send_activation, i});
}

inline void push_backward(StageProgram& program, int stage, int stages, std::int64_t microbatch,
                          Op backward = Op::backward) {
  const int i = static_cast<int>(microbatch);
  if (stage + 1 < stages) program.push_back({Op::receive_gradient, i});
  program.push_back({backward, i});
  if (stage > 0) program.push_back({Op::send_gradient, i});
}

// `ahead` forwards first, then a forward and a backward in turn, then the backwards that are left.
inline StageBlocks forwards_ahead(int stage, int stages, std::int64_t microbatches, std::int64_t ahead) {
  const auto pass = [=](StageProgram& program, std::int64_t i) {
    if (i < microbatches) push_forward(program, stage, stages, i);
    if (i >= ahead) push_backward(program, stage, stages, i - ahead);
  };
  StageBlocks blocks;
  add_passes(blocks, 0, ahead, 1, 1, pass);
  add_passes(blocks, ahead, microbatches, 1, 1, pass);
  add_passes(blocks, microbatches, microbatches + ahead, 1, 1, pass);
  add_end(blocks);
  return blocks;
}

inline StageBlocks zero_bubble_h1(int stage, int stages, std::int64_t microbatches) {
  const std::int64_t ahead = std::min<std::int64_t>(stages - 1 - stage, microbatches - 1);
  const auto pass = [=](StageProgram& program, std::int64_t i) {
    if (i < microbatches) push_forward(program, stage, stages, i);
    if (i < ahead) return;
    push_backward(program, stage, stages, i - ahead, Op::backward_input);
    if (i - ahead >= stage) program.push_back({Op::backward_weight, static_cast<int>(i - ahead - stage)});
  };
  StageBlocks blocks;
  std::int64_t first = 0;
  const std::int64_t late = ahead + std::min<std::int64_t>(stage, microbatches);  // weight gradients begin
  for (const std::int64_t last :
       {ahead, std::min(late, microbatches), std::max(late, microbatches), microbatches + ahead}) {
    add_passes(blocks, first, last, 1, 1, pass);
    first = std::max(first, last);
  }
  add_passes(
      blocks, std::max<std::int64_t>(0, microbatches - stage), microbatches, 1, 1,
      [](StageProgram& program, std::int64_t i) { program.push_back({Op::backward_weight, static_cast<int>(i)}); });
  add_end(blocks);
  return blocks;
}

inline StageBlocks interleaved(int stage, int stages, std::int64_t microbatches, int virtual_stages) {
  const int group = stages * virtual_stages;
  const std::int64_t passes = microbatches * virtual_stages;
  const auto microbatch_of = [=](std::int64_t pass) { return static_cast<int>(pass / group * stages + pass % stages); };
  const std::int64_t ahead = interleaved_warm_up(stages, stage, static_cast<int>(microbatches), virtual_stages);
  const auto write = [=](StageProgram& own, std::int64_t pass) {
    if (pass < passes) {
      const int chunk = static_cast<int>(pass % group) / stages;
      const int i = microbatch_of(pass);
      if (stage > 0 || chunk > 0) own.push_back({Op::receive_activation, i, chunk});
      own.push_back({Op::forward, i, chunk});
      if (stage + 1 < stages || chunk + 1 < virtual_stages) own.push_back({Op::send_activation, i, chunk});
    }
    if (pass < ahead) return;
    const int chunk = virtual_stages - 1 - static_cast<int>((pass - ahead) % group) / stages;
    const int i = microbatch_of(pass - ahead);
    if (stage + 1 < stages || chunk + 1 < virtual_stages) own.push_back({Op::receive_gradient, i, chunk});
    own.push_back({Op::backward, i, chunk});
    if (stage > 0 || chunk > 0) own.push_back({Op::send_gradient, i, chunk});
  };
  StageBlocks blocks;
  add_passes(blocks, 0, ahead, group, stages, write);
  add_passes(blocks, ahead, passes, group, stages, write);
  add_passes(blocks, passes, passes + ahead, group, stages, write);
  add_end(blocks);
  return blocks;
}

// All stages, every instruction in memory.
template <class Blocks>
Program program_of(int stages, const Blocks& blocks_of_stage) {
  Program program;
  for (int stage = 0; stage < stages; ++stage) program.push_back(written_out(blocks_of_stage(stage)));
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
  return detail::program_of(
      stages, [=](int stage) { return detail::forwards_ahead(stage, stages, microbatches, microbatches - 1); });
}

/// One forward, one backward (PipeDream-Flush, Narayanan et al., 2021): stage s runs P - 1 - s forwards ahead, then a
/// forward and a backward in turn, then the backwards that are left. The same time as GPipe in less memory:
///
///   stage 0  0 1 2 . . . . a a 3 b b . c c . d d      in flight: min(P - s, m) on stage s
///   stage 1  . 0 1 . . a a 2 b b 3 c c . d d . .
///   stage 2  . . 0 a a 1 b b 2 c c 3 d d . . . .
inline Program one_forward_one_backward(int stages, int microbatches) {
  return detail::program_of(stages, [=](int stage) {
    return detail::forwards_ahead(stage, stages, microbatches, std::min(stages - 1 - stage, microbatches - 1));
  });
}

/// Zero bubble, handcrafted schedule 1 (Qi et al. 2024, arXiv 2401.10241, section 3.1): 1F1B whose backward comes in
/// two parts. The gradient of the input goes on at once; stage s puts off the gradients of its weights by s
/// micro-batches, so that the last stages answer sooner, and does them where it would wait (capital letters):
///
///   stage 0  0 1 2 . . a A 3 b B c C d D      in flight: min(P, m) on every stage, as on 1F1B's first
///   stage 1  . 0 1 . a 2 b A 3 c B d C D
///   stage 2  . . 0 a 1 b 2 c A 3 d B C D      idle (P - 1) (f + b - w), if w is at most f and b
inline Program zero_bubble_h1(int stages, int microbatches) {
  return detail::program_of(stages, [=](int stage) { return detail::zero_bubble_h1(stage, stages, microbatches); });
}

/// Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2): a stage has `virtual_stages` chunks of
/// layers, and chunk c of stage s is the virtual stage c P + s. Groups of P micro-batches go through the chunks in
/// turn. Every chunk has buffers of its own for what it sends. The bubble is 1 / v of 1F1B's:
///
///   (m + (P - 1) / v) (f + b) in all, f and b those of a stage, (P - 1) / v (f + b) of it idle
///
/// `microbatches` is a multiple of `stages`.
inline Program interleaved(int stages, int microbatches, int virtual_stages) {
  return detail::program_of(
      stages, [=](int stage) { return detail::interleaved(stage, stages, microbatches, virtual_stages); });
}

/// The blocks of stage `stage` of a schedule: memory that does not grow with the micro-batches. Errors (usage): a count
/// below 1, virtual stages with another schedule than the interleaved one, and there fewer than 2 stages or
/// micro-batches that the stages do not divide.
inline Result<StageBlocks> stage_blocks(ScheduleKind kind, int stages, int stage, int microbatches,
                                        int virtual_stages = 1) {
  if (stages < 1 || microbatches < 1 || virtual_stages < 1)
    return usage_error("a pipeline needs at least 1 stage, 1 micro-batch and 1 virtual stage, not " +
                       std::to_string(stages) + ", " + std::to_string(microbatches) + " and " +
                       std::to_string(virtual_stages));
  if (kind != ScheduleKind::interleaved && virtual_stages != 1)
    return usage_error(std::string("schedule ") + name_of(kind) + " has 1 virtual stage, not " +
                       std::to_string(virtual_stages) + ": choose interleaved");
  switch (kind) {
    case ScheduleKind::gpipe:
      return detail::forwards_ahead(stage, stages, microbatches, microbatches - 1);
    case ScheduleKind::one_f_one_b:
      return detail::forwards_ahead(stage, stages, microbatches, std::min(stages - 1 - stage, microbatches - 1));
    case ScheduleKind::zb_h1:
      return detail::zero_bubble_h1(stage, stages, microbatches);
    case ScheduleKind::interleaved:
      break;
  }
  if (stages < 2 || microbatches % stages != 0)
    return usage_error(
        "the interleaved schedule needs at least 2 stages and a multiple of them as micro-batches, not " +
        std::to_string(stages) + " and " + std::to_string(microbatches));
  return detail::interleaved(stage, stages, microbatches, virtual_stages);
}

/// The program of a schedule, every instruction in memory. Errors (usage): those of stage_blocks.
inline Result<Program> make_program(ScheduleKind kind, int stages, int microbatches, int virtual_stages = 1) {
  Program program;
  for (int stage = 0; stage < std::max(1, stages); ++stage) {
    auto blocks = stage_blocks(kind, stages, stage, microbatches, virtual_stages);
    if (!blocks) return tl::unexpected<Error>(std::move(blocks.error()));
    program.push_back(written_out(*blocks));
  }
  return program;
}

}  // namespace galvatron::schedule
