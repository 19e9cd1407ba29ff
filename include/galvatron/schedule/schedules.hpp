// The pipeline schedules: functions that write programs. This is the only place where the order of passes is written.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::schedule {

using galvatron::ScheduleKind;

namespace detail {

using Instructions = std::vector<Instruction>;

/// Of a stage's program. A search prices many short programs, and allocations are most of what they take.
inline constexpr std::size_t most_blocks = 11;

/// Adds passes [first, last), of which every `period`th is the same for micro-batches that are `step` further: as often
/// as it goes all of them at once, then those that are left.
/// @param write  write(instructions, pass) appends the instructions of one
template <class Write>
void add_passes(StageProgram& program, std::int64_t first, std::int64_t last, int period, int step,
                const Write& write) {
  program.reserve(most_blocks);
  Block whole{{}, std::max<std::int64_t>(0, last - first) / period, step};
  if (whole.repeats > 0) {
    whole.once.reserve(static_cast<std::size_t>(period) * 7);  // forward, backward in two parts, four messages
    for (std::int64_t pass = first; pass < first + period; ++pass) write(whole.once, pass);
  }
  Block rest;
  for (std::int64_t pass = first + whole.repeats * period; pass < last; ++pass) write(rest.once, pass);
  program.push_back(std::move(whole));
  program.push_back(std::move(rest));
}

inline void add_end(StageProgram& program) { program.push_back({{{Op::reduce_gradients}, {Op::step}}}); }

/// Chunk `chunk` of a stage, and its passes.
struct Place {
  int chunk = 0;
  bool has_previous = false;
  bool has_next = false;

