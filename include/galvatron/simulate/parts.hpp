// What the instructions of a plan's stages are made of: layers, recomputation, communication and moves, as cost_of
// priced them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/schedule/program.hpp>

namespace galvatron::simulate {

/// What a stage may be doing.
enum class Activity : std::uint8_t {
  compute,        ///< forward and backward passes
  recompute,      ///< forward passes again, before their backward
  communication,  ///< collectives inside layers that computation waits for
  transfer,       ///< re-layouts between layers, and what comes from neighbouring stages
  gradients,      ///< their reduction, once an iteration
  update,         ///< optimizer, once an iteration
  waiting,        ///< for other stages: the bubble
};
inline constexpr std::size_t activities = 7;

constexpr const char* name_of(Activity activity) {
  constexpr const char* names[activities] = {"compute",   "recompute", "communication", "transfer",
                                             "gradients", "update",    "waiting"};
  return names[static_cast<std::size_t>(activity)];
}

/// A part of an instruction.
struct Piece {
  int layer = -1;  ///< in PlanCost::layers; -1: of the whole stage
  Activity activity = Activity::compute;
  Seconds seconds;
};

/// What an instruction of stage number `stage` is made of, in the order in which it happens; nothing that takes no
/// time.
inline std::vector<Piece> pieces_of(const PlanCost& cost, std::size_t stage, const schedule::Instruction& instruction) {
  using schedule::Op;
  std::vector<Piece> out;
  const auto add = [&out](int layer, Activity activity, Seconds seconds) {
    if (seconds.value > 0) out.push_back({layer, activity, seconds});
  };
  const PlanStageCost& own = cost.stages[stage];
  const PlanChunkCost& chunk = own.chunks[static_cast<std::size_t>(instruction.chunk)];
  const auto priced = [&](int layer) -> const PlanLayerCost& { return cost.layers[static_cast<std::size_t>(layer)]; };
  const auto backward = [&](bool input, bool weights) {
    for (int layer = chunk.end - 1; layer >= chunk.first; --layer) {
      const cost::LayerSeconds& s = priced(layer).seconds;
      const Seconds recompute = priced(layer).recompute;
      const Seconds computation = s.backward - s.backward_communication - recompute;
      if (input) add(layer, Activity::recompute, recompute);
      add(layer, Activity::compute, (input ? computation - s.weights : Seconds{}) + (weights ? s.weights : Seconds{}));
      if (!input) continue;
      add(layer, Activity::communication, s.backward_communication);
      add(layer, Activity::transfer, priced(layer).relayout_backward);
    }
  };
  switch (instruction.op) {
    case Op::receive_activation:
      add(-1, Activity::transfer, chunk.receive_activation);
      break;
    case Op::receive_gradient:
      add(-1, Activity::transfer, chunk.receive_gradient);
      break;
    case Op::forward:
      for (int layer = chunk.first; layer < chunk.end; ++layer) {
        const cost::LayerSeconds& s = priced(layer).seconds;
        add(layer, Activity::transfer, priced(layer).relayout_forward);
        add(layer, Activity::compute, s.forward - s.forward_communication);
        add(layer, Activity::communication, s.forward_communication);
      }
      break;
    case Op::backward:
      backward(true, true);
      break;
    case Op::backward_input:
      backward(true, false);
      break;
    case Op::backward_weight:
      backward(false, true);
      break;
    case Op::reduce_gradients:
      add(-1, Activity::gradients, own.seconds.synchronise);
      break;
    case Op::step:
      add(-1, Activity::update, own.seconds.update);
      break;
    default:
      break;
  }
  return out;
}

/// The seconds of an instruction of a stage.
inline Seconds seconds_of(const PlanCost& cost, std::size_t stage, const schedule::Instruction& instruction) {
  Seconds sum;
  for (const Piece& piece : pieces_of(cost, stage, instruction)) sum += piece.seconds;
  return sum;
}

}  // namespace galvatron::simulate
