// Plans that run programs with uneven shards.
#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/plan/hap_plan.hpp>
#include <galvatron/plan/json.hpp>

#include "../says.hpp"
#include "found.hpp"

using namespace galvatron;
using galvatron::test::model_named;

namespace {

MixedCluster mixed(const char* name) { return value_or_throw(mixed_preset(name)); }

/// A tiny model with its graph and devices.
struct PlannedCase {
  ModelSpec model;
  MixedCluster cluster;
  std::int64_t batch;
  std::int64_t sequence = 128;
  hap::Devices devices = hap::devices_of(cluster);
  hap::Graph graph = hap::graph_of(model, batch, sequence);
  hap::Prices prices{graph, devices, hap::Dialect::paper};
};

}  // namespace

TEST_CASE("of the programs that plans can run the best is found, by trying all") {
  std::mt19937 random(7);
  for (const char* name : {"gpt2-tiny", "llama-tiny", "moe-tiny"})
    for (const std::int64_t batch : {2, 8, 64}) {
      CAPTURE(name);
      CAPTURE(batch);
      ModelSpec model = model_named(name);
      model.blocks.resize(2);
      PlannedCase at{model, mixed("1xv100-32g+1xp100-16g"), batch};
      for (int round = 0; round < 2; ++round) {
        for (double& rate : at.devices.bandwidth)
          rate = 1e9 * std::exp2(std::uniform_real_distribution<double>(0, 8)(random));
        const auto found = hap::best_runnable(at.prices, model.head.tied);
        REQUIRE(found);
        // It is a program, and takes what it says.
        const auto terms = hap::terms_of(at.prices, found->answer.program);
        REQUIRE(terms);
        CHECK(hap::point_of(at.devices, found->answer.ratios).seconds(*terms) ==
              doctest::Approx(found->answer.seconds).epsilon(1e-12));
        const hap::Instance instance(at.prices, 2);
        CHECK(found->answer.seconds >= hap::best_program_and_ratios(instance)->seconds * (1 - 1e-12));
        double least = std::numeric_limits<double>::infinity();
        for (int all = 0; all < 256; ++all) {
          const std::array digits{all % 4, all / 4 % 4, all / 16 % 4, all / 64};
          const auto one = hap::best_runnable(at.prices, model.head.tied, [&](int layer, hap::Spread spread) {
            return static_cast<int>(spread) == digits[static_cast<std::size_t>(layer)];
          });
          if (one) least = std::min(least, one->answer.seconds);
        }
        CHECK(found->answer.seconds == doctest::Approx(least).epsilon(1e-12));
      }
    }
}

TEST_CASE("a program is a plan with whole samples, heads, units and rows by its ratios") {
  // Few samples: tensor parallelism, as the best program of all.
  PlannedCase few{model_named("gpt2-1.5b"), mixed("8xv100-32g+8xp100-16g"), 4, 1024};
  auto found = hap_plan(few.prices, few.model, few.cluster, few.batch, few.sequence);
  REQUIRE(found);
  Plan& plan = found->plan;
  CHECK(why_inconsistent(plan).empty());
  CHECK(why_unfit(plan, few.model).empty());
  CHECK(found->program.answer.seconds ==
        doctest::Approx(hap::best_in_memory(hap::Instance(few.prices, 16))->seconds).epsilon(1e-9));
  CHECK(plan.layers.front().tensor == 16);
  const PlanStage& stage = plan.stages.front();
  CHECK(stage.rank_groups == std::vector<int>{0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1});
  CHECK(stage.head_ratios.front() > stage.head_ratios.back());
  CHECK(std::accumulate(stage.head_ratios.begin(), stage.head_ratios.end(), 0) == 25);
  CHECK(stage.width_ratios.front() > stage.width_ratios.back());
  // What is written is read.
  plan.model = "gpt2-1.5b";
  CHECK(value_or_throw(plan_from_json(nlohmann::json::parse(plan_text(plan)), "plan.json")) == plan);
  // Many samples: data parallelism by ratio.
  PlannedCase many{model_named("gpt2-tiny"), mixed("2xv100-32g+2xp100-16g"), 4096};
  found = hap_plan(many.prices, many.model, many.cluster, many.batch, many.sequence);
  REQUIRE(found);
  CHECK(found->plan.layers.front().data == 4);
  CHECK(found->plan.stages.front().sample_ratios[0] > found->plan.stages.front().sample_ratios[3]);
  // Experts are on devices of their own where links are slow and experts many.
  PlannedCase experts{model_named("roberta-moe"), mixed("4xv100-32g+4xp100-16g"), 64};
  found = hap_plan(experts.prices, experts.model, experts.cluster, experts.batch, experts.sequence);
  REQUIRE(found);
  for (std::size_t i = 0; i < experts.model.blocks.size(); ++i)
    CHECK(found->plan.layers[i].expert == (experts.model.blocks[i].experts > 0 ? 8 : 1));
  CHECK(found->plan.stages.front().sample_ratios.front() >= found->plan.stages.front().sample_ratios.back());
  // Equal devices have even shards.
  PlannedCase equal{model_named("gpt2-tiny"), mixed("4xv100-32g"), 4096};
  found = hap_plan(equal.prices, equal.model, equal.cluster, equal.batch, equal.sequence);
  REQUIRE(found);
  CHECK_FALSE(found->plan.has_ratios());
  CHECK(found->plan.embedding.shard_kind == ShardKind::even);
  // Too little memory for anything.
  for (double& bytes : many.devices.memory) bytes = 1e6;
  CHECK(says(hap_plan(many.prices, many.model, many.cluster, many.batch, many.sequence).error().message,
             "no program of gpt2-tiny that a plan can run fits on 4 devices"));
}
