// How long a program takes: replayed with the seconds of its instructions. All times of a pipeline come from here.
//
// The rules are those of the executor: a stage does its instructions in order; a receive waits for the message; a
// forward (backward) waits until the activation (gradient) sent before has been taken, because there is one buffer each
// way, or the one before that where there are two. Stages may share cores: on a host with fewer cores than ranks, those
// that are busy on one core slow each other down and run faster while others wait. A step needs the norm of all
// gradients, so it waits until every stage has come to its own.
//
// Where stages share cores, who is busy decides who comes next, and an iteration may depend on the last digit of its
// seconds: of 400 random pipelines of up to 8 stages, 256 micro-batches and 4 cores, a relative change of 4e-16 moved
// 30 by up to 1e-3. So the order of the operations below is part of what a plan's seconds are.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/schedule/core_sharing.hpp>
#include <galvatron/schedule/program.hpp>

namespace galvatron::schedule {

/// What the instructions of one stage take for one micro-batch, alone on its cores; with virtual stages, of one chunk.
/// Of a send: from then until the peer can have the message, which costs this stage nothing.
struct StageTimes {
  std::array<Seconds, ops> by_op{};

  [[nodiscard]] constexpr Seconds& operator[](Op op) { return by_op[static_cast<std::size_t>(op)]; }
  [[nodiscard]] constexpr Seconds operator[](Op op) const { return by_op[static_cast<std::size_t>(op)]; }
};

struct ReplayOptions {
  CoreSharing sharing{};  ///< of the stages' ranks; by default every rank has cores of its own
  bool record = false;    ///< keep when each instruction began and ended, and what it waited for
};

/// When a stage did an instruction. What lies between two spans of a stage is a wait.
struct Span {
  Instruction instruction;
  Seconds begin;
  Seconds end;

  /// To another clock.
  constexpr void shift(Seconds by) {
    begin += by;
    end += by;
  }
  friend constexpr bool operator==(const Span&, const Span&) = default;
};

/// A step of a training run as it was measured.
/// @tparam Done  what a rank did, with its `begin` and `end`
template <class Done>
struct MeasuredSpans {
  std::int64_t step = 0;                 ///< counts from 0
  std::vector<std::vector<Done>> ranks;  ///< of each rank; times count from the first beginning of all ranks
  Seconds seconds;                       ///< until the last rank has ended
};
using MeasuredStep = MeasuredSpans<Span>;

/// Where a span is in Replay::spans.
struct SpanIndex {
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t stage = none;
  std::uint32_t span = 0;

