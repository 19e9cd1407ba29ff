// Plans of models with several kinds of layers: BERT, ViT, T5, Swin, Mixtral.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include <galvatron/model/build.hpp>
#include <galvatron/model/check.hpp>
#include <galvatron/plan/explain.hpp>
#include <galvatron/plan/json.hpp>

#include "../search/random_problem.hpp"
#include "found.hpp"

using namespace galvatron;
using namespace galvatron::test;

namespace {

// Two layers on either side of the border between T5's encoder and decoder.
ModelSpec small_t5() {
  return t5("small-t5", {.encoder_layers = 1,
                         .decoder_layers = 1,
                         .hidden = 512,
                         .heads = 8,
                         .ffn = 2048,
                         .vocabulary = 1000,
                         .source = 512,
                         .target = 128});
}
// The first two stages of a Swin Transformer, of one layer each.
ModelSpec small_swin() {
  ModelSpec model = swin("small-swin", {.depths = {1, 1, 1, 1}, .hidden = 256, .heads = {4, 8, 16, 32}});
  model.blocks.resize(2);
  model.head.hidden = 512;
  model.head.tokens = model.blocks.back().tokens;
  return value_or_throw(checked(model));
}

}  // namespace

TEST_CASE("every preset of the other families finds a plan that is priced as it was searched") {
  for (const std::string name :
       {"bert-large", "bert-huge-32", "bert-huge-48", "vit-huge-32", "vit-huge-48", "t5-large-32", "t5-large-48",
        "t5-3b", "swin-huge-32", "swin-huge-48", "mixtral-8x7b"}) {
    const ModelSpec model = model_named(name);
    const bool large = model.name == "mixtral-8x7b";
    for (const std::string cluster_name :
         {large ? "64xa100-80g" : "8xtitan-24g", large ? "64xh100-80g" : "8xa100-80g"}) {
      const Cluster cluster = cluster_named(cluster_name);
      SearchOptions options;
      options.global_batch = 64;
      options.precision = Precision::bf16;
      if (large) options.sequence = 4096;
      INFO(name << " on " << cluster_name);
      const FoundPlan plan = found(model, cluster, options);
      REQUIRE_MESSAGE(plan.feasible, plan.reason);
      CHECK(plan.plan.layers.size() == model.blocks.size());
      CHECK(plan.plan.sequence_length == (large ? 4096 : model.positions()));
      CHECK(plan.cost.peak() <= cluster.device.memory);
      CHECK(plan.cost.mfu > 0.1);
      CHECK(plan.cost.mfu < 0.75);
      CHECK(plan.statistics.labels < 8'000'000);  // half a microsecond each
      CHECK(why_unfit(plan.plan, model) == "");
      for (const PredictedAlternative& a : plan.plan.predicted.alternatives)
        if (a.exists && a.fits) CHECK(a.iteration.value >= plan.cost.iteration.value * (1 - 1e-9));
      CHECK(value_or_throw(plan_from_json(to_json(plan.plan), "plan.json")) == plan.plan);
      const auto told = explain(plan.plan, model, cluster);
      REQUIRE(told);
      CHECK(told->find(name) != std::string::npos);

      const auto result = search::search(model, cluster, options);
      REQUIRE(result);
      const SearchOptions full = value_or_throw(search::completed(options, model, cluster));
      for (const auto& alternative : result->alternatives) {
        if (!alternative.exists) continue;
        const auto cost = cost_of(plan_of(alternative.candidate, model, cluster, full), model, cluster);
        REQUIRE(cost);
        CHECK(cost->iteration.value == doctest::Approx(alternative.candidate.iteration.value).epsilon(1e-9));
        CHECK(cost->peak() == alternative.candidate.peak);
      }
    }
  }
}

