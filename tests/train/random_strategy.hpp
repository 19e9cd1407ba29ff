// Random strategies for the layers of a plan whose stages and ranks are given; for the tests of training.
#pragma once

#include <algorithm>
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

/// Any strategy that the trainer carries out and that suits the layer; data degree 0 if there is none.
inline StrategySpec random_strategy(std::mt19937& random, const LayerSpec& layer, int ranks, std::int64_t microbatch) {
  std::vector<StrategySpec> fitting = strategies(runnable_space(), ranks);
  for (StrategySpec& spec : fitting) {
    StrategySpec strided = spec;
    strided.strided = true;
    if (random() % 2 == 0 && is_legal(strided)) spec = strided;
  }
  const std::int64_t tokens = layer.patch_width > 0 || layer.window > 0 ? layer.positions : sequence;
  std::erase_if(fitting, [&](const StrategySpec& spec) {
    return !is_fit(layer, spec, microbatch, std::min(tokens, layer.positions));
  });
  return fitting.empty() ? StrategySpec{.data = 0} : one_of(random, fitting);
}

/// Every layer gets a strategy of its own; the ends of a tied model share theirs.
inline void spread_at_random(std::mt19937& random, Plan& plan, const ModelSpec& model) {
  const int ranks = plan.stages.front().rank_count;
  for (std::size_t i = 0; i < model.blocks.size(); ++i)
    plan.layers[i] = random_strategy(random, model.blocks[i], ranks, plan.microbatch());
  plan.embedding = random_strategy(random, model.embedding, ranks, plan.microbatch());
  plan.head = model.head.tied ? plan.embedding : random_strategy(random, model.head, ranks, plan.microbatch());
}

}  // namespace toy
