// What the instructions of a plan's stages are made of: layers, recomputation, communication, moves, and bytes.
//
// The figures are those of cost_of, layer by layer: what a stage's parts add up to is the stage's cost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/program.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::simulate {

/// One layer's share of the passes of a micro-batch, seconds of one rank with all ranks at work.
struct LayerParts {
  int number = 0;         ///< in the model: 0 the embedding, then the blocks, then the head
  Seconds move_forward;   ///< re-layout of its input
  Seconds move_backward;  ///< and of that input's gradient
  Seconds forward;        ///< computation
  Seconds forward_communication;
  Seconds recompute;  ///< the forward pass again, in the backward pass
  Seconds backward;   ///< computation without it
  Seconds backward_communication;
  Seconds weights;  ///< part of the backward computation that zb-h1 puts off
};

/// A stage, or one of its chunks if it has several.
struct ChunkParts {
  std::vector<LayerParts> layers;
  Seconds receive_activation;
  Seconds receive_gradient;
  Bytes stash;               ///< of one micro-batch
  Bytes deferred;            ///< besides, of one between the two parts of a split backward
  Bytes forward_workspace;   ///< transient peak of a forward pass
  Bytes backward_workspace;  ///< of a backward pass, or its first part
  Bytes weights_workspace;   ///< of the second part
};

struct StageParts {
  std::vector<ChunkParts> chunks;
  Seconds synchronise;       ///< gradients, once an iteration
  Seconds update;            ///< optimizer, once an iteration
  cost::StageMemory memory;  ///< what a rank reserves
};

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
  int layer = -1;  ///< LayerParts::number; -1: of the whole stage
  Activity activity = Activity::compute;
  Seconds seconds;
};

