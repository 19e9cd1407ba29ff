// Every uniform strategy on a number of ranks against one rank; shared by the tests of the GPT and of the Llama family.
#pragma once

#include <algorithm>

#include <doctest/doctest.h>

#include <galvatron/strategy/legality.hpp>

#include "../sanitized.hpp"
#include "check_plan.hpp"
#include "toy.hpp"

namespace toy {

/// Every (stages, tensor, context, sequence, data, ZeRO) that `ranks` ranks allow. Without context parallelism also
/// with every kind of recomputation, and with every number of micro-batches where nothing or all is recomputed; with it
/// these take turns, and so they do with strided tensor ranks.
inline std::vector<Plan> combinations(const ModelSpec& model, int ranks) {
  std::vector<Plan> out;
  const auto add = [&](int stages, const StrategySpec& spec, int microbatches) {
    if (!is_legal(spec)) return;
    const auto suits = [&](const LayerSpec& layer) {
      return is_fit(layer, spec, global_batch / microbatches, single_rank(model).sequence_length);
    };
    if (!suits(model.embedding) || !suits(model.head)) return;
    if (!std::all_of(model.blocks.begin(), model.blocks.end(), suits)) return;
    // The two schedules differ only where there are stages and micro-batches.
    out.push_back(uniform(model, stages, spec, microbatches,
                          (spec.zero + spec.tensor) % 2 == 0 ? ScheduleKind::gpipe : ScheduleKind::one_f_one_b));
  };
  for (int stages = 1; stages <= 4 && stages <= ranks; stages *= 2)
    for (int t = 1; t <= ranks / stages && t <= 4; t *= 2)
      for (const SequenceKind sequence_kind : {SequenceKind::none, SequenceKind::megatron})
        for (int zero = 0; zero <= 3; ++zero)
          for (const RecomputeKind recompute : recompute_kinds)
            for (const int microbatches : {1, 2}) {
              const bool core = recompute == RecomputeKind::selective;
              if ((core || recompute == RecomputeKind::none) && microbatches == (core ? 1 : 2)) continue;
              add(stages,
                  {.tensor = t,
                   .sequence = sequence_kind,
                   .data = ranks / stages / t,
                   .zero = zero,
                   .recompute = recompute},
                  microbatches);
            }
  int turn = 0;
  for (int stages = 1; stages <= 4 && stages <= ranks; stages *= 2)
    for (int t = 1; t <= ranks / stages; t *= 2)
      for (int c = 2; c <= ranks / stages / t; c *= 2)
        for (const SequenceKind sequence_kind :
             {SequenceKind::ulysses, SequenceKind::ring, SequenceKind::megatron, SequenceKind::megatron_ulysses})
          for (int zero = 0; zero <= 3; ++zero, ++turn)
            add(stages,
                {.tensor = t,
                 .sequence = sequence_kind,
                 .context = c,
                 .data = ranks / stages / t / c,
                 .zero = zero,
                 .recompute = recompute_kinds[static_cast<std::size_t>((turn + turn / 4) % 4)]},
                1 + turn % 2);
  // Strided tensor ranks, with a ZeRO stage in turns.
  for (int stages = 1; stages <= 2; ++stages)
    for (int t = 2; t < ranks / stages; t *= 2)
      for (int c = 1; c <= ranks / stages / t; c *= 2)
        for (const SequenceKind sequence_kind : sequence_kinds) {
          add(stages,
              {.tensor = t,
               .sequence = sequence_kind,
               .context = c,
               .data = ranks / stages / t / c,
               .zero = turn % 4,
               .recompute = recompute_kinds[static_cast<std::size_t>((turn + turn / 4) % 4)],
               .strided = true},
              1 + turn++ % 2);
        }
  return out;
}

// Sanitizers make a step ten times as long.
inline constexpr int most_steps = galvatron::test::sanitized ? 2 : 20;

/// @param steps  GPT and Llama train 20; four show the same of what other families add
inline void check_same_training(const ModelSpec& spec, int ranks, int steps = 4) {
  steps = std::min(steps, most_steps);
  const Outcome reference = run(single_rank(spec), spec, steps);
  REQUIRE(reference.losses.size() == static_cast<std::size_t>(steps));
  if (steps >= 20) CHECK(reference.losses.back() < reference.losses.front() - 0.5);
  CHECK(reference.memory_as_planned);
  const std::vector<Plan> plans = combinations(spec, ranks);
  REQUIRE(plans.size() > 40);
  for (const Plan& plan : plans) check_plan(plan, spec, reference);
}

/// Experts over all degrees of 8 ranks, with ZeRO, recomputation and micro-batches in turns. Returns the number of
/// plans.
/// @param every  of so many plans one is run
inline int check_expert_degrees(const ModelSpec& model, int every = 1) {
  const Outcome reference = run(single_rank(model), model, std::min(4, most_steps));
  int plans = 0;
  for (const int stages : {1, 2})
    for (const int tensor : {1, 2, 4})
      for (const int context : {1, 2})
        for (const SequenceKind split : sequence_kinds)
          for (int expert = 1; expert <= 8; expert *= 2)
            for (int etp = 1; etp <= 4; etp *= 2) {
              StrategySpec spec{.tensor = tensor,
                                .sequence = split,
                                .context = context,
                                .data = 8 / stages / tensor / context,
                                .zero = plans % 4,
                                .expert = expert,
                                .expert_tensor = etp,
                                .recompute = recompute_kinds[static_cast<std::size_t>(plans / 4 % 4)]};
              // Beside Megatron's with a ring, whose tokens go to experts alike, whole experts are enough.
              if (split == SequenceKind::megatron_ulysses && etp > 1) continue;
              if (spec.data > 0 && spec.shards() == 1) spec.zero = 0;
              if (spec.data == 0 || !spec.exchanges_tokens() || !is_legal(spec)) continue;
              const int microbatches = 1 + plans % 2;
              const auto suits = [&](const LayerSpec& layer) {
                return is_fit(layer, spec, global_batch / microbatches, single_rank(model).sequence_length);
              };
              if (!suits(model.embedding) || !suits(model.head) || !std::ranges::all_of(model.blocks, suits)) continue;
              Plan plan = uniform(model, stages, spec, microbatches, ScheduleKind::one_f_one_b);
              plan.expert_imbalance = plans % 3 == 0 ? 1.0 : 2.0;
              const bool runs = ++plans % every == 0;
              if (runs) check_plan(plan, model, reference);
              // The same by nodes, which relays have room for or not.
              for (StrategySpec& layer : plan.layers)
                layer.expert_nodes = expert > 2 && plans % 2 == 0 ? expert / 2 : 2;
              if (!runs || expert == 1 || !why_inconsistent(plan).empty()) continue;
              plan.expert_imbalance = plans % 3 == 0 ? 1.0 : 8.0;
              check_plan(plan, model, reference);
            }
  return plans;
}

inline void check_same_training(bool llama, int ranks) { check_same_training(model(llama, 4), ranks, 20); }

}  // namespace toy
