// How long a schedule takes: the program of every stage replayed with the times of its parts.
//
// The rules are those of the executor: a stage does its instructions in order; a receive waits for the message; a
// forward (backward) waits until the activation (gradient) sent before has been taken, because there is one buffer each
// way. Stages may share cores: on a host with fewer cores than ranks, the busy ones slow each other down and run faster
// while others wait.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/schedule/program.hpp>

namespace galvatron::simulate {

/// What one stage takes for one micro-batch, alone on its cores.
struct StageTimes {
  Seconds forward;
  Seconds backward;
  Seconds backward_input;
  Seconds backward_weight;
  Seconds send_activation;     ///< from the send until the next stage can have it; costs this stage nothing
  Seconds send_gradient;       ///< the same towards the stage before
  Seconds receive_activation;  ///< work of this stage to take it (a copy, a re-layout)
  Seconds receive_gradient;
  Seconds reduce_gradients;  ///< once a step
  Seconds step;              ///< once a step
};

struct ReplayOptions {
  double cores = std::numeric_limits<double>::infinity();  ///< that all stages share
  int ranks_per_stage = 1;  ///< each busy stage wants so many cores; with fewer, all busy ones get the same share
};

struct Replay {
  Seconds makespan;             ///< until the last stage has ended
  std::vector<Seconds> finish;  ///< when each stage has ended
  std::vector<Seconds> work;    ///< what each stage has done, at uncontended speed

  /// The part of the stages' time in which they did nothing useful, in [0, 1).
  [[nodiscard]] double idle_fraction() const {
    Seconds sum;
    for (const Seconds w : work) sum += w;
    return makespan.value > 0 ? 1 - sum.value / (makespan.value * static_cast<double>(work.size())) : 0;
  }
};

namespace detail {

/// The messages from one stage to a neighbour: one at a time.
struct Mailbox {
  int microbatch = -1;  // of the message in it
  bool full = false;
  double available = 0;  // when it can be received
};

class Replayer {
 public:
  Replayer(const schedule::Program& program, std::span<const StageTimes> times, const ReplayOptions& options)
      : program_(program), times_(times), options_(options), stages_(program.size()) {
    if (times.size() != program.size())
      throw Failure(ErrorKind::internal, "a replay of " + std::to_string(program.size()) + " stages got times of " +
                                             std::to_string(times.size()));
  }

  Replay run() {
    while (ended_ < stages_.size()) {
      while (start_what_can_start()) {
      }
      if (ended_ < stages_.size()) advance();
    }
    Replay result;
    for (const Stage& stage : stages_) {
      result.finish.push_back({stage.finish});
      result.work.push_back({stage.work});
      result.makespan = max(result.makespan, Seconds{stage.finish});
    }
    return result;
  }

 private:
  using Op = schedule::Op;
  struct Stage {
    std::size_t next = 0;  // instruction
    bool busy = false;
    bool ended = false;
    double left = 0;    // of the current instruction
    double work = 0;    // so far
    double finish = 0;  // when it ended
    Mailbox activation;  // to the next stage
    Mailbox gradient;    // to the stage before
  };

  // The mailbox that an instruction receives from, or null.
  Mailbox* source_of(std::size_t s, Op op) {
    if (op == Op::receive_activation && s > 0) return &stages_[s - 1].activation;
    if (op == Op::receive_gradient && s + 1 < stages_.size()) return &stages_[s + 1].gradient;
    return nullptr;
  }

  double work_of(std::size_t s, Op op) const {
    const StageTimes& t = times_[s];
    switch (op) {
      case Op::receive_activation: return t.receive_activation.value;
      case Op::forward: return t.forward.value;
      case Op::receive_gradient: return t.receive_gradient.value;
      case Op::backward: return t.backward.value;
      case Op::backward_input: return t.backward_input.value;
      case Op::backward_weight: return t.backward_weight.value;
      case Op::reduce_gradients: return t.reduce_gradients.value;
      case Op::step: return t.step.value;
      default: return 0;
    }
  }