/// What an instruction of a stage is made of, in the order in which it happens; nothing that takes no time.
inline std::vector<Piece> pieces_of(const StageParts& stage, const schedule::Instruction& instruction) {
  using schedule::Op;
  std::vector<Piece> out;
  const auto add = [&out](int layer, Activity activity, Seconds seconds) {
    if (seconds.value > 0) out.push_back({layer, activity, seconds});
  };
  const ChunkParts& chunk = stage.chunks[static_cast<std::size_t>(instruction.chunk)];
  const auto backward = [&](bool input, bool weights) {
    for (auto l = chunk.layers.rbegin(); l != chunk.layers.rend(); ++l) {
      if (input) add(l->number, Activity::recompute, l->recompute);
      add(l->number, Activity::compute,
          (input ? l->backward - l->weights : Seconds{}) + (weights ? l->weights : Seconds{}));
      if (!input) continue;
      add(l->number, Activity::communication, l->backward_communication);
      add(l->number, Activity::transfer, l->move_backward);
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
      for (const LayerParts& l : chunk.layers) {
        add(l.number, Activity::transfer, l.move_forward);
        add(l.number, Activity::compute, l.forward);
        add(l.number, Activity::communication, l.forward_communication);
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
      add(-1, Activity::gradients, stage.synchronise);
      break;
    case Op::step:
      add(-1, Activity::update, stage.update);
      break;
    default:
      break;
  }
  return out;
}

/// The seconds of an instruction of a stage.
inline Seconds seconds_of(const StageParts& stage, const schedule::Instruction& instruction) {
  Seconds sum;
  for (const Piece& piece : pieces_of(stage, instruction)) sum += piece.seconds;
  return sum;
}

/// A plan with its cost and what that is made of.
struct PlanParts {
  PlanCost cost;
  std::vector<StageParts> stages;
};

namespace detail {

/// Part of a layer's backward computation that repeats its forward pass: what the same layer saves without recomputing.
inline Seconds recompute_seconds(const LayerSpec& layer, StrategySpec spec, const cost::Batch& batch,
                                 const cost::LayerSeconds& priced, const Cluster& cluster, int ranks) {
  if (spec.recompute == RecomputeKind::none || spec.recompute == RecomputeKind::never) return {};
  spec.recompute = RecomputeKind::none;
  const cost::LayerSeconds once =
      cost::layer_seconds(cost::layer_counts(layer, spec, batch), spec, batch.precision, cluster, ranks);
  const Seconds computation = priced.backward - priced.backward_communication;
  const Seconds more = computation - (once.backward - once.backward_communication);
  return min(max(more, Seconds{}), computation - priced.weights);
}

inline LayerParts layer_parts(const LayerSpec& layer, const PlanLayerCost& priced, int number, const cost::Batch& batch,
                              const Cluster& cluster, int ranks) {
  const cost::LayerSeconds& s = priced.seconds;
  LayerParts out;
  out.number = number;
  out.move_forward = priced.relayout_forward;
  out.move_backward = priced.relayout_backward;
  out.forward = s.forward - s.forward_communication;
  out.forward_communication = s.forward_communication;
  out.recompute = recompute_seconds(layer, priced.spec, batch, s, cluster, ranks);
  out.backward = s.backward - s.backward_communication - out.recompute;
  out.backward_communication = s.backward_communication;
  out.weights = s.weights;
  return out;
}

}  // namespace detail

/// The parts of a plan on a cluster. Errors (usage): those of cost_of.
inline Result<PlanParts> parts_of(const Plan& plan, const ModelSpec& model, const Cluster& cluster) {
  auto priced = cost_of(plan, model, cluster);
  if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
  PlanParts out;
  out.cost = std::move(*priced);
  const int count = static_cast<int>(plan.stages.size());
  const int virtual_stages = count * plan.virtual_stages;
  const int blocks = static_cast<int>(model.blocks.size());
  const cost::Batch batch = batch_of(plan);
  const auto layer_of = [&](int number) -> const LayerSpec& {
    if (number == 0) return model.embedding;
    return number > blocks ? model.head : model.blocks[static_cast<std::size_t>(number - 1)];
  };
  const auto receive = [&](std::int64_t elements, const StrategySpec& spec) {
    return cost::MovePricer(batch, elements, cluster, plan.ranks()).receive(spec);
  };
  out.stages.resize(plan.stages.size());
  for (int i = 0; i < virtual_stages; ++i) {
    StageParts& stage = out.stages[static_cast<std::size_t>(i % count)];
    const LayerRange range = virtual_stage_layers(plan, i);
    const bool last = i + 1 == virtual_stages;
    const int begin = i == 0 ? 0 : range.first + 1;
    const int end = last ? blocks + 2 : range.last + 2;
    ChunkParts chunk;
    std::vector<cost::LayerCounts> counts;
    std::vector<ActivationLayout> layouts;
    for (int number = begin; number < end; ++number) {
      const LayerSpec& layer = layer_of(number);
      const PlanLayerCost& cost = out.cost.layers[static_cast<std::size_t>(number)];
      const bool again = !chunk.layers.empty() && layer.costs_like(layer_of(number - 1)) &&
                         cost.spec == out.cost.layers[static_cast<std::size_t>(number - 1)].spec;
      counts.push_back(again ? counts.back() : cost::layer_counts(layer, cost.spec, batch));
      layouts.push_back(activation_layout(cost.spec, plan.stages[static_cast<std::size_t>(i % count)].first_rank,
                                          batch.microbatch, batch.sequence));
      chunk.layers.push_back(detail::layer_parts(layer, cost, number, batch, cluster, plan.ranks()));
      stage.synchronise += cost.seconds.synchronise;
      stage.update += cost.seconds.update;
    }
    if (i > 0)
      chunk.receive_activation = receive(layer_of(begin).input_elements(batch.sequence),
                                         out.cost.layers[static_cast<std::size_t>(begin)].spec);
    if (!last)
      chunk.receive_gradient = receive(layer_of(end - 1).output_elements(batch.sequence),
                                       out.cost.layers[static_cast<std::size_t>(end - 1)].spec);
    // The workspace of one pass is what is left when layers take none in the others.
    const auto memory = [&](auto only) {
      std::vector<cost::LayerCounts> of = counts;
      for (cost::LayerCounts& c : of) {
        cost::LayerCounts none = c;
        none.forward_workspace = none.backward_workspace = none.weights_workspace = {};
        none.*only = c.*only;
        c = none;
      }
      return cost::stage_memory(of, layouts, 1, 0, i > 0, !last, {});
    };
    chunk.stash = memory(&cost::LayerCounts::forward_workspace).stash;
    if (splits_backward(plan.schedule))
      for (const cost::LayerCounts& c : counts) chunk.deferred += c.deferred;
    chunk.forward_workspace = memory(&cost::LayerCounts::forward_workspace).workspace;
    chunk.backward_workspace = memory(&cost::LayerCounts::backward_workspace).workspace;
    chunk.weights_workspace = memory(&cost::LayerCounts::weights_workspace).workspace;
    stage.chunks.push_back(std::move(chunk));
  }
  for (std::size_t s = 0; s < out.stages.size(); ++s) out.stages[s].memory = out.cost.stages[s].memory;
  return out;
}

}  // namespace galvatron::simulate
