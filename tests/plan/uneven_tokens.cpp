// Prices and memory of plans whose context ranks have tokens, and heads within Ulysses, by ratios.
#include <galvatron/plan/cost.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include <galvatron/cluster/mixed_json.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/stage_plan.hpp>

#include "../says.hpp"

using namespace galvatron;

namespace {

/// One stage of layers of one strategy by ratio.
Plan plan_of(const ModelSpec& model, StrategySpec spec, std::int64_t sequence) {
  spec.shard_kind = ShardKind::by_ratio;
  Plan plan;
  plan.model = model.name;
  plan.global_batch = 2 * spec.data;
  plan.sequence_length = sequence;
  plan.precision = Precision::bf16;
  plan.stages = {{0, static_cast<int>(model.blocks.size()) - 1, 0, spec.ranks()}};
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;
  return plan;
}

const std::vector<StrategySpec> specs{{.sequence = SequenceKind::ulysses, .context = 4},
                                      {.sequence = SequenceKind::ring, .context = 4, .zero = 3},
                                      {.tensor = 2, .sequence = SequenceKind::megatron_ulysses, .context = 2},
                                      {.tensor = 2, .sequence = SequenceKind::megatron, .context = 2, .zero = 1}};

}  // namespace

TEST_CASE("equal ratios of tokens and heads are priced as equal parts") {
  const ModelSpec model = value_or_throw(find_model("llama3-8b"));
  const MixedCluster cluster = value_or_throw(load_mixed_cluster("8xa100-80g"));
  for (const StrategySpec& spec : specs) {
    INFO(strategy_text(spec));
    Plan plan = plan_of(model, spec, 4096);
    plan.stages.front().sample_ratios.assign(4, 3);
    const PlanCost even = value_or_throw(cost_of(plan, model, cluster));
    plan.stages.front().token_ratios.assign(4, 5);
    plan.stages.front().head_ratios.assign(4, 2);
    const PlanCost same = value_or_throw(cost_of(plan, model, cluster));
    CHECK(same.stages.front().peak() == even.stages.front().peak());
    // The last rank of a ring, which is counted where all are equal, is not always the slowest.
    CHECK(same.iteration.value >= even.iteration.value * (1 - 1e-9));
    CHECK(same.iteration.value < even.iteration.value * (spec.uses_ring() ? 1.05 : 1 + 1e-9));
  }
}

TEST_CASE("the rank with most tokens decides about time and memory") {
  const ModelSpec model = value_or_throw(find_model("llama3-8b"));
  const MixedCluster cluster = value_or_throw(load_mixed_cluster("8xa100-80g"));
  for (const StrategySpec& spec : specs) {
    INFO(strategy_text(spec));
    Plan plan = plan_of(model, spec, 4096);
    plan.stages.front().token_ratios.assign(4, 1);
    const PlanCost even = value_or_throw(cost_of(plan, model, cluster));
    plan.stages.front().token_ratios = {5, 1, 0, 2};
    const PlanCost uneven = value_or_throw(cost_of(plan, model, cluster));
    CHECK(uneven.iteration > even.iteration);
    CHECK(uneven.stages.front().memory.stash > even.stages.front().memory.stash);
    Bytes most;
    for (int rank = 0; rank < 4; ++rank)
      most = max(most,
                 train::memory_of(train::stage_plan(plan, model, rank), cluster.groups.front().device.library_workspace)
                     .total());
    CHECK(uneven.stages.front().peak() == most);
    const auto read = plan_from_json(nlohmann::json::parse(plan_text(plan)), "plan.json");
    REQUIRE(read.has_value());
    CHECK(*read == plan);
  }
}

TEST_CASE("context ranks on devices of two speeds have tokens by their speed") {
  const ModelSpec model = value_or_throw(find_model("llama3-8b"));
  const MixedCluster cluster = value_or_throw(load_mixed_cluster("1xh100-80g+1xa100-80g"));
  for (const SequenceKind sequence : {SequenceKind::ulysses, SequenceKind::ring}) {
    Plan plan = plan_of(model, {.sequence = sequence, .context = 2}, 4096);
    PlanStage& stage = plan.stages.front();
    stage.rank_groups = {0, 1};
    stage.sample_ratios = {1, 1};
    CHECK(says(why_inconsistent(plan), "share samples and are on two groups"));
    const auto seconds = [&](int fast, int slow) {
      stage.token_ratios = {fast, slow};
      if (sequence == SequenceKind::ulysses) stage.head_ratios = {fast, slow};
      return value_or_throw(cost_of(plan, model, cluster)).iteration;
    };
    const Seconds even = seconds(1, 1);
    const Seconds by_speed = seconds(2, 1);
    CHECK(by_speed < even);
    CHECK(by_speed < seconds(1, 2));
  }
}
