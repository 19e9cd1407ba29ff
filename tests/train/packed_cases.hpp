// Packed documents under strategies of all kinds, against the same documents one by one on one core.
#pragma once

#include <random>

#include <doctest/doctest.h>

#include "check_plan.hpp"
#include "packed.hpp"

namespace toy {

/// @param train  (plan, model, options) -> Outcome
/// @param rounds  in bf16 too
template <class Train>
void check_packed_documents(const ModelSpec& spec, const Train& train, bool rounds) {
  constexpr int steps = 2;
  std::mt19937 random(2027);
  const auto lengths = random_lengths(random, steps, packed_documents, longest_document);
  PackedTokens alone(lengths, [](std::int64_t, const auto& all) { return one_by_one(all); });
  const Outcome reference =
      run(packed_plan(spec, 1, {}, longest_document), spec, RunOptions{.steps = steps, .source = &alone});
  for (const StrategySpec& strategy : {
           StrategySpec{},
           StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 1},
           StrategySpec{
               .sequence = SequenceKind::ulysses, .context = 4, .zero = 3, .groups = SequenceGroupKind::per_batch},
           StrategySpec{.sequence = SequenceKind::ring, .context = 2, .data = 2},
           StrategySpec{.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2},
           StrategySpec{
               .sequence = SequenceKind::ring, .context = 4, .zero = 3, .groups = SequenceGroupKind::per_batch},
       }) {
    const std::int64_t tokens = strategy.context > 1 ? 20 : 40;  // of a rank
    Plan plan = packed_plan(spec, 1, strategy, tokens);
    INFO(text(plan));
    const auto seed = static_cast<unsigned>(random());
    PackedTokens source(lengths, [&](std::int64_t step, const auto& all) {
      std::mt19937 own(seed + static_cast<unsigned>(step));
      return random_packing(own, all, strategy, context_degrees(spec, strategy), tokens);
    });
    const RunOptions options{.steps = steps, .source = &source};
    check_outcome(train(plan, spec, options), reference);
    if (!rounds) continue;
    plan.precision = Precision::bf16;
    const Outcome rounded = train(plan, spec, options);
    CHECK(difference(rounded.losses, reference.losses) < 2e-2);
    CHECK(difference(rounded.gradients, reference.gradients) < 0.1);
    CHECK(rounded.memory_as_planned);
  }
}

}  // namespace toy