TEST_CASE("the search of layers of several kinds finds what brute force finds") {
  for (const ModelSpec& model : {small_t5(), small_swin()}) {
    Cluster cluster = cluster_named("4xv100-32g");
    cluster.device.library_workspace = {};
    cluster.device.reserve = {};
    SearchOptions options;
    options.global_batch = 4;
    options.schedules = {ScheduleKind::one_f_one_b};
    options.space = value_or_throw(parse_space("dp,zero3,tp,pp,max-pp=2,sp,recompute"));
    options = value_or_throw(search::completed(options, model, cluster));
    std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
    std::int64_t fastest = 0;
    for (const int tenths : {10, 0, 3, 6}) {
      options.memory = {tenths == 10 ? cluster.device.memory.count : smallest + (fastest - smallest) * tenths / 10};
      INFO(model.name << " within " << options.memory.count << " bytes");
      double seconds = std::numeric_limits<double>::infinity();
      Team team(1);
      const search::Cases made = search::make_cases(model, cluster, options, team);
      for (const search::Case& c : made.cases) {
        const auto truth = search::testing::brute_force(c.problem);
        seconds = std::min(seconds, truth.seconds);
        smallest = std::min(smallest, truth.peak);
      }
      const FoundPlan plan = found(model, cluster, options);
      REQUIRE(plan.feasible);
      CHECK(plan.statistics.proven);
      CHECK(plan.cost.iteration.value == doctest::Approx(seconds).epsilon(1e-9));
      CHECK(plan.cost.peak() <= options.memory);
      if (tenths == 10) fastest = plan.cost.peak().count;
    }
    options.memory = {smallest - 1};
    const FoundPlan none = found(model, cluster, options);
    REQUIRE(!none.feasible);
    CHECK(none.smallest_memory->count == smallest);
  }
}

TEST_CASE("a border costs what crosses it") {
  // Between Swin's stages half as much crosses as inside the stage before; in T5 both sides cross every border.
  const ModelSpec model = model_named("swin-huge-32");
  const Cluster cluster = cluster_named("8xa100-80g");
  Plan plan;
  plan.global_batch = 16;
  plan.sequence_length = model.positions();
  plan.precision = Precision::bf16;
  plan.microbatches = 4;
  const StrategySpec spec{.tensor = 2, .data = 2};
  plan.layers.assign(model.blocks.size(), spec);
  plan.embedding = plan.head = spec;
  const auto boundary = [&](int cut) {
    plan.stages = {{0, cut - 1, 0, 4}, {cut, static_cast<int>(model.blocks.size()) - 1, 4, 4}};
    const PlanCost cost = value_or_throw(cost_of(plan, model, cluster));
    CHECK(cost.stages[0].memory.boundary == cost.stages[1].memory.boundary);
    return cost.stages[1].memory.boundary.count;
  };
  const std::int64_t first = 2 * 3136 * 320 * 2;
  CHECK(boundary(1) == first);
  CHECK(boundary(2) == first);  // the merging layer is the first of the second stage
  CHECK(boundary(3) == first / 2);
  CHECK(boundary(4) == first / 2);
  CHECK(boundary(29) == first / 4);
  CHECK(boundary(31) == first / 8);
}

TEST_CASE("a hundred layers of several kinds are planned in less than a second") {
  const ModelSpec model =
      t5("t5-100", {.encoder_layers = 50, .decoder_layers = 50, .hidden = 1024, .heads = 16, .ffn = 4096});
  for (const auto& [cluster, memory] : {std::pair{std::string("8xa100-80g"), 80_GiB}, {"8xtitan-24g", 8_GiB}}) {
    SearchOptions options;
    options.global_batch = 64;
    options.memory = memory;
    const FoundPlan plan = found(model, cluster_named(cluster), options);
    REQUIRE(plan.feasible);
    INFO(cluster << ": " << plan.statistics.seconds.value << " s, " << plan.statistics.labels << " labels");
    CHECK(plan.statistics.labels < 6'000'000);  // half a microsecond each
  }
}

TEST_CASE("sequences are the model's") {
  const Cluster cluster = cluster_named("8xa100-80g");
  const auto refused = [&](const char* name, std::int64_t sequence, const char* part) {
    SearchOptions options;
    options.global_batch = 8;
    options.sequence = sequence;
    const auto plan = find_plan(model_named(name), cluster, options);
    REQUIRE(!plan);
    CHECK(plan.error().kind == ErrorKind::usage);
    CHECK_MESSAGE(plan.error().message.find(part) != std::string::npos, plan.error().message);
  };
  refused("vit-huge-32", 256, "takes images, which are 257 tokens");
  refused("swin-huge-48", 1024, "takes images, which are 3136 tokens");
  refused("bert-large", 513, "takes 1 to 512");
  SearchOptions options;
  options.global_batch = 8;
  options.sequence = 128;
  CHECK(found(model_named("t5-large-32"), cluster, options).plan.sequence_length == 128);
  options.sequence = 102;  // leaves no whole number for a target of a quarter
  const auto odd = find_plan(small_t5(), cluster, options);
  REQUIRE(!odd);
  CHECK_MESSAGE(odd.error().message.find("give a multiple of 4") != std::string::npos, odd.error().message);
}
