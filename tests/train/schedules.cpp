// Interleaved 1F1B and the zero-bubble schedules train as one rank does, under every kind of strategy, in the memory
// that was predicted.
#include <algorithm>
#include <array>
#include <cstddef>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/strategy/legality.hpp>

#include "check_plan.hpp"
#include "random_strategy.hpp"
#include "toy_mixed.hpp"

namespace {

using namespace toy;

// Images' gradients of eight layers jump, and rounding with them: by twenty steps the norms of equal runs part by 2e-4.
constexpr int steps = 10;
constexpr int layers = 8;

/// Stages, virtual stages and micro-batches.
struct Pipeline {
  ScheduleKind schedule;
  int stages;
  int virtual_stages;
  int microbatches;
};

std::vector<StrategySpec> strategies_of(int ranks) {
  std::vector<StrategySpec> out;
  for (int t = 1; t <= ranks; t *= 2)
    for (const SequenceKind kind : {SequenceKind::none, SequenceKind::megatron})
      for (int zero = 0; zero <= 3; ++zero)
        for (const RecomputeKind recompute : {RecomputeKind::cheap, RecomputeKind::full, RecomputeKind::none}) {
          if (recompute != RecomputeKind::cheap && zero % 3 != 0) continue;
          const StrategySpec spec{
              .tensor = t, .sequence = kind, .data = ranks / t, .zero = zero, .recompute = recompute};
          if (is_legal(spec)) out.push_back(spec);
        }
  return out;
}

std::vector<ModelSpec> models() { return {model(false, layers), model(true, layers), bert(layers), vit(layers)}; }

// Every strategy of `ranks` ranks, with each of the pipelines in turn; families take turns too.
void check_pipelines(int ranks, const std::vector<Pipeline>& pipelines) {
  const std::vector<ModelSpec> families = models();
  for (std::size_t family = 0; family < families.size(); ++family) {
    const ModelSpec& model = families[family];
    INFO(model.name);
    const Outcome reference = run(single_rank(model), model, steps);
    REQUIRE(reference.losses.back() < reference.losses.front() - 0.1);
    std::size_t next = family;
    for (const Pipeline& p : pipelines)
      for (const StrategySpec& spec : strategies_of(ranks / p.stages)) {
        if (!is_fit(model.blocks[0], spec, global_batch / p.microbatches, single_rank(model).sequence_length)) continue;
        if (next++ % families.size() != 0) continue;
        check_plan(uniform(model, p.stages, spec, p.microbatches, p.schedule, p.virtual_stages), model, reference);
      }
  }
}

}  // namespace

TEST_CASE("interleaved 1F1B on 4 ranks trains as one rank does") {
  check_pipelines(4, {{ScheduleKind::interleaved, 2, 2, 2},
                      {ScheduleKind::interleaved, 2, 4, 4},
                      {ScheduleKind::interleaved, 2, 3, 2},  // of 8 layers: chunks of one and of two
                      {ScheduleKind::interleaved, 2, 1, 2},
                      {ScheduleKind::interleaved, 4, 2, 4},
                      {ScheduleKind::interleaved, 4, 2, 8}});
}

TEST_CASE("interleaved 1F1B on 8 ranks trains as one rank does") {
  check_pipelines(8, {{ScheduleKind::interleaved, 2, 2, 2}, {ScheduleKind::interleaved, 4, 2, 4}});
}

TEST_CASE("ZB-H1 on 4 ranks trains as one rank does") {
  check_pipelines(4, {{ScheduleKind::zb_h1, 2, 1, 1},
                      {ScheduleKind::zb_h1, 2, 1, 4},
                      {ScheduleKind::zb_h1, 4, 1, 2},
                      {ScheduleKind::zb_h1, 4, 1, 4},
                      {ScheduleKind::zb_h1, 4, 1, 8}});
}

TEST_CASE("ZB-H1 on 8 ranks trains as one rank does") {
  check_pipelines(8, {{ScheduleKind::zb_h1, 2, 1, 4}, {ScheduleKind::zb_h1, 4, 1, 4}});
}

