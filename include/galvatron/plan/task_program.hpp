// The program of a step of a plan of waves: a list of instructions, forward or backward of a part, which every rank
// carries out in order as far as the part is its own.
//
// A task whose loss is a sum over samples may do its batch in micro-batches: one after the other in the same memory
// (gradient accumulation), or several in flight, so that its parts on different ranks are stages of a pipeline:
//
//     one in flight       F0(part 0) F0(part 1) B0(part 1) B0(part 0)  F1(part 0) ..
//     two in flight       part 0 on ranks 0-3   F0 F1 -- B0 F2 B1 F3 B2 -- B3           time ->
//                         part 1 on ranks 4-7   -- F0 B0 F1 B1 F2 B2 F3 B3 --
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/wave_plan.hpp>

namespace galvatron {

/// One instruction of a step.
struct TaskInstruction {
  enum class Op : std::uint8_t {
    forward,
    backward,
    reduce,  ///< of gradients; of no part, as the update is, and behind the program
    update,
  };
  Op op = Op::forward;
  int part = 0;        ///< of all parts, in the order of the waves
  int microbatch = 0;  ///< of the task
  friend bool operator==(const TaskInstruction&, const TaskInstruction&) = default;
};
constexpr const char* name_of(TaskInstruction::Op op) {
  constexpr const char* names[] = {"forward", "backward", "reduce", "update"};
  return names[static_cast<std::size_t>(op)];
}

/// When an instruction was done: its ranks wait for what they read until `begin`, take it until `moved`, and compute
/// until `end`. Of what was measured, waiting and moving are one: begin is when the rank came to it.
struct TaskSpan {
  TaskInstruction instruction;
  Seconds begin, moved, end;

  /// To another clock.
  constexpr void shift(Seconds by) {
    begin += by;
    moved += by;
    end += by;
  }
};

namespace detail {

/// The instructions of some parts with several micro-batches in flight: one-forward-one-backward, where a part that has
/// n parts behind it on the way to its loss begins n + 1 micro-batches before the first one's backward pass, at most
/// `in_flight`. Instructions are listed in the order of time, each taken for a unit of it.
class PipelinedProgram {
 public:
  /// @param parts  all of the plan  @param reads  of each part: those whose outputs it reads  @param chosen  those to
  /// do
  PipelinedProgram(const WavePlan& plan, const std::vector<WavePart>& parts, const std::vector<std::vector<int>>& reads,
                   const std::vector<int>& chosen)
      : plan_(plan), parts_(parts), reads_(reads), chosen_(chosen), states_(parts.size()) {
    for (const int p : chosen_)
      for (const int read : reads_[at(p)]) state(read).feeds.push_back(p);
    for (auto p = chosen_.rbegin(); p != chosen_.rend(); ++p)
      for (const int feed : state(*p).feeds) state(*p).behind = std::max(state(*p).behind, state(feed).behind + 1);
  }

  std::vector<TaskInstruction> run() {
    for (int now = 1; left();) {
      std::vector<char> busy(at(plan_.ranks), 0);
      bool any = false;
      for (auto p = chosen_.rbegin(); p != chosen_.rend(); ++p)  // backward first: it frees memory
        any = try_backward(*p, now, busy) || any;
      for (const int p : chosen_) any = try_forward(p, now, busy) || any;
      if (any) ++now;
    }
    return std::move(out_);
  }

 private:
  struct State {
    std::vector<int> feeds;
    int behind = 0;
    std::vector<int> forward, backward;  // when each micro-batch was done
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  State& state(int part) { return states_[at(part)]; }
  [[nodiscard]] int microbatches(int part) const { return plan_.microbatches_of(parts_[at(part)].task); }
  [[nodiscard]] bool left() {
    return std::ranges::any_of(chosen_, [&](int p) { return std::ssize(state(p).backward) < microbatches(p); });
  }
  static bool done_before(const std::vector<int>& times, int microbatch, int now) {
    return microbatch < std::ssize(times) && times[at(microbatch)] < now;
  }
  bool take(int part, TaskInstruction::Op op, int microbatch, int now, std::vector<char>& busy) {
    const std::vector<int>& ranks = parts_[at(part)].ranks;
    if (std::ranges::any_of(ranks, [&](int rank) { return busy[at(rank)] != 0; })) return false;
    for (const int rank : ranks) busy[at(rank)] = 1;
    out_.push_back({op, part, microbatch});
    (op == TaskInstruction::Op::forward ? state(part).forward : state(part).backward).push_back(now);
    return true;
  }
  bool try_backward(int part, int now, std::vector<char>& busy) {
    const auto j = static_cast<int>(state(part).backward.size());
    if (j == microbatches(part) || !done_before(state(part).forward, j, now)) return false;
    for (const int feed : state(part).feeds)
      if (!done_before(state(feed).backward, j, now)) return false;
    return take(part, TaskInstruction::Op::backward, j, now, busy);
  }
  bool try_forward(int part, int now, std::vector<char>& busy) {
    const auto j = static_cast<int>(state(part).forward.size());
    if (j == microbatches(part)) return false;
    const int before = j - std::min(plan_.in_flight, state(part).behind + 1);  // has left its memory
    if (before >= std::ssize(state(part).backward)) return false;
    for (const int read : reads_[at(part)])
      // Its gradient has been taken by those who made what this part read.
      if (!done_before(state(read).forward, j, now) || before >= std::ssize(state(read).backward)) return false;
    return take(part, TaskInstruction::Op::forward, j, now, busy);
  }

  const WavePlan& plan_;
  const std::vector<WavePart>& parts_;
  const std::vector<std::vector<int>>& reads_;
  const std::vector<int>& chosen_;
  std::vector<State> states_;
  std::vector<TaskInstruction> out_;
};

}  // namespace detail

/// The instructions of a step. Gradients of a layer are added in their order, the same on all ranks.
/// @param reads  of each part: those whose outputs it reads
inline std::vector<TaskInstruction> task_program(const WavePlan& plan, TaskOrder order, int tasks,
                                                 const std::vector<std::vector<int>>& reads) {
  const std::vector<WavePart> parts = parts_of(plan);
  std::vector<TaskInstruction> out;
  for (int task = 0; task < (order == TaskOrder::in_waves ? 1 : tasks); ++task) {
    std::vector<int> chosen;
    int rounds = 1;
    for (int i = 0; i < static_cast<int>(parts.size()); ++i) {
      const int own = parts[static_cast<std::size_t>(i)].task;
      if (order == TaskOrder::in_sequence && own != task) continue;
      chosen.push_back(i);
      rounds = std::max(rounds, plan.microbatches_of(own));
    }
    if (rounds > 1 && plan.in_flight > 1) {
      const auto piped = detail::PipelinedProgram(plan, parts, reads, chosen).run();
      out.insert(out.end(), piped.begin(), piped.end());
      continue;
    }
    const auto add = [&](TaskInstruction::Op op, int i, int round) {
      if (round < plan.microbatches_of(parts[static_cast<std::size_t>(i)].task)) out.push_back({op, i, round});
    };
    for (int round = 0; round < rounds; ++round) {
      for (const int i : chosen) add(TaskInstruction::Op::forward, i, round);
      for (auto i = chosen.rbegin(); i != chosen.rend(); ++i) add(TaskInstruction::Op::backward, *i, round);
    }
  }
  return out;
}

}  // namespace galvatron
