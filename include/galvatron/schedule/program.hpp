// A pipeline schedule as data: per stage a list of instructions. schedules.hpp writes it, and all others read it:
//
//   train/stage.hpp     carries it out
//   replay.hpp          says when each instruction begins and ends, given their seconds
//   cost/pipeline.hpp   prices an iteration: by a replay where stages share cores, else by formulas which tests compare
//                       with the replay
//   simulate/           replays a plan
//
// A program says in which order a stage does things; when it can do them follows from the messages. Instructions carry
// the micro-batch that they are for:
//
//   receive_activation i   wait for the input of micro-batch i from the stage before; not on the first stage
//   forward i              the stage's layers on micro-batch i; keeps a stash for backward
//   send_activation i      offer the output to the next stage; not on the last stage
//   receive_gradient i     wait for the gradient of that output; not on the last stage
//   backward i             gradients of the weights and of the input; frees the stash. Or, in two parts,
//   backward_input i       the gradient of the input alone, and later
//   backward_weight i      the gradients of the weights alone
//   send_gradient i        offer the gradient of the input to the stage before; not on the first stage
//   reduce_gradients       sum the gradients over the data-parallel ranks; micro-batch 0
//   step                   update the weights; micro-batch 0
//
// A send only offers: the stage goes on, and has one buffer for activations and one for gradients (of each of its
// chunks; zb-2p and zb-v have two: message_buffers), so it must not begin the forward (backward) that writes the buffer
// again before the peer has taken what is in it. With v virtual stages the stage has v chunks of layers: chunk c of
// stage s is virtual stage c P + s of P v, so the last stage sends the activations of chunk c to chunk c + 1 of the
// first, and gradients go back that way. In zb-v it has both chunks of the turn, and sends to itself: virtual_stage_of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/strategy/schedule_kind.hpp>

namespace galvatron::schedule {

enum class Op : std::uint8_t {
  receive_activation,
  forward,
  send_activation,
  receive_gradient,
  backward,
  backward_input,
  backward_weight,
  send_gradient,
  reduce_gradients,
  step,
};
inline constexpr std::size_t ops = 10;

constexpr const char* name_of(Op op) {
  constexpr const char* names[ops] = {
      "receive_activation", "forward",         "send_activation", "receive_gradient", "backward",
      "backward_input",     "backward_weight", "send_gradient",   "reduce_gradients", "step"};
  return names[static_cast<std::size_t>(op)];
}

/// One thing that a stage does.
struct Instruction {
  Op op = Op::forward;
  int microbatch = 0;
  int chunk = 0;  ///< which of the stage's virtual stages

  friend constexpr bool operator==(const Instruction&, const Instruction&) = default;
};

/// Instructions that a stage does several times, each time for later micro-batches.
struct Block {
  std::vector<Instruction> once;
  std::int64_t repeats = 1;
  int step = 0;  ///< micro-batches from one time to the next

  [[nodiscard]] std::int64_t size() const { return repeats * static_cast<std::int64_t>(once.size()); }
  /// The instruction at place `place` of `once`, the `time`th time from 0.
  [[nodiscard]] Instruction at(std::int64_t time, std::size_t place) const {
    Instruction out = once[place];
    out.microbatch += static_cast<int>(time * step);
    return out;
  }
};
/// What one stage does in one training step: its blocks, one behind the other. Their number and the memory that they
/// take do not depend on the number of micro-batches.
using StageProgram = std::vector<Block>;
/// All stages.
struct Program {
  std::vector<StageProgram> stages;
  ScheduleKind kind = ScheduleKind::one_f_one_b;  ///< says which chunks are neighbours, and how many buffers they have
};

/// Goes through the instructions of a stage in their order.
class Cursor {
 public:
  explicit Cursor(const StageProgram& blocks) : block_(blocks.data()), end_(block_ + blocks.size()) { begin_block(); }
  explicit Cursor(StageProgram&&) = delete;

  [[nodiscard]] bool at_end() const { return block_ == end_; }
  [[nodiscard]] Instruction operator*() const { return block_->at(time_, place_); }
  Cursor& operator++() {
    if (++place_ < places_) return *this;
    place_ = 0;
    if (++time_ < block_->repeats) return *this;
    ++block_;
    begin_block();
    return *this;
  }

 private:
  void begin_block() {
    while (block_ != end_ && block_->size() == 0) ++block_;
    time_ = 0;
    places_ = at_end() ? 0 : block_->once.size();
  }

  const Block* block_;
  const Block* end_;
  std::int64_t time_ = 0;
  std::size_t place_ = 0;   // in block_->once
  std::size_t places_ = 0;  // its size
};

/// The number of instructions.
inline std::int64_t size_of(const StageProgram& blocks) {
  std::int64_t sum = 0;
  for (const Block& block : blocks) sum += block.size();
  return sum;
}

}  // namespace galvatron::schedule