TEST_CASE("virtual stages with the embedding or the head alone, and of any lengths, train as one rank does") {
  const std::vector<ModelSpec> families = models();
  for (std::size_t family = 0; family < families.size(); ++family) {
    const ModelSpec& model = families[family];
    INFO(model.name);
    const Outcome reference = run(single_rank(model), model, steps);
    std::size_t next = family;
    for (const StrategySpec& spec : strategies_of(2))
      for (const auto& [schedule, chunks] :
           {std::pair{ScheduleKind::interleaved, chunks_with_ends(layers, 4, true, true)},
            {ScheduleKind::interleaved, {0, 3, 2, 3, 0, 0}},
            {ScheduleKind::interleaved, {0, 5, 3, 0}},
            {ScheduleKind::zb_v, {0, 4, 4, 0}}}) {
        if (!is_fit(model.blocks[0], spec, global_batch / 4, single_rank(model).sequence_length)) continue;
        if (next++ % families.size() != 0) continue;
        const int each = static_cast<int>(chunks.size()) / 2;
        Plan plan = uniform(model, 2, spec, 4, schedule, 2);
        plan.virtual_stages = each;
        plan.stages = stages_of_chunks(chunks, 2, each, spec.ranks(), schedule);
        if (std::ranges::count(chunks, 0) > 2) {
          CHECK(why_inconsistent(plan).find("without layers, embedding and head") != std::string::npos);
          continue;
        }
        check_plan(plan, model, reference);
      }
  }
}

TEST_CASE("ZB-2p and ZB-V on 4 ranks train as one rank does") {
  check_pipelines(4, {{ScheduleKind::zb_2p, 2, 1, 4},
                      {ScheduleKind::zb_2p, 4, 1, 2},
                      {ScheduleKind::zb_2p, 4, 1, 8},
                      {ScheduleKind::zb_v, 2, 2, 1},
                      {ScheduleKind::zb_v, 2, 2, 4},
                      {ScheduleKind::zb_v, 4, 2, 4},
                      {ScheduleKind::zb_v, 4, 2, 8}});
}

TEST_CASE("ZB-2p and ZB-V on 8 ranks train as one rank does") {
  check_pipelines(8, {{ScheduleKind::zb_2p, 2, 1, 4}, {ScheduleKind::zb_v, 2, 2, 4}, {ScheduleKind::zb_v, 4, 2, 2}});
}

TEST_CASE("a tied model in a V has one table, on the first stage") {
  const ModelSpec tied = model(false, layers);
  REQUIRE(tied.head.tied);
  const Outcome reference = run(single_rank(tied), tied, steps);
  for (const StrategySpec& spec : strategies_of(2))
    for (const int stages : {2, 4}) check_plan(uniform(tied, stages, spec, 4, ScheduleKind::zb_v, 2), tied, reference);
}

TEST_CASE("interleaved and zero-bubble plans whose layers all differ train as one rank does") {
  const auto seed = std::random_device{}();
  MESSAGE("seed " << seed);
  std::mt19937 random(seed);
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (const ModelSpec& model : models()) {
    const Outcome reference = run(single_rank(model), model, 6);
    for (int i = 0; i < 8; ++i) {
      const int stages = pick(2) == 0 ? 2 : 4;
      const StrategySpec any{.data = 2 << pick(stages == 2 ? 2 : 1)};  // as many ranks
      const ScheduleKind zero_bubble =
          std::array{ScheduleKind::zb_h1, ScheduleKind::zb_2p, ScheduleKind::zb_v}[static_cast<std::size_t>(pick(3))];
      Plan plan = i % 2 == 0
                      ? uniform(model, stages, any, stages, ScheduleKind::interleaved, stages == 4 ? 2 : 2 << pick(2))
                      : uniform(model, stages, any, 1 << pick(3), zero_bubble, usual_virtual_stages(zero_bubble));
      spread_at_random(random, plan, model);
      INFO("seed " << seed << ", plan " << i);
      check_plan(plan, model, reference);
    }
  }
}

TEST_CASE("a plan of any schedule that runs twice gives the same bits") {
  for (const ScheduleKind kind :
       {ScheduleKind::interleaved, ScheduleKind::zb_h1, ScheduleKind::zb_2p, ScheduleKind::zb_v})
    for (const ModelSpec& model : models()) {
      const Plan plan = uniform(model, 2, {.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 2}, 2,
                                kind, usual_virtual_stages(kind));
      check_same_bits(plan, model, 8);
    }
}
