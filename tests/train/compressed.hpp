// Plans whose experts get compressed tokens: see StrategySpec::dispatch.
#pragma once

#include "toy.hpp"

namespace toy {

/// One stage, every layer with the same strategy, `microbatches` micro-batches.
inline Plan compressing_plan(const ModelSpec& model, StrategySpec spec, const LshOptions& lsh, int microbatches) {
  spec.dispatch = DispatchKind::lsh;
  Plan plan = uniform(model, 1, spec, microbatches, ScheduleKind::one_f_one_b);
  plan.lsh = lsh;
  return plan;
}

/// Strategies on 4 ranks that exchange tokens between experts.
inline constexpr StrategySpec exchanging_strategies[] = {
    {.data = 4, .expert = 4},
    {.data = 4, .zero = 3, .expert = 2, .recompute = RecomputeKind::full},
    {.tensor = 2, .data = 2, .zero = 1, .expert = 4, .expert_tensor = 1, .recompute = RecomputeKind::none},
    {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .expert = 2, .expert_tensor = 2},
    {.sequence = SequenceKind::ulysses, .context = 2, .data = 2, .zero = 2, .expert = 2},
    {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2, .expert = 2},
};

/// No two tokens are taken together: compressed dispatch is plain dispatch.
inline constexpr LshOptions compresses_nothing{.hashes = 1, .width = 1, .most_rate = 0.0};

}  // namespace toy