  [[nodiscard]] constexpr bool exists() const { return stage != none; }
};

struct Replay {
  Seconds makespan;             ///< until the last stage has ended
  std::vector<Seconds> finish;  ///< when each stage has ended
  std::vector<Seconds> work;    ///< what each stage has done, at uncontended speed
  // If they were to be recorded, of each stage in the order of its program:
  std::vector<std::vector<Span>> spans;
  std::vector<std::vector<SpanIndex>> causes;  ///< the span whose end let this one begin, if there is one
};

namespace detail {

constexpr bool is_send(Op op) { return op == Op::send_activation || op == Op::send_gradient; }

/// A buffer of the messages from one virtual stage to a neighbour.
struct Mailbox {
  int microbatch = -1;  // of the message in it
  bool full = false;
  double available = 0;  // when it can be received
  double taken = 0;      // when the last one was
  SpanIndex sent_by;
  SpanIndex taken_by;
};

/// A stage in the middle of its program.
struct StageState {
  Cursor next;
  Instruction instruction{};          // the one at `next`
  const StageTimes* times = nullptr;  // of its chunk
  Mailbox* source = nullptr;          // that it receives from, or null
  Mailbox* target = nullptr;          // that it writes, and that must be empty before, or null
  bool busy = false;
  bool ended = false;
  bool woken = true;  // something has changed that it may wait for
  double begun = 0;   // the instruction
  double left = 0;    // of it, at uncontended speed
  double now = 0;     // of this stage; when it has ended: when
  double work = 0;    // so far
};

class Replayer {
 public:
  Replayer(const Program& program, std::span<const StageTimes> times, const ReplayOptions& options)
      : times_(times),
        sharing_(options.sharing.of_stages(program.stages.size())),
        kind_(program.kind),
        buffers_(message_buffers(program.kind)),
        slowness_(program.stages.size(), 1.0),
        loads_(sharing_) {
    const std::size_t count = program.stages.size();
    stages_.reserve(count);
    int last = 0;
    for (const StageProgram& blocks : program.stages) {
      bool steps = false;
      for (const Block& block : blocks)
        for (const Instruction& instruction : block.once) {
          last = std::max(last, instruction.chunk);
          steps = steps || instruction.op == Op::step;
        }
      steps_ += steps ? 1 : 0;
      stages_.push_back({Cursor(blocks)});
    }
    const std::size_t virtual_stages = count * (static_cast<std::size_t>(last) + 1);
    if (times.size() != count && times.size() != virtual_stages)
      throw Failure(ErrorKind::internal, "a replay of " + std::to_string(count) + " stages of " +
                                             std::to_string(last + 1) + " chunks got times of " +
                                             std::to_string(times.size()));
    virtual_stages_ = static_cast<int>(virtual_stages);
    activation_.resize(virtual_stages * static_cast<std::size_t>(buffers_));
    gradient_.resize(activation_.size());
    if (options.record) {
      spans_.resize(count);
      causes_.resize(count);
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) come_to_next(s);
  }

  Replay run() {
    if (sharing_.crowding() <= 1)
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
    result.causes = std::move(causes_);
    return result;
  }

 private:
  // With cores enough every stage has a clock of its own, which runs ahead as far as the messages allow.
  void run_each_on_its_own() {
    for (bool progress = true; ended_ < stages_.size();) {
      if (!progress) fail_stuck();
      progress = false;
      for (std::size_t s = 0; s < stages_.size(); ++s) {
        StageState& stage = stages_[s];
        if (!std::exchange(stage.woken, false)) continue;
        while (!stage.ended && is_known(s)) {
          stage.begun = std::max(stage.now, earliest(stage));
          const double work = work_of(stage);
          stage.now = stage.begun + work;
          stage.work += work;
          end_instruction(s);
          progress = true;
        }
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
      if (!std::exchange(stage.woken, false) || stage.busy || stage.ended) continue;
      stage.now = now_;
      while (!stage.busy && !stage.ended && is_known(s) && earliest(stage) <= now_) {
        progress = true;
        stage.begun = now_;
        stage.left = work_of(stage);
        stage.work += stage.left;
        stage.busy = stage.left > 0;
        if (stage.busy)
          loads_.begin(s);
        else
          end_instruction(s);
      }
    }
    return progress;
  }

  // To the next moment at which work ends or a message becomes available.
  void advance() {
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      if (!stages_[s].busy) continue;
      slowness_[s] = loads_.slowness(s);
      step = std::min(step, stages_[s].left * slowness_[s]);
    }
    if (messages_take_time_)
      for (const auto* mailboxes : {&activation_, &gradient_})
        for (const Mailbox& mailbox : *mailboxes)
          if (mailbox.full && mailbox.available > now_) step = std::min(step, mailbox.available - now_);
    if (step == std::numeric_limits<double>::infinity()) fail_stuck();
    const double then = now_ + step;
    if (messages_take_time_)
      for (auto* mailboxes : {&activation_, &gradient_})
        for (std::size_t v = 0; v < mailboxes->size(); ++v) {
          Mailbox& mailbox = (*mailboxes)[v];
          if (!mailbox.full || mailbox.available <= now_) continue;
          if (mailbox.available - now_ <= step * (1 + 1e-12)) mailbox.available = std::min(mailbox.available, then);
          if (mailbox.available <= then) wake(static_cast<int>(v) / buffers_ + (mailboxes == &activation_ ? 1 : -1));
        }
    now_ = then;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      StageState& stage = stages_[s];
      if (!stage.busy) continue;
      const double left = stage.left * slowness_[s] - step;
      stage.left = left / slowness_[s];
      if (left > 1e-12 * step) continue;
      stage.busy = false;
      loads_.end(s);
      stage.now = now_;
      end_instruction(s);
    }
  }

