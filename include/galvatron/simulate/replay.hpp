// How long a schedule takes: the program of every stage replayed with the times of its parts.
//
// The rules are those of the executor: a stage does its instructions in order; a receive waits for the message; a
// forward (backward) waits until the activation (gradient) sent before has been taken, because there is one buffer each
// way. Stages may share cores: on a host with fewer cores than ranks, those that are busy on one core slow each other
// down and run faster while others wait. A step needs the norm of all gradients, so it waits until every stage has come
// to its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/core_sharing.hpp>
#include <galvatron/schedule/program.hpp>

namespace galvatron::simulate {

/// What one stage takes for one micro-batch, alone on its cores; with virtual stages, one chunk of it.
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
  cost::CoreSharing sharing{};  ///< of the stages' ranks; by default every rank has cores of its own
  bool record = false;          ///< keep when each instruction began and ended
};

/// When a stage did an instruction. What lies between two spans of a stage is a wait.
struct Span {
  schedule::Instruction instruction;
  Seconds begin;
  Seconds end;

  friend constexpr bool operator==(const Span&, const Span&) = default;
};

struct Replay {
  Seconds makespan;                      ///< until the last stage has ended
  std::vector<Seconds> finish;           ///< when each stage has ended
  std::vector<Seconds> work;             ///< what each stage has done, at uncontended speed
  std::vector<std::vector<Span>> spans;  ///< of each stage in the order of its program, if they were to be recorded
};

namespace detail {

using schedule::Instruction;
using schedule::Op;

/// The messages from one stage to a neighbour: one at a time.
struct Mailbox {
  int microbatch = -1;  // of the message in it
  bool full = false;
  double available = 0;  // when it can be received
  double taken = 0;      // when the last one was
};

/// A stage in the middle of its program.
struct StageState {
  std::size_t next = 0;  // instruction
  bool busy = false;
  bool ended = false;
  bool woken = true;                // something has changed that it may wait for
  double begun = 0;                 // the current instruction
  double left = 0;                  // of it, at uncontended speed
  double now = 0;                   // of this stage; when it has ended: when
  double work = 0;                  // so far
  std::vector<Mailbox> activation;  // (chunks) to the next stage
  std::vector<Mailbox> gradient;    // (chunks) to the stage before
};

[[noreturn]] inline void fail_replay(std::size_t stage, const Instruction& instruction, const std::string& why) {
  throw Failure(ErrorKind::internal, "schedule: " + std::string(schedule::name_of(instruction.op)) + " " +
                                         std::to_string(instruction.microbatch) + " of stage " + std::to_string(stage) +
                                         " " + why);
}

constexpr double work_of(const StageTimes& t, Op op) {
  switch (op) {
    case Op::receive_activation:
      return t.receive_activation.value;
    case Op::forward:
      return t.forward.value;
    case Op::receive_gradient:
      return t.receive_gradient.value;
    case Op::backward:
      return t.backward.value;
    case Op::backward_input:
      return t.backward_input.value;
    case Op::backward_weight:
      return t.backward_weight.value;
    case Op::reduce_gradients:
      return t.reduce_gradients.value;
    case Op::step:
      return t.step.value;
    default:
      return 0;
  }
}

class Replayer {
 public:
  Replayer(const schedule::Program& program, std::span<const StageTimes> times, const ReplayOptions& options)
      : program_(program),
        times_(times),
        sharing_(options.sharing),
        stages_(program.size()),
        loads_(options.sharing, static_cast<int>(program.size())) {
    int last = 0;
    for (const schedule::StageProgram& stage : program) {
      for (const Instruction& instruction : stage) last = std::max(last, instruction.chunk);
      steps_ += std::any_of(stage.begin(), stage.end(), [](const Instruction& i) { return i.op == Op::step; }) ? 1 : 0;
    }
    chunks_ = static_cast<std::size_t>(last) + 1;
    if (times.size() != program.size() && times.size() != program.size() * chunks_)
      throw Failure(ErrorKind::internal, "a replay of " + std::to_string(program.size()) + " stages of " +
                                             std::to_string(chunks_) + " chunks got times of " +
                                             std::to_string(times.size()));
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      stages_[s].activation.resize(chunks_);
      stages_[s].gradient.resize(chunks_);
      come_to_step(s);
    }
    if (options.record) spans_.resize(program.size());
  }

  Replay run() {
    if (sharing_.crowding(static_cast<int>(stages_.size()) * sharing_.stage_ranks) <= 1)
      run_each_on_its_own();
    else
      run_sharing_cores();
    Replay result;
    for (const StageState& stage : stages_) {
      result.finish.push_back({stage.now});
      result.work.push_back({stage.work});
      result.makespan = max(result.makespan, Seconds{stage.now});
    }
    result.spans = std::move(spans_);
    return result;
  }

