// Spread plans: one stage whose data ranks are on several groups of unequal devices.
#include <galvatron/plan/find_spread.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/json.hpp>

#include "found.hpp"

using namespace galvatron;
using namespace galvatron::test;

namespace {

/// The fastest of all plans of one stage on all devices, whatever the samples of each data rank, priced one by one.
class EverySpread {
 public:
  EverySpread(const ModelSpec& model, const MixedCluster& cluster, const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options) {}

  double fastest() {
    int ranks = 0;
    for (const Cluster& group : cluster_.groups) ranks += group.devices;
    for (StrategySpec spec : strategies(options_.space, ranks)) {
      if (spec.data < 2) continue;
      spec.shard_kind = ShardKind::by_ratio;
      for (int m = 1; m <= options_.global_batch; ++m)
        if (options_.global_batch % m == 0) try_samples(spec, m);
    }
    return fastest_;
  }

 private:
  void try_samples(const StrategySpec& spec, int microbatches) {
    const int degree = spec.tensor * spec.context;
    Plan plan;
    plan.global_batch = options_.global_batch;
    plan.microbatches = microbatches;
    plan.sequence_length = options_.sequence;
    plan.precision = options_.precision;
    PlanStage stage{0, static_cast<int>(model_.blocks.size()) - 1, 0, spec.ranks()};
    for (std::size_t group = 0; group < cluster_.groups.size(); ++group) {
      const int devices = cluster_.groups[group].devices;
      if (devices % degree != 0) return;
      stage.rank_groups.insert(stage.rank_groups.end(), static_cast<std::size_t>(devices), static_cast<int>(group));
    }
    stage.sample_ratios.resize(static_cast<std::size_t>(spec.ranks()));
    plan.stages = {stage};
    plan.layers.assign(model_.blocks.size(), spec);
    plan.embedding = plan.head = spec;
    share_out(plan, 0, degree, static_cast<int>(options_.global_batch / microbatches));
  }
  // All ways to give the data ranks from `data_rank` on what is left of a micro-batch.
  void share_out(Plan& plan, int data_rank, int degree, int left) {
    std::vector<int>& ratios = plan.stages.front().sample_ratios;
    const bool last = data_rank + 1 == plan.embedding.data;
    for (int samples = last ? left : 0; samples <= left; ++samples) {
      std::fill_n(ratios.begin() + data_rank * degree, degree, samples);
      if (!last) {
        share_out(plan, data_rank + 1, degree, left - samples);
      } else if (const auto cost = cost_of(plan, model_, cluster_)) {
        fastest_ = std::min(fastest_, cost->iteration.value);
      }
    }
  }

  const ModelSpec& model_;
  const MixedCluster& cluster_;
  const SearchOptions& options_;
  double fastest_ = 1e30;
};

SearchOptions options_of(const ModelSpec& model, const MixedCluster& cluster, std::int64_t batch, const char* space) {
  return value_or_throw(search::completed(
      {.global_batch = batch, .sequence = 256, .space = value_or_throw(parse_space(space))}, model, cluster));
}

}  // namespace

TEST_CASE("samples are shared out as the best of all ways") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const ModelSpec model = model_named("gpt2-124m");
  int spread_over_all = 0;
  for (int trial = 0; trial < 12; ++trial) {
    const auto kind = [&] {
      return std::vector<std::string>{"a100-80g", "h100-80g", "v100-32g", "p100-16g", "t4-16g"}[random() % 5];
    };
    const std::string name =
        std::to_string(1 + random() % 2) + "x" + kind() + "+" + std::to_string(1 + random() % 2) + "x" + kind();
    const MixedCluster cluster = value_or_throw(load_mixed_cluster(name));
    const std::int64_t batch = std::vector<std::int64_t>{4, 6, 8}[random() % 3];
    INFO(name << ", batch " << batch);
    const SearchOptions options = options_of(model, cluster, batch, "dp,zero1,zero3,tp,spread,keep");
    const auto found = find_spread_plan(model, cluster, options, Seconds{1e30});
    REQUIRE(found.has_value());
    CHECK(why_inconsistent(found->plan).empty());
    CHECK(value_or_throw(cost_of(found->plan, model, cluster)).iteration == found->cost.iteration);
    const double truth = EverySpread(model, cluster, options).fastest();
    CHECK(found->cost.iteration.value == doctest::Approx(truth).epsilon(1e-9));
    const PlanStage& stage = found->plan.stages.front();
    CHECK(std::accumulate(stage.sample_ratios.begin(), stage.sample_ratios.end(), 0) ==
          found->plan.microbatch() * found->plan.embedding.tensor * found->plan.embedding.context);
    ++spread_over_all;
  }
  CHECK(spread_over_all == 12);
}

