// Random strategies for the layers of a plan whose stages and ranks are given; for the tests of training.
#pragma once

#include <random>

#include <galvatron/strategy/legality.hpp>

#include "toy.hpp"

namespace toy {

inline StrategySpec random_strategy(std::mt19937& random, const LayerSpec& layer, int ranks, std::int64_t microbatch) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (;;) {
    StrategySpec spec;
    spec.tensor = 1 << pick(4);
    if (ranks % spec.tensor != 0) continue;
    spec.data = ranks / spec.tensor;
    spec.sequence = pick(2) == 0 ? SequenceKind::none : SequenceKind::megatron;
    spec.zero = pick(4);
    spec.recompute = pick(2) == 0 ? RecomputeKind::none : RecomputeKind::full;
    if (is_legal(spec) && is_fit(layer, spec, microbatch, sequence)) return spec;
  }
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