 private:
  // With cores enough every stage has a clock of its own, which runs ahead as far as the messages allow.
  void run_each_on_its_own() {
    bool progress = true;
    while (ended_ < stages_.size()) {
      if (!progress) fail_stuck();
      progress = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        StageState& stage = stages_[s];
        if (!stage.woken) continue;
        stage.woken = false;
        while (!ends(s) && is_known(s)) {
          const Instruction& instruction = program_[s][stage.next];
          stage.begun = std::max(stage.now, earliest(s, instruction));
          const double work = work_of(times_of(s, instruction), instruction.op);
          stage.now = stage.begun + work;
          stage.work += work;
          end_instruction(s);
          progress = true;
        }
        progress = progress || stage.ended;
      }
    }
  }

  // Otherwise there is one clock, because who is busy decides how fast everybody is.
  void run_sharing_cores() {
    while (ended_ < stages_.size()) {
      while (start_what_can_start()) {
      }
      if (ended_ < stages_.size()) advance();
    }
  }

  // Starts and ends what takes no time; true if anything happened.
  bool start_what_can_start() {
    bool progress = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      StageState& stage = stages_[s];
      if (!stage.woken) continue;
      stage.woken = false;
      if (stage.busy || stage.ended) continue;
      stage.now = now_;
      while (!stage.busy && !ends(s) && is_known(s)) {
        const Instruction& instruction = program_[s][stage.next];
        if (earliest(s, instruction) > now_) break;
        progress = true;
        stage.begun = now_;
        stage.left = work_of(times_of(s, instruction), instruction.op);
        stage.work += stage.left;
        stage.busy = stage.left > 0;
        if (stage.busy)
          loads_.begin(s);
        else
          end_instruction(s);
      }
      progress = progress || stage.ended;
    }
    return progress;
  }

  // To the next moment at which work ends or a message becomes available.
  void advance() {
    std::vector<double> slowness(stages_.size(), 1.0);
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const StageState& stage = stages_[s];
      slowness[s] = loads_.slowness(s);
      if (stage.busy) step = std::min(step, stage.left * slowness[s]);
      for (const auto* mailboxes : {&stage.activation, &stage.gradient})
        for (const Mailbox& mailbox : *mailboxes)
          if (mailbox.full && mailbox.available > now_) step = std::min(step, mailbox.available - now_);
    }
    if (step == std::numeric_limits<double>::infinity()) fail_stuck();
    const double then = now_ + step;
    for (std::size_t s = 0; s < stages_.size(); ++s)
      for (auto* mailboxes : {&stages_[s].activation, &stages_[s].gradient})
        for (Mailbox& mailbox : *mailboxes) {
          if (!mailbox.full || mailbox.available <= now_) continue;
          if (mailbox.available - now_ <= step * (1 + 1e-12)) mailbox.available = std::min(mailbox.available, then);
          if (mailbox.available <= then) wake_around(s);
        }
    now_ = then;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      StageState& stage = stages_[s];
      if (!stage.busy) continue;
      if (stage.left * slowness[s] > step * (1 + 1e-12)) {
        stage.left -= step / slowness[s];
        continue;
      }
      stage.busy = false;
      loads_.end(s);
      stage.now = now_;
      end_instruction(s);
    }
  }

  [[nodiscard]] const StageTimes& times_of(std::size_t s, const Instruction& instruction) const {
    if (times_.size() == stages_.size()) return times_[s];
    return times_[static_cast<std::size_t>(instruction.chunk) * stages_.size() + s];
  }

  // Has the stage come to the end of its program?
  bool ends(std::size_t s) {
    StageState& stage = stages_[s];
    if (!stage.ended && stage.next == program_[s].size()) {
      stage.ended = true;
      ++ended_;
    }
    return stage.ended;
  }

  // The mailbox that an instruction receives from, or null. Behind the last stage comes the next chunk of the first.
  Mailbox* source_of(std::size_t s, const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    if (instruction.op == Op::receive_activation) {
      if (s > 0) return &stages_[s - 1].activation[chunk];
      if (chunk > 0) return &stages_.back().activation[chunk - 1];
    }
    if (instruction.op == Op::receive_gradient) {
      if (s + 1 < stages_.size()) return &stages_[s + 1].gradient[chunk];
      if (chunk + 1 < chunks_) return &stages_.front().gradient[chunk + 1];
    }
    return nullptr;
  }
  // The mailbox that an instruction writes, and that must be empty before, or null.
  Mailbox* target_of(std::size_t s, const Instruction& instruction) {
    const auto chunk = static_cast<std::size_t>(instruction.chunk);
    const Op op = instruction.op;
    if (op == Op::forward || op == Op::send_activation) return &stages_[s].activation[chunk];
    if (op == Op::backward || op == Op::backward_input || op == Op::send_gradient) return &stages_[s].gradient[chunk];
    return nullptr;
  }

  // Is it known when the stage's next instruction may begin?
  bool is_known(std::size_t s) {
    const Instruction& instruction = program_[s][stages_[s].next];
    if (const Mailbox* target = target_of(s, instruction)) return !target->full;
    if (instruction.op == Op::step) return at_step_ == steps_;
    if (instruction.op != Op::receive_activation && instruction.op != Op::receive_gradient) return true;
    const Mailbox* source = source_of(s, instruction);
    if (source == nullptr) fail_replay(s, instruction, "has no peer");
    if (source->full && source->microbatch != instruction.microbatch)
      fail_replay(s, instruction, "meets micro-batch " + std::to_string(source->microbatch));
    return source->full;
  }
  // And when is that?
  double earliest(std::size_t s, const Instruction& instruction) {
    if (const Mailbox* target = target_of(s, instruction)) return target->taken;
    if (const Mailbox* source = source_of(s, instruction)) return source->available;
    return instruction.op == Op::step ? all_at_step_ : 0;
  }

  // At the stage's own time.
  void end_instruction(std::size_t s) {
    StageState& stage = stages_[s];
    const Instruction& instruction = program_[s][stage.next++];
    stage.woken = true;
    if (!spans_.empty()) spans_[s].push_back({instruction, {stage.begun}, {stage.now}});
    come_to_step(s);
    if (Mailbox* source = source_of(s, instruction)) {
      source->full = false;
      source->taken = stage.now;
      wake_around(s);
    }
    const bool gradient = instruction.op == Op::send_gradient;
    if (instruction.op != Op::send_activation && !gradient) return;
    const StageTimes& t = times_of(s, instruction);
    Mailbox& mailbox = *target_of(s, instruction);
    mailbox.microbatch = instruction.microbatch;
    mailbox.full = true;
    mailbox.available = stage.now + (gradient ? t.send_gradient : t.send_activation).value;
    wake_around(s);
  }

  // Notes that the stage waits for the others before its step, if that comes next.
  void come_to_step(std::size_t s) {
    const StageState& stage = stages_[s];
    if (stage.next >= program_[s].size() || program_[s][stage.next].op != Op::step) return;
    all_at_step_ = std::max(all_at_step_, stage.now);
    if (++at_step_ < steps_) return;
    for (StageState& other : stages_) other.woken = true;
  }

  // A stage waits for nobody but its neighbours, and the ends of the pipeline for each other if there are chunks.
  void wake_around(std::size_t s) {
    for (std::size_t i = s > 0 ? s - 1 : 0; i < std::min(s + 2, stages_.size()); ++i) stages_[i].woken = true;
    if (chunks_ > 1 && (s == 0 || s + 1 == stages_.size())) stages_.front().woken = stages_.back().woken = true;
  }

  [[noreturn]] void fail_stuck() const {
    for (std::size_t s = 0; s < stages_.size(); ++s)
      if (!stages_[s].ended) fail_replay(s, program_[s][stages_[s].next], "waits for ever");
    throw Failure(ErrorKind::internal, "schedule: nothing left to do");
  }

  const schedule::Program& program_;
  std::span<const StageTimes> times_;
  cost::CoreSharing sharing_;
  std::vector<StageState> stages_;
  std::size_t chunks_ = 1;
  cost::CoreLoads loads_;
  std::size_t ended_ = 0;
  double now_ = 0;
  int steps_ = 0;           // stages that have a step
  int at_step_ = 0;         // of them, those that have come to it
  double all_at_step_ = 0;  // when the last of them did
  std::vector<std::vector<Span>> spans_;
};

}  // namespace detail

/// Replays one training step. `times` has one entry per stage, or with v chunks one per virtual stage, chunk c of stage
/// s at c P + s (what a stage does once an iteration is told by its chunk 0). Errors: a Failure if the program cannot
/// end (a receive without its send, messages in another order).
inline Replay replay(const schedule::Program& program, std::span<const StageTimes> times,
                     const ReplayOptions& options = {}) {
  return detail::Replayer(program, times, options).run();
}

}  // namespace galvatron::simulate
