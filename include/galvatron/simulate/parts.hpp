// What the instructions of a plan's stages are made of: layers, recomputation, communication and moves, as cost_of
// priced them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
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

/// A plan with its cost.
struct PlanParts {
  PlanCost cost;
  std::vector<Seconds> recompute;  ///< of each layer: the forward pass again, part of its backward computation
};

/// What an instruction of stage number `stage` is made of, in the order in which it happens; nothing that takes no
/// time.
inline std::vector<Piece> pieces_of(const PlanParts& parts, std::size_t stage,
                                    const schedule::Instruction& instruction) {
  using schedule::Op;
  std::vector<Piece> out;
  const auto add = [&out](int layer, Activity activity, Seconds seconds) {
    if (seconds.value > 0) out.push_back({layer, activity, seconds});
  };
  const PlanStageCost& own = parts.cost.stages[stage];
  const PlanChunkCost& chunk = own.chunks[static_cast<std::size_t>(instruction.chunk)];
  const auto priced = [&](int layer) -> const PlanLayerCost& {
    return parts.cost.layers[static_cast<std::size_t>(layer)];
  };
  const auto backward = [&](bool input, bool weights) {
    for (int layer = chunk.end - 1; layer >= chunk.first; --layer) {
      const cost::LayerSeconds& s = priced(layer).seconds;
      const Seconds recompute = parts.recompute[static_cast<std::size_t>(layer)];
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
inline Seconds seconds_of(const PlanParts& parts, std::size_t stage, const schedule::Instruction& instruction) {
  Seconds sum;
  for (const Piece& piece : pieces_of(parts, stage, instruction)) sum += piece.seconds;
  return sum;
}

namespace detail {

/// What a layer saves without recomputing.
inline Seconds recompute_seconds(const LayerSpec& layer, const PlanLayerCost& priced, const cost::Batch& batch,
                                 const Cluster& cluster, int ranks) {
  StrategySpec spec = priced.spec;
  if (spec.recompute == RecomputeKind::cheap || spec.recompute == RecomputeKind::none) return {};
  spec.recompute = RecomputeKind::cheap;
  const cost::LayerSeconds once =
      cost::layer_seconds(cost::layer_counts(layer, spec, batch), spec, batch.precision, cluster, ranks);
  const Seconds computation = priced.seconds.backward - priced.seconds.backward_communication;
  const Seconds more = computation - (once.backward - once.backward_communication);
  return min(max(more, Seconds{}), computation - priced.seconds.weights);
}

}  // namespace detail

/// The parts of a plan on a cluster. Errors (usage): those of cost_of.
inline Result<PlanParts> parts_of(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  auto priced = cost_of(plan, model, cluster);
  if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
  PlanParts out{std::move(*priced), {}};
  const std::vector<PlanLayerCost>& layers = out.cost.layers;
  const LayerSpec* previous = nullptr;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = i == 0 ? model.embedding : i + 1 == layers.size() ? model.head : model.blocks[i - 1];
    const bool again = previous != nullptr && layer.costs_like(*previous) && layers[i].spec == layers[i - 1].spec;
    out.recompute.push_back(again ? out.recompute.back()
                                  : detail::recompute_seconds(layer, layers[i], batch_of(plan), cluster, plan.ranks()));
    previous = &layer;
  }
  return out;
}

}  // namespace galvatron::simulate