  // The seconds of a stage's next instruction.
  [[nodiscard]] static double work_of(const StageState& stage) {
    return is_send(stage.instruction.op) ? 0 : (*stage.times)[stage.instruction.op].value;
  }

  // Is it known when the stage's next instruction may begin?
  bool is_known(std::size_t s) const {
    const auto& [op, microbatch, chunk] = stages_[s].instruction;
    if (const Mailbox* target = stages_[s].target) return !target->full;
    if (op == Op::step) return at_step_ == steps_;
    if (op != Op::receive_activation && op != Op::receive_gradient) return true;
    const Mailbox* source = stages_[s].source;
    if (source == nullptr) fail(s, "has no peer");
    if (source->full && source->microbatch != microbatch)
      fail(s, "meets micro-batch " + std::to_string(source->microbatch));
    return source->full;
  }
  // And when is that?
  [[nodiscard]] double earliest(const StageState& stage) const {
    if (stage.target != nullptr) return stage.target->taken;
    if (stage.source != nullptr) return stage.source->available;
    return stage.instruction.op == Op::step ? all_at_step_ : 0;
  }
  // And whose end made it so, if not that of the stage's instruction before?
  [[nodiscard]] SpanIndex awaited(const StageState& stage) const {
    if (stage.target != nullptr) return stage.target->taken_by;
    if (stage.source != nullptr) return stage.source->sent_by;
    return stage.instruction.op == Op::step ? last_at_step_ : SpanIndex{};
  }

  // The stage's last span, if spans are recorded and it has one.
  [[nodiscard]] SpanIndex last_span(std::size_t s) const {
    if (spans_.empty() || spans_[s].empty()) return {};
    return {static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(spans_[s].size() - 1)};
  }
  void record(std::size_t s) {
    const StageState& stage = stages_[s];
    SpanIndex cause = last_span(s);
    if (!cause.exists() || spans_[s].back().end.value < stage.begun)
      if (const SpanIndex other = awaited(stage); other.exists()) cause = other;
    causes_[s].push_back(cause);
    spans_[s].push_back({stage.instruction, {stage.begun}, {stage.now}});
  }

  // At the stage's own time.
  void end_instruction(std::size_t s) {
    StageState& stage = stages_[s];
    if (!spans_.empty()) record(s);
    if (stage.source != nullptr) {
      stage.source->full = false;
      stage.source->taken = stage.now;
      stage.source->taken_by = last_span(s);
      wake(index_of(s) + (stage.instruction.op == Op::receive_gradient ? 1 : -1));
    } else if (is_send(stage.instruction.op)) {
      const double takes = (*stage.times)[stage.instruction.op].value;
      messages_take_time_ = messages_take_time_ || takes > 0;
      *stage.target = {stage.instruction.microbatch, true, stage.now + takes, stage.target->taken, last_span(s), {}};
      wake(index_of(s) + (stage.instruction.op == Op::send_activation ? 1 : -1));
    }
    ++stage.next;
    stage.woken = true;
    come_to_next(s);
  }