TEST_CASE("ranks that exchange the tokens of experts have samples by their speed, too") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  ModelSpec model = model_named("olmoe-1b-7b");
  model.blocks.resize(4);
  int uneven = 0;
  for (int trial = 0; trial < 5; ++trial) {
    const auto kind = [&] {
      return std::vector<std::string>{"a100-80g", "h100-80g", "v100-32g", "l40s-48g"}[random() % 4];
    };
    const MixedCluster cluster = value_or_throw(load_mixed_cluster("2x" + kind() + "+2x" + kind()));
    const std::int64_t batch = std::vector<std::int64_t>{6, 8, 12}[random() % 3];
    INFO(cluster.name << ", batch " << batch);
    const SearchOptions options = options_of(model, cluster, batch, "dp,zero1,zero3,ep,spread,keep");
    const auto found = find_spread_plan(model, cluster, options, Seconds{1e30});
    REQUIRE(found.has_value());
    CHECK(value_or_throw(cost_of(found->plan, model, cluster)).iteration == found->cost.iteration);
    // Where fewer than all ranks exchange tokens, the search takes their shares for equal.
    const StrategySpec& spec = found->plan.layers.front();
    const double truth = EverySpread(model, cluster, options).fastest();
    CHECK(found->cost.iteration.value <= truth * (spec.exchange_ranks() < 4 ? 1.01 : 1 + 1e-9));
    const std::vector<int>& samples = found->plan.stages.front().sample_ratios;
    uneven += spec.exchanges_tokens() && std::ranges::min(samples) < std::ranges::max(samples);
  }
  CHECK(uneven > 0);
}

TEST_CASE("a faster device has more samples, and the search takes a spread plan where it is faster") {
  const ModelSpec model = model_named("gpt2-124m");
  const MixedCluster cluster = value_or_throw(load_mixed_cluster("8xv100-32g+8xp100-16g"));
  const SearchOptions options{.global_batch = 512};
  const FoundPlan best = found(model, cluster, options);
  REQUIRE(best.feasible);
  REQUIRE(best.plan.stages.size() == 1);
  const PlanStage& stage = best.plan.stages.front();
  REQUIRE(stage.rank_groups.size() == 16);
  CHECK(stage.sample_ratios.front() > 3 * stage.sample_ratios.back());
  CHECK_FALSE(best.statistics.proven);
  CHECK(best.statistics.bound < best.cost.iteration);
  const auto read = plan_from_json(nlohmann::json::parse(plan_text(best.plan)), "plan.json");
  REQUIRE(read.has_value());
  CHECK(*read == best.plan);

  SearchOptions apart = options;
  apart.space.spread = false;
  const FoundPlan pipelines = found(model, cluster, apart);
  CHECK(pipelines.statistics.proven);
  CHECK(best.cost.iteration < pipelines.cost.iteration);
  CHECK(best.plan.predicted.alternatives.front().iteration == pipelines.cost.iteration);
  // Even shares wait for the slowest.
  Plan even = best.plan;
  std::ranges::fill(even.stages.front().sample_ratios, 1);
  CHECK(best.cost.iteration < value_or_throw(cost_of(even, model, cluster)).iteration);
}

TEST_CASE("states go where memory is free") {
  const ModelSpec model = model_named("gpt-6.7b");
  MixedCluster cluster = value_or_throw(load_mixed_cluster("8xa100-80g+8xa100-80g"));
  cluster.groups[1].device.memory = 8_GiB;
  const SearchOptions options = options_of(model, cluster, 64, "zero3,spread,recompute");
  const auto found = find_spread_plan(model, cluster, options, Seconds{1e30});
  REQUIRE(found.has_value());
  const PlanStage& stage = found->plan.stages.front();
  for (int rank = 0; rank < 16; ++rank)
    CHECK(
        train::memory_of(train::stage_plan(found->plan, model, rank), cluster.groups[rank / 8].device.library_workspace)
            .total() <= cluster.groups[rank / 8].device.memory);
  cluster.groups[1].device.memory = 4_GiB;
  const auto tight = find_spread_plan(model, cluster, options, Seconds{1e30});
  REQUIRE(tight.has_value());
  REQUIRE(tight->plan.stages.front().state_ratios.size() == 16);
  CHECK(tight->plan.stages.front().state_ratios.front() > 2 * tight->plan.stages.front().state_ratios.back());
  CHECK(stage.rank_count == 16);
}
