// Random strategies for the layers of a plan whose stages and ranks are given; for the tests of training.
#pragma once

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <vector>

#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>

#include "toy.hpp"

namespace toy {

template <class List>
auto one_of(std::mt19937& random, const List& list) {
  return list[random() % std::size(list)];
}

/// Any strategy that the trainer carries out and that suits the layer; data degree 0 if there is none. Where the stage
/// has ratios, half of them have shards by ratio; their data degrees need not divide a micro-batch that is cut so.
inline StrategySpec random_strategy(std::mt19937& random, const LayerSpec& layer, int ranks, std::int64_t microbatch,
                                    const PlanStage& stage = {}) {
  Space space;
  space.experts = layer.experts;
  std::vector<StrategySpec> fitting = strategies(space, ranks);
  for (StrategySpec& spec : fitting) {
    StrategySpec strided = spec;
    strided.strided = true;
    if (random() % 2 == 0 && is_legal(strided)) spec = strided;
    StrategySpec shared = spec;
    shared.expert_tensor = one_of(random, std::array{0, 1, 2, 4});
    shared.expert_nodes = one_of(random, std::array{1, 1, 2, 4});
    if (layer.experts > 0 && is_legal(shared)) spec = shared;
    if (stage.has_ratios() && random() % 2 == 0) spec.shard_kind = ShardKind::by_ratio;
  }
  const std::int64_t tokens = layer.patch_width > 0 || layer.window > 0 ? layer.positions : sequence;
  std::erase_if(fitting, [&](const StrategySpec& spec) {
    const bool cuts_samples = spec.shard_kind == ShardKind::by_ratio && !stage.sample_ratios.empty();
    const std::int64_t samples = cuts_samples ? spec.data : microbatch;
    return !is_fit(layer, spec, samples, std::min(tokens, layer.positions), stage.ratios());
  });
  return fitting.empty() ? StrategySpec{.data = 0} : one_of(random, fitting);
}

/// Every layer gets a strategy of its own; the ends of a tied model share theirs.
inline void spread_at_random(std::mt19937& random, Plan& plan, const ModelSpec& model) {
  const std::vector<const PlanStage*> stages = stages_of_layers(plan);
  for (std::size_t i = 0; i < stages.size(); ++i)
    plan.layers[i] = random_strategy(random, model.blocks[i], stages[i]->rank_count, plan.microbatch(), *stages[i]);
  const auto end = [&](const LayerSpec& layer, const PlanStage& stage) {
    return random_strategy(random, layer, stage.rank_count, plan.microbatch(), stage);
  };
  plan.embedding = end(model.embedding, plan.stages.front());
  plan.head = model.head.tied ? plan.embedding : end(model.head, head_stage(plan));
}

}  // namespace toy
