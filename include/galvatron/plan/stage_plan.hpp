// What a plan says about one rank: its stage's chunks of layers, their layouts, neighbours and memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/model/predictions.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/schedule/schedule.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

/// A run of layers that a stage carries out together: all that it has, or one of its virtual stages.
struct ChunkPlan {
  struct Entry {
    LayerSpec layer;
    StrategySpec spec;
    int number = 0;  ///< in the model; the embedding is 0
    int loss = 0;    ///< of a head: 0 the model's last, then the others in their order
  };
  int index = 0;     ///< of the chunk in its stage
  int slots = 1;     ///< micro-batches in flight
  int deferred = 0;  ///< of them between the two parts of a split backward
  bool has_previous = false;
  bool has_next = false;
  std::vector<Entry> layers;
  std::vector<ActivationLayout> layouts;  ///< of the layers' inputs and outputs
  ActivationLayout previous;              ///< of the last layer of the chunk before
  ActivationLayout next;                  ///< of the first layer of the chunk after
};

struct StagePlan {
  int index = 0;                     ///< of the stage
  int stages = 1;                    ///< of the pipeline
  int first_rank = 0;                ///< of its ranks
  double token_weight = 0;           ///< of a prediction in a loss
  std::vector<double> loss_weights;  ///< of each loss in the model's
  cost::Batch batch;
  std::vector<ChunkPlan> chunks;  ///< in the order of the layers
};

/// The part of a plan that concerns the stage of `rank`. Throws Failure (usage) when no stage has the rank.
inline StagePlan stage_plan(const Plan& plan, const ModelSpec& model, int rank) {
  StagePlan out;
  out.stages = static_cast<int>(plan.stages.size());
  out.index = -1;
  for (int i = 0; i < out.stages; ++i) {
    const auto& stage = plan.stages[static_cast<std::size_t>(i)];
    if (rank >= stage.first_rank && rank < stage.first_rank + stage.rank_count) out.index = i;
  }
  if (out.index < 0)
    throw Failure(ErrorKind::usage, "the plan has no stage for rank " + std::to_string(rank) +
                                        ": run it on the number of ranks that it was made for");
  out.first_rank = plan.stages[static_cast<std::size_t>(out.index)].first_rank;
  out.token_weight =
      1.0 / (static_cast<double>(plan.global_batch) * static_cast<double>(predictions(model, plan.sequence_length)));
  out.batch = batch_of(plan);
  out.loss_weights = {model.head.loss_weight};
  std::vector<int> losses(model.blocks.size());
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    if (model.blocks[i].kind == LayerKind::head) {
      losses[i] = static_cast<int>(out.loss_weights.size());
      out.loss_weights.push_back(model.blocks[i].loss_weight);
    }
  // A layer's layout, on virtual stage `virtual_stage`.
  const auto layout = [&](const StrategySpec& spec, int virtual_stage) {
    const PlanStage& stage = plan.stages[static_cast<std::size_t>(virtual_stage % out.stages)];
    return activation_layout(spec, stage.first_rank, plan.microbatch(), plan.sequence_length);
  };
  const auto spec_of = [&](int block) { return plan.layers[static_cast<std::size_t>(block)]; };
  const int last = out.stages * plan.virtual_stages - 1;
  for (int c = 0; c < plan.virtual_stages; ++c) {
    const int own = c * out.stages + out.index;  // the virtual stage
    const LayerRange range = virtual_stage_layers(plan, own);
    ChunkPlan chunk;
    chunk.index = c;
    chunk.slots =
        microbatches_in_flight(plan.schedule, out.stages, out.index, plan.microbatches, plan.virtual_stages, c);
    chunk.deferred = microbatches_deferred(plan.schedule, out.index, plan.microbatches);
    chunk.has_previous = own > 0;
    chunk.has_next = own < last;
    if (!chunk.has_previous) chunk.layers.push_back({model.embedding, plan.embedding, 0});
    for (int i = range.first; i <= range.last; ++i)
      chunk.layers.push_back(
          {model.blocks[static_cast<std::size_t>(i)], spec_of(i), i + 1, losses[static_cast<std::size_t>(i)]});
    if (!chunk.has_next) chunk.layers.push_back({model.head, plan.head, static_cast<int>(model.blocks.size()) + 1});
    for (const ChunkPlan::Entry& entry : chunk.layers) chunk.layouts.push_back(layout(entry.spec, own));
    if (chunk.has_previous) chunk.previous = layout(spec_of(range.first - 1), own - 1);
    if (chunk.has_next) chunk.next = layout(spec_of(range.last + 1), own + 1);
    out.chunks.push_back(std::move(chunk));
  }
  return out;
}

/// The memory of each rank of the stage, byte for byte.
/// @param library  the device's library workspace
inline cost::StageMemory memory_of(const StagePlan& stage, Bytes library) {
  cost::StageMemory out;
  for (const ChunkPlan& chunk : stage.chunks) {
    std::vector<cost::LayerCounts> counts;
    for (const ChunkPlan::Entry& entry : chunk.layers)
      counts.push_back(cost::layer_counts(entry.layer, entry.spec, stage.batch));
    out.add_chunk(cost::stage_memory(counts, chunk.layouts, chunk.slots, chunk.deferred, chunk.has_previous,
                                     chunk.has_next, library));
  }
  return out;
}

}  // namespace galvatron::train
