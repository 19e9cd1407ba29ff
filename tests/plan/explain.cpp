#include <galvatron/plan/explain.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/json.hpp>

#include "../says.hpp"

using namespace galvatron;

namespace {

struct Case {
  const char* model;
  Cluster cluster;
  SearchOptions options;
};

std::string told(const Case& c, Plan* out = nullptr) {
  const ModelSpec model = value_or_throw(find_model(c.model));
  const FoundPlan found = value_or_throw(find_plan(model, c.cluster, c.options));
  REQUIRE(found.feasible);
  if (out != nullptr) *out = found.plan;
  return value_or_throw(explain(found.plan, model, c.cluster));
}

}  // namespace

TEST_CASE("an explanation fits 80 columns of plain text") {
  for (const Case& c : {Case{"llama2-70b", value_or_throw(find_cluster("1024xh100-80g")), {.global_batch = 1024}},
                        Case{"gpt2-124m",
                             value_or_throw(find_cluster("8xtitan-24g")),
                             {.global_batch = 64, .memory = Bytes{std::int64_t{2} << 30}}},
                        Case{"llama-tiny", host_cluster(4, 2), {.global_batch = 8, .precision = Precision::fp32}}}) {
    std::istringstream lines(told(c));
    int count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      CHECK_MESSAGE(line.size() <= explain_columns, line);
      for (const char letter : line) CHECK((letter >= ' ' && letter <= '~'));
    }
    CHECK(count > 10);
  }
}

TEST_CASE("it tells where time and memory go, what came second, and what does not fit") {
  const Cluster cluster = value_or_throw(find_cluster("8xa100-40g"));
  Plan plan;
  const std::string text = told({"llama2-7b", cluster, {.global_batch = 64}}, &plan);
  CHECK(says(text, "llama2-7b on 8xa100-40g: 8 ranks"));
  CHECK(says(text, "embed"));
  CHECK(says(text, "head"));
  CHECK(says(text, "stage 0, ranks 0-"));
  CHECK(says(text, "The runner-up, "));
  CHECK(says(text, "- data parallel ("));
  CHECK(says(text, "does not fit"));
  CHECK(says(text, "the budget is 38."));

  // From the file alone it is the same.
  const auto again = plan_from_json(to_json(plan), "plan.json");
  REQUIRE(again);
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  CHECK(value_or_throw(explain(*again, model, cluster)) == text);

  // A plan that nobody searched for has no rivals to tell of.
  Plan own = plan;
  own.predicted = {};
  CHECK(!says(value_or_throw(explain(own, model, cluster)), "Why this plan"));

  for (StrategySpec& layer : own.layers) layer.recompute = RecomputeKind::none;
  CHECK(says(value_or_throw(explain(own, model, cluster)), " recompute-none "));
}

TEST_CASE("a plan for another model is refused") {
  Plan plan;
  const Cluster cluster = value_or_throw(find_cluster("8xa100-40g"));
  told({"gpt2-124m", cluster, {.global_batch = 8}}, &plan);
  const auto text = explain(plan, value_or_throw(find_model("gpt2-350m")), cluster);
  REQUIRE(!text);
  CHECK(says(text.error().message, "12 layers"));
}

TEST_CASE("it tells where experts lie, what their exchange costs and what imbalance adds") {
  const Cluster cluster = value_or_throw(find_cluster("16xh100-80g"));
  const ModelSpec model = value_or_throw(find_model("deepseek-v2-lite"));
  Plan plan;
  plan.model = "deepseek-v2-lite";
  plan.cluster = "16xh100-80g";
  plan.global_batch = 64;
  plan.sequence_length = 4096;
  plan.precision = Precision::bf16;
  plan.microbatches = 4;
  plan.stages = {{0, 26, 0, 16}};
  const StrategySpec dense{.tensor = 2, .sequence = SequenceKind::megatron, .data = 8, .zero = 1};
  StrategySpec sparse = dense;
  sparse.expert = 8;
  sparse.expert_tensor = 1;
  plan.layers.assign(27, sparse);
  plan.layers[0] = plan.embedding = plan.head = dense;
  const auto told_of = [&] { return value_or_throw(explain(plan, model, cluster)); };
  std::string text = told_of();
  CHECK(says(text, "- layers 1-26: 64 experts, 6 for a token; ep8, so that a rank has 8, each whole."));
  CHECK(says(text, "Tokens go to the ranks of their experts and back: "));
  CHECK(says(text, "1.5 times the mean"));
  CHECK(says(text, " ep8 etp1"));
  plan.expert_imbalance = 3;
  for (StrategySpec& layer : plan.layers)
    if (layer.expert > 1) layer.expert = 16, layer.expert_nodes = 2;
  text = told_of();
  CHECK(says(text, "get 3 times the mean"));
  CHECK(says(text, "they lie in 2 nodes, and a token goes once to each that has some of"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= explain_columns, line);
  for (StrategySpec& layer : plan.layers) layer = dense;
  text = told_of();
  CHECK(says(text, "every rank has all, each cut over"));
  CHECK(!says(text, "times the mean"));
}

TEST_CASE("messages of the exchange are those that expert degrees add") {
  const ModelSpec model = value_or_throw(find_model("deepseek-v2-lite"));
  const cost::Batch batch{.microbatch = 16, .sequence = 4096, .precision = Precision::bf16};
  const auto messages = [](const op::WorkList& list) {
    std::int64_t bytes = 0;
    for (const op::Work& work : list)
      if (work.kind == op::Kind::all_to_all) bytes += work.m * work.times;
    return bytes;
  };
  for (const int context : {1, 2}) {  // Ulysses has all-to-alls of its own
    const StrategySpec spec{.sequence = context > 1 ? SequenceKind::ulysses : SequenceKind::none,
                            .context = context,
                            .data = 8 / context,
                            .expert = 8};
    const auto all = [&](const StrategySpec& s) {
      const cost::LayerCounts counts = cost::layer_counts(model.blocks[1], s, batch);
      return messages(counts.forward) + messages(counts.backward);
    };
    const std::int64_t exchange = messages(cost::expert_messages(model.blocks[1], spec, batch));
    CHECK(exchange > 0);
    CHECK(all(spec) - all(spec.without_experts()) == exchange);
  }
  CHECK(cost::expert_messages(model.blocks[1], {.data = 8}, batch).size() == 0);
}