  // May the stage begin its next instruction now?
  bool can_start(std::size_t s, const schedule::Instruction& instruction) {
    switch (instruction.op) {
      case Op::forward: return !stages_[s].activation.full;
      case Op::backward:
      case Op::backward_input: return !stages_[s].gradient.full;
      case Op::send_activation: return !stages_[s].activation.full;
      case Op::send_gradient: return !stages_[s].gradient.full;
      case Op::receive_activation:
      case Op::receive_gradient: {
        const Mailbox* source = source_of(s, instruction.op);
        if (source == nullptr) fail(s, instruction, "has no peer");
        if (source->full && source->microbatch != instruction.microbatch)
          fail(s, instruction, "meets micro-batch " + std::to_string(source->microbatch));
        return source->full && source->available <= now_;
      }
      default: return true;
    }
  }

  // Starts and ends what takes no time; true if anything happened.
  bool start_what_can_start() {
    bool progress = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      Stage& stage = stages_[s];
      while (!stage.busy && !stage.ended) {
        if (stage.next == program_[s].size()) {
          stage.ended = progress = true;
          stage.finish = now_;
          ++ended_;
          break;
        }
        const auto& instruction = program_[s][stage.next];
        if (!can_start(s, instruction)) break;
        progress = true;
        stage.left = work_of(s, instruction.op);
        stage.work += stage.left;
        stage.busy = true;
        if (stage.left <= 0) end_instruction(s);
      }
    }
    return progress;
  }

  void end_instruction(std::size_t s) {
    Stage& stage = stages_[s];
    const auto& instruction = program_[s][stage.next++];
    stage.busy = false;
    if (Mailbox* source = source_of(s, instruction.op)) source->full = false;
    if (instruction.op == Op::send_activation)
      stage.activation = {instruction.microbatch, true, now_ + times_[s].send_activation.value};
    if (instruction.op == Op::send_gradient)
      stage.gradient = {instruction.microbatch, true, now_ + times_[s].send_gradient.value};
  }

  // To the next moment at which work ends or a message becomes available.
  void advance() {
    int busy = 0;
    for (const Stage& stage : stages_) busy += stage.busy ? 1 : 0;
    const double rate = busy == 0 ? 1 : std::min(1.0, options_.cores / (static_cast<double>(busy) * options_.ranks_per_stage));
    double step = std::numeric_limits<double>::infinity();
    for (const Stage& stage : stages_) {
      if (stage.busy) step = std::min(step, stage.left / rate);
      for (const Mailbox* mailbox : {&stage.activation, &stage.gradient})
        if (mailbox->full && mailbox->available > now_) step = std::min(step, mailbox->available - now_);
    }
    if (step == std::numeric_limits<double>::infinity()) fail_stuck();
    const double then = now_ + step;
    for (Stage& stage : stages_)  // what arrives now arrives exactly now
      for (Mailbox* mailbox : {&stage.activation, &stage.gradient})
        if (mailbox->full && mailbox->available > now_ && mailbox->available - now_ <= step * (1 + 1e-12))
          mailbox->available = then;
    now_ = then;
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (stages_[s].busy) {
        if (stages_[s].left / rate <= step * (1 + 1e-12))
          end_instruction(s);
        else
          stages_[s].left -= step * rate;
      }
  }

  [[noreturn]] static void fail(std::size_t s, const schedule::Instruction& instruction, const std::string& why) {
    throw Failure(ErrorKind::internal, "schedule: " + std::string(schedule::name_of(instruction.op)) + " " +
                                           std::to_string(instruction.microbatch) + " of stage " + std::to_string(s) +
                                           " " + why);
  }
  [[noreturn]] void fail_stuck() const {
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (!stages_[s].ended) fail(s, program_[s][stages_[s].next], "waits for ever");
    throw Failure(ErrorKind::internal, "schedule: nothing left to do");
  }

  const schedule::Program& program_;
  std::span<const StageTimes> times_;
  ReplayOptions options_;
  std::vector<Stage> stages_;
  std::size_t ended_ = 0;
  double now_ = 0;
};

}  // namespace detail

/// Replays one training step. `times` has one entry per stage. Errors: a Failure if the program cannot end (a receive
/// without its send, messages in another order).
inline Replay replay(const schedule::Program& program, std::span<const StageTimes> times,
                     const ReplayOptions& options = {}) {
  return detail::Replayer(program, times, options).run();
}

}  // namespace galvatron::simulate
