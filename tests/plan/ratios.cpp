// Plans whose samples and states are cut over ranks by ratios.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/stage_plan.hpp>

#include "../says.hpp"
#include "found.hpp"

using namespace galvatron;
using galvatron::test::cluster_named;
using galvatron::test::model_named;

namespace {

/// gpt2-124m on 4 data ranks, in micro-batches of 8 samples.
Plan plan_by_ratio(int zero = 0) {
  const StrategySpec spec{.data = 4, .zero = zero, .shard_kind = ShardKind::by_ratio};
  Plan plan;
  plan.model = "gpt2-124m";
  plan.cluster = "4xa100-80g";
  plan.global_batch = 16;
  plan.sequence_length = 1024;
  plan.precision = Precision::bf16;
  plan.microbatches = 2;
  plan.stages = {{0, 11, 0, 4, 0, {3, 3, 2, 0}}};
  plan.layers.assign(12, spec);
  plan.embedding = plan.head = spec;
  return plan;
}

std::string why(const Plan& plan) { return why_inconsistent(plan); }

}  // namespace

TEST_CASE("ratios are written and read") {
  Plan plan = plan_by_ratio(3);
  plan.stages[0].state_ratios = {1, 1, 1, 5};
  const auto read = plan_from_json(nlohmann::json::parse(plan_text(plan)), "plan.json");
  REQUIRE(read.has_value());
  CHECK(*read == plan);
  CHECK_FALSE(
      says(plan_text(test::found(model_named("gpt2-124m"), cluster_named("4xa100-80g"), {.global_batch = 8}).plan),
           "ratios"));
}

TEST_CASE("ratios that are none are refused with the stage and the number") {
  CHECK(why(plan_by_ratio()).empty());
  Plan plan = plan_by_ratio();
  plan.stages[0].sample_ratios = {1, 2, 3};
  CHECK(why(plan) == "stage 0 has 3 ratios of samples for 4 ranks");
  plan.stages[0].sample_ratios = {1, 2, 3, -1};
  CHECK(why(plan) == "stage 0 has the ratio -1 of samples; ratios are 0 to 1048576");
  plan.stages[0].sample_ratios = {1, 1, 1, 1};
  plan.stages[0].state_ratios = {0, 0, 0, 0};
  CHECK(why(plan) == "stage 0 has no ratio of states above 0");
  plan.stages[0] = {0, 11, 0, 4};
  CHECK(says(why(plan), "its stage has no ratios"));
  plan = plan_by_ratio();
  plan.layers[3].shard_kind = ShardKind::even;
  CHECK(why(plan).empty());  // 4 divides 8
  plan.global_batch = 6;
  CHECK(says(why(plan), "layer 3: its data degree 4 does not divide a micro-batch of 3 samples"));
  plan.layers[3].shard_kind = ShardKind::by_ratio;
  CHECK(why(plan).empty());
}

TEST_CASE("a rank has memory for its samples and its shard, and a stage the seconds of its slowest rank") {
  const ModelSpec model = model_named("gpt2-124m");
  const Cluster cluster = cluster_named("4xa100-80g");
  const auto cost = [&](const Plan& plan) { return value_or_throw(cost_of(plan, model, cluster)); };
  const auto memory = [&](const Plan& plan, int rank) {
    return train::memory_of(train::stage_plan(plan, model, rank), Bytes{});
  };
  // As many samples as an even plan of a larger or smaller batch has on each rank.
  const auto even = [](std::int64_t samples) {
    Plan plan = plan_by_ratio();
    plan.stages[0].sample_ratios.clear();
    for (StrategySpec& spec : plan.layers) spec.shard_kind = ShardKind::even;
    plan.embedding = plan.head = plan.layers[0];
    plan.global_batch = samples * 4 * plan.microbatches;
    return plan;
  };
  const Plan plan = plan_by_ratio();
  for (const auto& [rank, samples] : {std::pair(0, 3), {1, 3}, {2, 2}}) {
    const Plan same = even(samples);
    CHECK(memory(plan, rank) == memory(same, 0));
  }
  CHECK(memory(plan, 3).stash.count < memory(plan, 2).stash.count / 100);
  CHECK(memory(plan, 3).states == memory(plan, 0).states);
  CHECK(cost(plan).iteration.value == doctest::Approx(cost(even(3)).iteration.value).epsilon(1e-9));
  CHECK(cost(plan).peak() == cost(even(3)).peak());

  // States of ZeRO go where memory is, whatever the samples.
  Plan sharded = plan_by_ratio(3);
  sharded.stages[0].state_ratios = {0, 1, 1, 2};
  const auto states = [&](int rank) { return memory(sharded, rank).states.count; };
  CHECK(states(0) == 0);
  CHECK(states(1) == doctest::Approx(static_cast<double>(states(2))).epsilon(1e-3));
  CHECK(states(3) == doctest::Approx(2.0 * static_cast<double>(states(1))).epsilon(1e-3));
  Plan equal = sharded;
  equal.stages[0].state_ratios.clear();
  CHECK(states(1) + states(2) + states(3) ==
        doctest::Approx(4.0 * static_cast<double>(memory(equal, 0).states.count)).epsilon(1e-3));
}