  Place(ScheduleKind kind, int stages, int stage, int own_chunk, int chunks) : chunk(own_chunk) {
    const int index = virtual_stage_of(kind, stages, stage, chunk);
    has_previous = index > 0;
    has_next = index + 1 < stages * chunks;
  }
  void push_forward(Instructions& out, std::int64_t microbatch) const {
    const int i = static_cast<int>(microbatch);
    if (has_previous) out.push_back({Op::receive_activation, i, chunk});
    out.push_back({Op::forward, i, chunk});
    if (has_next) out.push_back({Op::send_activation, i, chunk});
  }
  void push_backward(Instructions& out, std::int64_t microbatch, Op backward = Op::backward) const {
    const int i = static_cast<int>(microbatch);
    if (has_next) out.push_back({Op::receive_gradient, i, chunk});
    out.push_back({backward, i, chunk});
    if (has_previous) out.push_back({Op::send_gradient, i, chunk});
  }
  void push_weights(Instructions& out, std::int64_t microbatch) const {
    out.push_back({Op::backward_weight, static_cast<int>(microbatch), chunk});
  }
};

// `ahead` forwards first, then a forward and a backward in turn, then the backwards that are left.
inline StageProgram forwards_ahead(int stage, int stages, std::int64_t microbatches, std::int64_t ahead) {
  const auto pass = [=, own = Place(ScheduleKind::one_f_one_b, stages, stage, 0, 1)](Instructions& out,
                                                                                     std::int64_t i) {
    if (i < microbatches) own.push_forward(out, i);
    if (i >= ahead) own.push_backward(out, i - ahead);
  };
  StageProgram program;
  add_passes(program, 0, ahead, 1, 1, pass);
  add_passes(program, ahead, microbatches, 1, 1, pass);
  add_passes(program, microbatches, microbatches + ahead, 1, 1, pass);
  add_end(program);
  return program;
}

/// GPipe (Huang et al., 2019): all forwards, then all backwards. With 3 stages, 4 micro-batches and a backward that
/// takes twice as long as a forward (digits are forwards, letters backwards of micro-batches 0 1 2 3 = a b c d):
///
///   stage 0  0 1 2 3 . . . . . . a a b b c c d d      in flight: m on every stage
///   stage 1  . 0 1 2 3 . . . a a b b c c d d . .
///   stage 2  . . 0 1 2 3 a a b b c c d d . . . .      (m + P - 1) (f + b) in all, (P - 1) (f + b) of it idle
///
/// Backwards run in the order of the forwards, so gradients are added up in the same order as with 1F1B.
inline StageProgram gpipe(int stage, int stages, std::int64_t microbatches) {
  return forwards_ahead(stage, stages, microbatches, microbatches - 1);
}

/// One forward, one backward (PipeDream-Flush, Narayanan et al., 2021): stage s runs P - 1 - s forwards ahead, then a
/// forward and a backward in turn, then the backwards that are left. The same time as GPipe in less memory:
///
///   stage 0  0 1 2 . . . . a a 3 b b . c c . d d      in flight: min(P - s, m) on stage s
///   stage 1  . 0 1 . . a a 2 b b 3 c c . d d . .
///   stage 2  . . 0 a a 1 b b 2 c c 3 d d . . . .
inline StageProgram one_forward_one_backward(int stage, int stages, std::int64_t microbatches) {
  return forwards_ahead(stage, stages, microbatches, std::min<std::int64_t>(stages - 1 - stage, microbatches - 1));
}

/// Zero bubble, handcrafted schedule 1 (Qi et al. 2024, arXiv 2401.10241, section 3.1): 1F1B whose backward comes in
/// two parts. The gradient of the input goes on at once; stage s defers the gradients of its weights by s
/// micro-batches, so that the last stages answer sooner, and does them where it would wait (capital letters):
///
///   stage 0  0 1 2 . . a A 3 b B c C d D      in flight: min(P, m) on every stage, as on 1F1B's first
///   stage 1  . 0 1 . a 2 b A 3 c B d C D
///   stage 2  . . 0 a 1 b 2 c A 3 d B C D      idle (P - 1) (f + b - w), if w is at most f and b
///
/// And its second (section 3.2), which runs twice as many forwards ahead and defers twice as many weight gradients, so
/// that no stage waits but for the first forwards of those before, while w is at most f and half of b:
///
///   stage 0  0 1 2 3 4 a A 5 b B c C d D e E f F .      in flight: min(2 P - 1, m) on every stage
///   stage 1  . 0 1 2 a 3 b 4 c A 5 d B e C f D E F
///   stage 2  . . 0 a 1 b 2 c 3 d 4 e A 5 f B C D E F    idle (P - 1) (f + b - 2 w) up to the common end of a step
inline StageProgram zero_bubble(ScheduleKind kind, int stage, int stages, std::int64_t microbatches) {
  const int deferred = weights_late(kind, stage, 0);
  const int most_ahead = weights_late(kind, stages - 1 - stage, 0);
  const std::int64_t ahead = std::min<std::int64_t>(most_ahead, microbatches - 1);
  const Place own(kind, stages, stage, 0, 1);
  const auto weights = [=](Instructions& out, std::int64_t i) { own.push_weights(out, i); };
  const auto pass = [=](Instructions& out, std::int64_t i) {
    if (i < microbatches) own.push_forward(out, i);
    if (i < ahead) return;
    own.push_backward(out, i - ahead, Op::backward_input);
    if (i - ahead >= deferred) weights(out, i - ahead - deferred);
  };
  StageProgram program;
  std::int64_t first = 0;
  const std::int64_t late = ahead + std::min<std::int64_t>(deferred, microbatches);  // weight gradients begin
  for (const std::int64_t last :
       {ahead, std::min(late, microbatches), std::max(late, microbatches), microbatches + ahead}) {
    add_passes(program, first, last, 1, 1, pass);
    first = std::max(first, last);
  }
  add_passes(program, std::max<std::int64_t>(0, microbatches - deferred), microbatches, 1, 1, weights);
  add_end(program);
  return program;
}

/// Zero bubble in a V (Qi et al. 2024, section 6; the order of PyTorch's ScheduleZBVZeroBubble): a stage has the chunks
/// s and 2 P - 1 - s, so that the first to begin is the first to go backward, and the memory of 1F1B is enough. Passes
/// of half a stage, those of second chunks marked:
///
///   stage 0  0 1 2 3 4 . 0' a'A' 1' b'B' 2' c'C' 5 a A 3' d'D' ...   in flight: 2 P - s and s + 1 chunks
///   stage 1  . 0 1 2 0' 3 1' ...
///   stage 2  . . 0 0' 1 1' 2 2' a'A' ...                             idle (P - 1) f / 2, if f = b = w
///
/// Micro-batches that there are not, of fewer than 2 P - 1, leave gaps.
inline StageProgram zero_bubble_v(int stage, int stages, std::int64_t microbatches) {
  const std::int64_t all = std::max<std::int64_t>(microbatches, 2 * stages - 1);  // with those that there are not
  const Place down(ScheduleKind::zb_v, stages, stage, 0, 2);
  const Place up(ScheduleKind::zb_v, stages, stage, 1, 2);
  const auto forward = [=](Instructions& out, const Place& own, std::int64_t i) {
    if (i < microbatches) own.push_forward(out, i);
  };
  const auto backward = [=](Instructions& out, const Place& own, std::int64_t i) {
    if (i < microbatches) own.push_backward(out, i, Op::backward_input);
  };
  const auto weights = [=](Instructions& out, const Place& own, std::int64_t i) {
    if (i < microbatches) own.push_weights(out, i);
  };
  const auto steady = [=](Instructions& out, std::int64_t i) {
    if (2 * stages - 1 - stage + i < all) forward(out, down, 2 * stages - 1 - stage + i);
    backward(out, down, i);
    weights(out, down, i);
    forward(out, up, stages + i);
    backward(out, up, stages - stage + i);
    weights(out, up, stages - stage + i);
  };
  Instructions fill;
  for (int i = 0; i < 2 * (stages - stage) - 1; ++i) forward(fill, down, i);
  for (int i = 0; i < stage; ++i) {
    forward(fill, up, i);
    forward(fill, down, 2 * (stages - stage) - 1 + i);
  }
  for (int i = 0; i < stages - stage; ++i) {
    forward(fill, up, stage + i);
    backward(fill, up, i);
    weights(fill, up, i);
  }
  const std::int64_t forwards = all - (2 * stages - 1 - stage);  // turns with a forward of the first chunk
  Instructions drain;
  for (std::int64_t i = forwards; i < all - stages; ++i) steady(drain, i);
  for (int i = 0; i < stage; ++i) {
    backward(drain, down, all - stages + i);
    backward(drain, up, all - stage + i);
  }
  for (int i = 0; i < stages - stage; ++i) {
    backward(drain, down, all - stages + stage + i);
    weights(drain, down, all - stages + i);
  }
  for (int i = 0; i < stage; ++i) weights(drain, up, all - stage + i);
  for (int i = 0; i < stage; ++i) weights(drain, down, all - stage + i);

  StageProgram program;
  program.push_back({std::move(fill)});
  // Turns are alike where there are all micro-batches.
  Block turns{{}, 1, 1};
  if (all == microbatches) turns.repeats = forwards;
  for (std::int64_t i = 0; i < forwards / std::max<std::int64_t>(1, turns.repeats); ++i) steady(turns.once, i);
  program.push_back(std::move(turns));
  program.push_back({std::move(drain)});
  add_end(program);
  return program;
}

/// Interleaved 1F1B (Narayanan et al. 2021, arXiv 2104.04473, section 2.2): a stage has `virtual_stages` chunks of
/// layers, and chunk c of stage s is the virtual stage c P + s. Groups of P micro-batches go through the chunks in
/// turn. Every chunk has buffers of its own for what it sends. The bubble is 1 / v of 1F1B's:
///
///   (m + (P - 1) / v) (f + b) in all, f and b those of a stage, (P - 1) / v (f + b) of it idle
///
/// `microbatches` is a multiple of `stages`.
inline StageProgram interleaved(int stage, int stages, std::int64_t microbatches, int virtual_stages) {
  const int group = stages * virtual_stages;
  const std::int64_t passes = microbatches * virtual_stages;
  const auto microbatch_of = [=](std::int64_t pass) { return pass / group * stages + pass % stages; };
  const auto chunk_of = [=](std::int64_t pass) { return static_cast<int>(pass % group) / stages; };
  const std::int64_t ahead = interleaved_warm_up(stages, stage, static_cast<int>(microbatches), virtual_stages);
  const auto pass = [=](Instructions& out, std::int64_t i) {
    const auto own = [=](int chunk) { return Place(ScheduleKind::interleaved, stages, stage, chunk, virtual_stages); };
    if (i < passes) own(chunk_of(i)).push_forward(out, microbatch_of(i));
    if (i >= ahead) own(virtual_stages - 1 - chunk_of(i - ahead)).push_backward(out, microbatch_of(i - ahead));
  };
  StageProgram program;
  add_passes(program, 0, ahead, group, stages, pass);
  add_passes(program, ahead, passes, group, stages, pass);
  add_passes(program, passes, passes + ahead, group, stages, pass);
  add_end(program);
  return program;
}

}  // namespace detail

