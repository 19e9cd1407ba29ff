#include <algorithm>

#include "same_training.hpp"
#include "toy_mixed.hpp"

using namespace galvatron;

TEST_CASE("a model with experts trains on 4 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::experts(4), 4);
}

TEST_CASE("a model with experts trains on 8 ranks as on one, whatever the strategy") {
  toy::check_same_training(toy::experts(8), 8);
}

TEST_CASE("a model trains as on one rank whatever ranks share its experts") {
  const ModelSpec model = toy::experts(8);
  const toy::Outcome reference = toy::run(toy::single_rank(model), model, 4);
  int plans = 0;
  for (const int stages : {1, 2})
    for (const int tensor : {1, 2, 4})
      for (const int context : {1, 2})
        for (const SequenceKind sequence : sequence_kinds)
          for (int expert = 1; expert <= 8; expert *= 2)
            for (int etp = 1; etp <= 4; etp *= 2) {
              StrategySpec spec{.tensor = tensor,
                                .sequence = sequence,
                                .context = context,
                                .data = 8 / stages / tensor / context,
                                .zero = plans % 4,
                                .expert = expert,
                                .expert_tensor = etp,
                                .recompute = recompute_kinds[static_cast<std::size_t>(plans / 4 % 4)]};
              if (spec.data > 0 && spec.shards() == 1) spec.zero = 0;
              if (spec.data == 0 || !spec.exchanges_tokens() || !is_legal(spec)) continue;
              const int microbatches = 1 + plans % 2;
              const auto suits = [&](const LayerSpec& layer) {
                return is_fit(layer, spec, toy::global_batch / microbatches, toy::sequence);
              };
              if (!suits(model.embedding) || !suits(model.head) || !std::ranges::all_of(model.blocks, suits)) continue;
              Plan plan = toy::uniform(model, stages, spec, microbatches, ScheduleKind::one_f_one_b);
              plan.expert_imbalance = plans % 3 == 0 ? 1.0 : 2.0;
              ++plans;
              toy::check_plan(plan, model, reference);
              // The same by nodes, which relays have room for or not.
              for (StrategySpec& layer : plan.layers)
                layer.expert_nodes = expert > 2 && plans % 2 == 0 ? expert / 2 : 2;
              if (expert == 1 || !why_inconsistent(plan).empty()) continue;
              plan.expert_imbalance = plans % 3 == 0 ? 1.0 : 8.0;
              toy::check_plan(plan, model, reference);
            }
  CHECK(plans > 40);
}
