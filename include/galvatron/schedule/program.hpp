// A pipeline schedule as data: per stage a list of instructions, executed by the runtime and replayed by the simulator.
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
// chunks), so it must not begin the forward (backward) that writes the buffer again before the peer has taken what is
// in it. With v virtual stages the stage has v chunks of layers: chunk c of stage s is virtual stage c P + s of P v, so
// the last stage sends the activations of chunk c to chunk c + 1 of the first, and gradients go back that way.
#pragma once

#include <cstdint>
#include <vector>

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

constexpr const char* name_of(Op op) {
  switch (op) {
    case Op::receive_activation:
      return "receive_activation";
    case Op::forward:
      return "forward";
    case Op::send_activation:
      return "send_activation";
    case Op::receive_gradient:
      return "receive_gradient";
    case Op::backward:
      return "backward";
    case Op::backward_input:
      return "backward_input";
    case Op::backward_weight:
      return "backward_weight";
    case Op::send_gradient:
      return "send_gradient";
    case Op::reduce_gradients:
      return "reduce_gradients";
    case Op::step:
      return "step";
  }
  return "?";
}

/// One thing that a stage does.
struct Instruction {
  Op op = Op::forward;
  int microbatch = 0;
  int chunk = 0;  ///< which of the stage's virtual stages

  friend constexpr bool operator==(const Instruction&, const Instruction&) = default;
};

/// What one stage does in one training step, in order.
using StageProgram = std::vector<Instruction>;
/// One entry per stage.
using Program = std::vector<StageProgram>;

/// Instructions that a stage does several times, each time for later micro-batches.
struct Block {
  StageProgram once;
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
/// The program of a stage as its blocks, one behind the other. Their number and the memory that they take do not depend
/// on the number of micro-batches.
using StageBlocks = std::vector<Block>;

/// Calls visit(instruction) for all instructions in their order.
template <class Visit>
void for_each_instruction(const StageBlocks& blocks, Visit&& visit) {
  for (const Block& block : blocks)
    for (std::int64_t time = 0; time < block.repeats; ++time)
      for (std::size_t place = 0; place < block.once.size(); ++place) visit(block.at(time, place));
}
/// The number of instructions.
inline std::int64_t size_of(const StageBlocks& blocks) {
  std::int64_t sum = 0;
  for (const Block& block : blocks) sum += block.size();
  return sum;
}
/// Every instruction in memory.
inline StageProgram written_out(const StageBlocks& blocks) {
  StageProgram out;
  out.reserve(static_cast<std::size_t>(size_of(blocks)));
  for_each_instruction(blocks, [&](const Instruction& instruction) { out.push_back(instruction); });
  return out;
}

}  // namespace galvatron::schedule