/// The program of stage `stage` of a schedule: memory that does not grow with the micro-batches. Errors (usage): a
/// count below 1, virtual stages with another schedule than the interleaved one, and there fewer than 2 stages or
/// micro-batches that the stages do not divide; in zb-v fewer than 2 stages or other than 2 virtual ones.
template <class = void>
Result<StageProgram> stage_program(ScheduleKind kind, int stages, int stage, int microbatches, int virtual_stages = 1) {
  if (stages < 1 || microbatches < 1 || virtual_stages < 1)
    return usage_error("a pipeline needs at least 1 stage, 1 micro-batch and 1 virtual stage, not " +
                       std::to_string(stages) + ", " + std::to_string(microbatches) + " and " +
                       std::to_string(virtual_stages));
  if (kind == ScheduleKind::zb_v && (stages < 2 || virtual_stages != 2))
    return usage_error("schedule zb-v has at least 2 stages of 2 virtual ones, not " + std::to_string(stages) + " of " +
                       std::to_string(virtual_stages));
  if (usual_virtual_stages(kind) == 1 && virtual_stages != 1)
    return usage_error(std::string("schedule ") + name_of(kind) + " has 1 virtual stage, not " +
                       std::to_string(virtual_stages) + ": choose interleaved");
  switch (kind) {
    case ScheduleKind::gpipe:
      return detail::gpipe(stage, stages, microbatches);
    case ScheduleKind::one_f_one_b:
      return detail::one_forward_one_backward(stage, stages, microbatches);
    case ScheduleKind::zb_h1:
    case ScheduleKind::zb_2p:
      return detail::zero_bubble(kind, stage, stages, microbatches);
    case ScheduleKind::zb_v:
      return detail::zero_bubble_v(stage, stages, microbatches);
    case ScheduleKind::interleaved:
      break;
  }
  if (stages < 2 || microbatches % stages != 0)
    return usage_error(
        "the interleaved schedule needs at least 2 stages and a multiple of them as micro-batches, not " +
        std::to_string(stages) + " and " + std::to_string(microbatches));
  return detail::interleaved(stage, stages, microbatches, virtual_stages);
}
GALVATRON_IN_PLANNER(Result<StageProgram> stage_program<>(ScheduleKind, int, int, int, int))

/// The programs of all stages. Errors (usage): those of stage_program.
inline Result<Program> make_program(ScheduleKind kind, int stages, int microbatches, int virtual_stages = 1) {
  Program program{{}, kind};
  for (int stage = 0; stage < std::max(1, stages); ++stage) {
    auto own = stage_program(kind, stages, stage, microbatches, virtual_stages);
    if (!own) return tl::unexpected<Error>(std::move(own.error()));
    program.stages.push_back(std::move(*own));
  }
  return program;
}

}  // namespace galvatron::schedule
