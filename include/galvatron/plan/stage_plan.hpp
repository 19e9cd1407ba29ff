// What a plan says about one rank: its stage's chunks of layers, their layouts, neighbours and memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/model/predictions.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/schedule/schedule.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron {

/// What the layers of a plan, which outlives it, are priced for.
inline cost::Batch batch_of(const Plan& plan) {
  return {.microbatch = plan.microbatch(),
          .sequence = plan.sequence_length,
          .precision = plan.precision,
          .microbatches = plan.microbatches,
          .stages = ends_share_stage(plan.schedule, static_cast<int>(plan.stages.size()))
                        ? 1
                        : static_cast<int>(plan.stages.size()),
          .last_first_rank = head_stage(plan).first_rank,
          .splits_backward = splits_backward(plan.schedule),
          .trainer = &plan.trainer.traits,
          .overlap = plan.overlap,
          .moments = plan.moments,
          .expert_imbalance = plan.expert_imbalance,
          .lsh = plan.lsh};
}

}  // namespace galvatron

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
  int place = 0;     ///< in the order of the layers, see virtual_stage_of
  int buffers = 1;   ///< for what it sends, each way
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
  int rank = 0;                      ///< of the world: the one that the plan is for
  RankRatios ratios{};               ///< of the stage's ranks, see PlanStage
  double token_weight = 0;           ///< of a prediction in a loss
  std::int64_t global_batch = 0;     ///< samples of a step
  std::vector<double> loss_weights;  ///< of each loss in the model's
  cost::Batch batch;
  std::vector<ChunkPlan> chunks;  ///< in the order of the layers
};

/// Virtual stage `index` of a plan, see virtual_stage_layers. The plan, whose ratios the layouts have, outlives it.
inline ChunkPlan chunk_plan(const Plan& plan, const ModelSpec& model, int index) {
  const int stages = static_cast<int>(plan.stages.size());
  const int stage = stage_of_virtual_stage(plan.schedule, stages, index);
  // A layer's layout, on virtual stage `virtual_stage`.
  const auto layout = [&](const StrategySpec& spec, int virtual_stage) {
    const PlanStage& own =
        plan.stages[static_cast<std::size_t>(stage_of_virtual_stage(plan.schedule, stages, virtual_stage))];
    return activation_layout(spec, own.first_rank, plan.microbatch(), plan.sequence_length, own.ratios());
  };
  const auto spec_of = [&](int block) { return plan.layers[static_cast<std::size_t>(block)]; };
  const LayerRange range = virtual_stage_layers(plan, index);
  ChunkPlan out;
  out.index = index / stages;
  out.place = index;
  out.buffers = message_buffers(plan.schedule);
  // Of packed documents a step may have any number.
  const int microbatches = plan.packed ? std::numeric_limits<int>::max() : plan.microbatches;
  out.slots = microbatches_in_flight(plan.schedule, stages, stage, microbatches, plan.virtual_stages, out.index);
  if (plan.schedule == ScheduleKind::interleaved && plan.trainer.traits.shares_slots)
    out.slots = interleaved_in_flight(stages, stage, microbatches, plan.virtual_stages, out.index);
  out.deferred = microbatches_deferred(plan.schedule, stage, microbatches, out.index);
  out.has_previous = index > 0;
  out.has_next = index + 1 < stages * plan.virtual_stages;
  if (!out.has_previous) out.layers.push_back({model.embedding, plan.embedding, 0});
  const auto is_loss = [](const LayerSpec& block) { return block.kind == LayerKind::head; };
  auto losses = static_cast<int>(std::count_if(model.blocks.begin(), model.blocks.begin() + range.first, is_loss));
  for (int i = range.first; i <= range.last; ++i) {
    const LayerSpec& block = model.blocks[static_cast<std::size_t>(i)];
    out.layers.push_back({block, spec_of(i), i + 1, is_loss(block) ? ++losses : 0});
  }
  if (!out.has_next) out.layers.push_back({model.head, plan.head, static_cast<int>(model.blocks.size()) + 1});
  for (const ChunkPlan::Entry& entry : out.layers) out.layouts.push_back(layout(entry.spec, index));
  // Beside a chunk without blocks is an end.
  const auto at = [&](int block) {
    return block < 0 ? plan.embedding : block < std::ssize(plan.layers) ? spec_of(block) : plan.head;
  };
  if (out.has_previous) out.previous = layout(at(range.first - 1), index - 1);
  if (out.has_next) out.next = layout(at(range.last + 1), index + 1);
  return out;
}