  // Notes what the stage does next.
  void come_to_next(std::size_t s) {
    StageState& stage = stages_[s];
    stage.ended = stage.next.at_end();
    if (stage.ended) {
      ++ended_;
      return;
    }
    stage.instruction = *stage.next;
    const int v = index_of(s);
    stage.times = &times_[times_.size() == stages_.size() ? s : static_cast<std::size_t>(v)];
    stage.source = stage.target = nullptr;
    const auto buffer = [&](std::vector<Mailbox>& mailboxes, int sender) {
      return &mailboxes[static_cast<std::size_t>(sender * buffers_ + stage.instruction.microbatch % buffers_)];
    };
    switch (stage.instruction.op) {
      case Op::receive_activation:
        if (v > 0) stage.source = buffer(activation_, v - 1);
        return;
      case Op::receive_gradient:
        if (v + 1 < virtual_stages_) stage.source = buffer(gradient_, v + 1);
        return;
      case Op::forward:
      case Op::send_activation:
        stage.target = buffer(activation_, v);
        return;
      case Op::backward:
      case Op::backward_input:
      case Op::send_gradient:
        stage.target = buffer(gradient_, v);
        return;
      case Op::step:
        return come_to_step(s);
      default:
        return;
    }
  }

  // Notes that a stage waits for the others before its step.
  void come_to_step(std::size_t s) {
    const StageState& stage = stages_[s];
    const SpanIndex last = last_span(s);
    if (stage.now > all_at_step_ || (stage.now == all_at_step_ && last.stage < last_at_step_.stage)) {
      all_at_step_ = stage.now;
      last_at_step_ = last;
    }
    if (++at_step_ < steps_) return;
    for (StageState& other : stages_) other.woken = true;
  }

  // The virtual stage of a stage's next instruction.
  [[nodiscard]] int index_of(std::size_t s) const {
    return virtual_stage_of(kind_, static_cast<int>(stages_.size()), static_cast<int>(s), stages_[s].instruction.chunk);
  }
  // The stage of a virtual stage.
  void wake(int index) {
    stages_[static_cast<std::size_t>(stage_of_virtual_stage(kind_, static_cast<int>(stages_.size()), index))].woken =
        true;
  }

  [[noreturn]] void fail(std::size_t s, const std::string& why) const {
    const Instruction& instruction = stages_[s].instruction;
    throw Failure(ErrorKind::internal, "schedule: " + std::string(name_of(instruction.op)) + " " +
                                           std::to_string(instruction.microbatch) + " of stage " + std::to_string(s) +
                                           " " + why);
  }
  [[noreturn]] void fail_stuck() const {
    const auto stuck = std::find_if(stages_.begin(), stages_.end(), [](const StageState& s) { return !s.ended; });
    fail(static_cast<std::size_t>(stuck - stages_.begin()), "waits for ever");
  }

  std::span<const StageTimes> times_;
  CoreSharing sharing_;
  std::vector<StageState> stages_;
  ScheduleKind kind_;
  int buffers_;  // of a virtual stage, each way
  int virtual_stages_ = 1;
  std::vector<Mailbox> activation_;  // (virtual stages, buffers) to the next one
  std::vector<Mailbox> gradient_;    // (virtual stages, buffers) to the one before
  std::vector<double> slowness_;     // (stages) of those that are busy
  CoreLoads loads_;
  bool messages_take_time_ = false;  // one did
  std::size_t ended_ = 0;
  double now_ = 0;
  int steps_ = 0;           // stages that have a step
  int at_step_ = 0;         // of them, those that have come to it
  double all_at_step_ = 0;  // when the last of them did
  SpanIndex last_at_step_;  // and with what
  std::vector<std::vector<Span>> spans_;
  std::vector<std::vector<SpanIndex>> causes_;
};

}  // namespace detail

/// Replays one training step. `times` has one entry per stage, or with v chunks one per virtual stage, in their order
/// (virtual_stage_of; what a stage does once an iteration is told by its chunk 0). Takes O(stages) memory unless it
/// records. Errors: a Failure if the program cannot end (a receive without its send, messages in another order).
inline Replay replay(const Program& program, std::span<const StageTimes> times, const ReplayOptions& options = {}) {
  return detail::Replayer(program, times, options).run();
}

}  // namespace galvatron::schedule
