// Plans with attention and MLP as layers of their own.
#include <galvatron/plan/split.hpp>

#include <doctest/doctest.h>

#include <string>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/search/compiled.hpp>
#include <galvatron/strategy/space.hpp>

namespace {

using namespace galvatron;

FoundPlan found(const ModelSpec& model, const Cluster& cluster, std::int64_t gib, int pipeline, bool even = false) {
  SearchOptions options;
  options.even_stages = even;
  options.global_batch = 16;
  options.memory = {gib << 30};
  options.space = value_or_throw(parse_space("dp,zero1,zero3,tp,sp,selective,pp=" + std::to_string(pipeline)));
  return value_or_throw(find_plan(model, cluster, options));
}

}  // namespace

TEST_CASE("with halves as layers no plan is lost, and files say what the layers are") {
  ModelSpec model = value_or_throw(find_model("gpt2-1.5b"));
  model.blocks.resize(9);
  for (LayerSpec& block : model.blocks) block.layers = 9;
  const Cluster cluster = value_or_throw(find_cluster("8xtitan-24g"));
  const ModelSpec split = value_or_throw(split_layers(model));
  for (const int pipeline : {1, 2, 4})
    for (const std::int64_t gib : {4, 6, 12}) {
      INFO("pp " << pipeline << ", " << gib << " GiB");
      const FoundPlan blocks = found(model, cluster, gib, pipeline);
      const FoundPlan halves = found(split, cluster, gib, pipeline);
      if (!blocks.feasible) continue;
      REQUIRE(halves.feasible);
      CHECK(halves.statistics.bound <= blocks.cost.iteration * (1 + 1e-9));
      if (halves.statistics.proven) CHECK(halves.cost.iteration <= blocks.cost.iteration * (1 + 1e-9));
      CHECK(halves.plan.split_layers);
      CHECK(halves.plan.layers.size() == 18);
      CHECK(plan_text(blocks.plan).find("split_layers") == std::string::npos);
      const Plan read = value_or_throw(plan_from_json(to_json(halves.plan), "plan"));
      CHECK(read == halves.plan);
      CHECK(!cost_of(halves.plan, model, cluster));  // the model must be divided as the plan is
      CHECK(!cost_of(blocks.plan, split, cluster));
      const ModelSpec same = value_or_throw(model_of(read, model));
      CHECK(value_or_throw(cost_of(read, same, cluster)).iteration == halves.cost.iteration);
    }
}

TEST_CASE("stages may begin between attention and MLP") {
  ModelSpec model = value_or_throw(find_model("gpt2-1.5b"));
  model.blocks.resize(9);
  const Cluster cluster = value_or_throw(find_cluster("8xtitan-24g"));
  const FoundPlan halves = found(value_or_throw(split_layers(model)), cluster, 12, 4, true);
  REQUIRE(halves.feasible);
  REQUIRE(halves.plan.stages.size() == 4);
  CHECK(halves.plan.stages[3].first_layer == 13);  // 18 halves are 4, 4, 5 and 5
  CHECK(!joined(halves.plan));
}

TEST_CASE("halves that agree are a plan of blocks") {
  const ModelSpec model = value_or_throw(find_model("gpt2-tiny"));
  const ModelSpec split = value_or_throw(split_layers(model));
  const Cluster cluster = value_or_throw(find_cluster("4xa100-40g"));
  Plan blocks;
  blocks.model = model.name;
  blocks.global_batch = 8;
  blocks.sequence_length = 64;
  blocks.microbatches = 2;
  blocks.precision = Precision::bf16;
  const StrategySpec spec{.tensor = 2};
  blocks.stages = {{0, 1, 0, 2}, {2, 3, 2, 2}};
  blocks.layers.assign(4, spec);
  blocks.embedding = blocks.head = spec;
  Plan halves = blocks;
  halves.split_layers = true;
  halves.stages = {{0, 3, 0, 2}, {4, 7, 2, 2}};
  halves.layers.assign(8, spec);
  CHECK(value_or_throw(joined(halves)) == blocks);
  CHECK(value_or_throw(joined(blocks)) == blocks);
  const PlanCost a = value_or_throw(cost_of(blocks, model, cluster));
  const PlanCost b = value_or_throw(cost_of(halves, split, cluster));
  CHECK(a.iteration.value == doctest::Approx(b.iteration.value).epsilon(1e-3));
  CHECK(static_cast<double>(a.peak().count) == doctest::Approx(static_cast<double>(b.peak().count)).epsilon(1e-3));
  halves.layers[3].sequence = SequenceKind::megatron;
  CHECK(!joined(halves));
  halves.layers[3] = spec;
  halves.stages = {{0, 2, 0, 2}, {3, 7, 2, 2}};
  CHECK(!joined(halves));
}