/// The part of a plan, which outlives it, that concerns the stage of `rank`. Throws Failure (usage) when no stage has
/// the rank.
inline StagePlan stage_plan(const Plan& plan, const ModelSpec& model, int rank) {
  StagePlan out;
  out.stages = static_cast<int>(plan.stages.size());
  const auto stage = std::ranges::find_if(
      plan.stages, [rank](const PlanStage& s) { return rank >= s.first_rank && rank < s.first_rank + s.rank_count; });
  if (stage == plan.stages.end())
    throw Failure(ErrorKind::usage, "the plan has no stage for rank " + std::to_string(rank) +
                                        ": run it on the number of ranks that it was made for");
  out.index = static_cast<int>(stage - plan.stages.begin());
  out.first_rank = stage->first_rank;
  out.rank = rank;
  out.ratios = stage->ratios();
  out.token_weight =
      1.0 / (static_cast<double>(plan.global_batch) * static_cast<double>(predictions(model, plan.sequence_length)));
  out.global_batch = plan.global_batch;
  out.batch = batch_of(plan);
  out.loss_weights = {model.head.loss_weight};
  for (const LayerSpec& block : model.blocks)
    if (block.kind == LayerKind::head) out.loss_weights.push_back(block.loss_weight);
  for (int c = 0; c < plan.virtual_stages; ++c)
    out.chunks.push_back(chunk_plan(plan, model, virtual_stage_of(plan.schedule, out.stages, out.index, c)));
  return out;
}

/// What a chunk adds to the memory of each rank of its stage, byte for byte.
/// @param layers   what each of them keeps
/// @param library  the device's library workspace
inline cost::StageMemory memory_of(const ChunkPlan& chunk, const std::vector<cost::LayerBytes>& layers, Bytes library) {
  return cost::stage_memory(layers, chunk.layouts, chunk.slots, chunk.deferred, chunk.has_previous ? chunk.buffers : 0,
                            chunk.has_next ? chunk.buffers : 0, library);
}

/// What one rank counts: a batch of which every data rank has as many samples as it has of this one, and its shares.
/// @param ratios  of the ranks of the stage
inline cost::Batch batch_of_rank(cost::Batch batch, const RankRatios& ratios, const StrategySpec& spec,
                                 const ActivationLayout& layout, int rank) {
  const Sharding samples = layout.samples();
  batch.microbatch = samples.count(layout.place(rank).data) * layout.data;
  batch.ratios = ratios;
  batch.local_rank = rank - layout.first_rank;
  batch.exchanged = exchanged_samples(spec, layout, samples, rank);
  return batch;
}

/// The memory of the rank that the plan is for, byte for byte.
/// @param library  the device's library workspace
template <class = void>
cost::StageMemory memory_of(const StagePlan& stage, Bytes library) {
  cost::StageMemory out;
  for (const ChunkPlan& chunk : stage.chunks) {
    std::vector<cost::LayerBytes> layers;
    for (std::size_t i = 0; i < chunk.layers.size(); ++i)
      layers.push_back(cost::layer_counts(
          chunk.layers[i].layer, chunk.layers[i].spec,
          batch_of_rank(stage.batch, stage.ratios, chunk.layers[i].spec, chunk.layouts[i], stage.rank)));
    out.add_chunk(memory_of(chunk, layers, library));
  }
  return out;
}
GALVATRON_IN_PLANNER(cost::StageMemory memory_of<>(const StagePlan&, Bytes))

}  // namespace galvatron::train
