// What a plan says about one rank: its stage's layers, layouts, neighbours and memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/schedule.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

struct StagePlan {
  struct Entry {
    LayerSpec layer;
    StrategySpec spec;
    int number = 0;  ///< in the model; the embedding is 0
  };
  int index = 0;       ///< of the stage
  int first_rank = 0;  ///< of its ranks
  int slots = 1;       ///< micro-batches in flight
  bool has_previous = false;
  bool has_next = false;
  std::int64_t hidden = 0;
  double token_weight = 0;  ///< of a token in the loss
  std::vector<Entry> layers;
  std::vector<ActivationLayout> layouts;  ///< of the layers' inputs and outputs
  ActivationLayout previous;              ///< of the last layer of the stage before
  ActivationLayout next;                  ///< of the first layer of the stage after
  cost::Batch batch;
};

/// The part of a plan that concerns the stage of `rank`. Throws Failure (usage) when no stage has the rank.
inline StagePlan stage_plan(const Plan& plan, const ModelSpec& model, int rank) {
  StagePlan out;
  const int stages = static_cast<int>(plan.stages.size());
  out.index = -1;
  for (int i = 0; i < stages; ++i) {
    const auto& stage = plan.stages[static_cast<std::size_t>(i)];
    if (rank >= stage.first_rank && rank < stage.first_rank + stage.rank_count) out.index = i;
  }
  if (out.index < 0)
    throw Failure(ErrorKind::usage, "the plan has no stage for rank " + std::to_string(rank) +
                                        ": run it on the number of ranks that it was made for");
  const std::int64_t microbatch = plan.global_batch / plan.microbatches;
  const auto layout = [&](const StrategySpec& spec, int stage) {
    return activation_layout(spec, plan.stages[static_cast<std::size_t>(stage)].first_rank, microbatch,
                             plan.sequence_length);
  };
  const auto& stage = plan.stages[static_cast<std::size_t>(out.index)];
  out.first_rank = stage.first_rank;
  out.has_previous = out.index > 0;
  out.has_next = out.index + 1 < stages;
  out.slots = schedule::in_flight(plan.schedule, out.index, stages, plan.microbatches);
  out.hidden = model.hidden();
  out.token_weight = 1.0 / (static_cast<double>(plan.global_batch) * static_cast<double>(plan.sequence_length));
  out.batch = {.microbatch = microbatch,
               .sequence = plan.sequence_length,
               .precision = plan.precision,
               .microbatches = plan.microbatches,
               .stages = stages};
  const int blocks = static_cast<int>(model.blocks.size());
  if (!out.has_previous) out.layers.push_back({model.embedding, plan.embedding, 0});
  for (int i = stage.first_layer; i <= stage.last_layer; ++i)
    out.layers.push_back({model.blocks[static_cast<std::size_t>(i)], plan.layers[static_cast<std::size_t>(i)], i + 1});
  if (!out.has_next) out.layers.push_back({model.head, plan.head, blocks + 1});
  for (const StagePlan::Entry& entry : out.layers) out.layouts.push_back(layout(entry.spec, out.index));
  if (out.has_previous)
    out.previous = layout(plan.layers[static_cast<std::size_t>(stage.first_layer - 1)], out.index - 1);
  if (out.has_next) out.next = layout(plan.layers[static_cast<std::size_t>(stage.last_layer + 1)], out.index + 1);
  return out;
}

/// The memory of each rank of the stage, byte for byte.
/// @param library  the device's library workspace
inline cost::StageMemory memory_of(const StagePlan& stage, Bytes library) {
  std::vector<cost::LayerCounts> counts;
  for (const StagePlan::Entry& entry : stage.layers)
    counts.push_back(cost::layer_counts(entry.layer, entry.spec, stage.batch));
  return cost::stage_memory(counts, stage.layouts, stage.slots, stage.has_previous, stage.has_next, library);
}

}  // namespace galvatron::train
