// Plans on clusters of several kinds of devices: the search against all plans of small clusters, what stages and
// borders cost, and groups that are left idle.
#include <galvatron/plan/find.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/cluster.hpp>
#include <galvatron/plan/explain.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/simulate/simulate.hpp>

#include "../says.hpp"
#include "found.hpp"

using namespace galvatron;
using namespace galvatron::test;

namespace {

MixedCluster mixed_named(const std::string& name) { return value_or_throw(load_mixed_cluster(name)); }

/// Every plan with runs of stages on some groups, in any order, priced one by one.
class EveryMixedPlan {
 public:
  EveryMixedPlan(const ModelSpec& model, const ClusterView& cluster, const SearchOptions& options)
      : model_(model), cluster_(cluster), options_(options) {}

  double fastest() {
    extend();
    return fastest_;
  }
  /// Of any stage of any plan, whatever the memory of its device.
  [[nodiscard]] Bytes least_peak() const { return least_peak_; }

 private:
  void extend() {
    if (!stages_.empty()) cut(0);
    const int used = static_cast<int>(stages_.size());
    for (int group = 0; group < cluster_.count(); ++group) {
      if (std::ranges::any_of(stages_, [=](const PlanStage& stage) { return stage.group == group; })) continue;
      for (const int degree : divisors(cluster_.group(group).devices)) {
        if (used + degree > static_cast<int>(model_.blocks.size())) break;
        for (int i = 0; i < degree; ++i) stages_.push_back({0, 0, 0, cluster_.group(group).devices / degree, group});
        extend();
        stages_.resize(static_cast<std::size_t>(used));
      }
    }
  }
  // All ways to give the stages from `stage` on the layers that are left.
  void cut(std::size_t stage) {
    const int blocks = static_cast<int>(model_.blocks.size());
    PlanStage& own = stages_[stage];
    own.first_layer = stage == 0 ? 0 : stages_[stage - 1].last_layer + 1;
    own.first_rank = stage == 0 ? 0 : stages_[stage - 1].first_rank + stages_[stage - 1].rank_count;
    if (stage + 1 == stages_.size()) {
      own.last_layer = blocks - 1;
      if (own.first_layer < blocks) price();
      return;
    }
    for (own.last_layer = own.first_layer; own.last_layer + 1 < blocks; ++own.last_layer) cut(stage + 1);
  }
  void price() {
    plan_ = {};
    plan_.global_batch = options_.global_batch;
    plan_.sequence_length = options_.sequence;
    plan_.precision = options_.precision;
    plan_.stages = stages_;
    plan_.layers.resize(model_.blocks.size());
    for (const int m : divisors(static_cast<int>(options_.global_batch)))
      for (const ScheduleKind schedule : options_.schedules) {
        plan_.microbatches = m;
        plan_.schedule = schedule;
        choose(0);
      }
  }
  [[nodiscard]] std::vector<StrategySpec> strategies_on(const PlanStage& stage) const {
    return strategies(options_.space, stage.rank_count, cluster_.group(stage.group).devices_per_node);
  }
  // The embedding, the blocks, the head.
  void choose(std::size_t place) {
    const std::size_t blocks = plan_.layers.size();
    if (place == blocks + 2) {
      const auto cost = cost_of(plan_, model_, cluster_);
      if (!cost) return;
      least_peak_ = min(least_peak_, cost->peak());
      if (why_too_large(plan_, *cost, cluster_).empty()) fastest_ = std::min(fastest_, cost->iteration.value);
      return;
    }
    StrategySpec& spec = place == 0 ? plan_.embedding : place > blocks ? plan_.head : plan_.layers[place - 1];
    const auto stage = std::ranges::find_if(
        plan_.stages, [&](const PlanStage& s) { return place <= static_cast<std::size_t>(s.last_layer) + 1; });
    const PlanStage& on = stage == plan_.stages.end() ? plan_.stages.back() : *stage;
    for (const StrategySpec& one : strategies_on(on)) {
      spec = one;
      if (place > blocks && model_.head.tied && plan_.head != plan_.embedding) continue;
      if (plan_.microbatch() % one.data == 0) choose(place + 1);
    }
  }

  const ModelSpec& model_;
  ClusterView cluster_;
  SearchOptions options_;
  std::vector<PlanStage> stages_;
  Plan plan_;
  double fastest_ = std::numeric_limits<double>::infinity();
  Bytes least_peak_{std::numeric_limits<std::int64_t>::max()};
};

struct SmallQuestion {
  ModelSpec model;
  MixedCluster cluster;
  SearchOptions options;
};

SmallQuestion random_question(std::mt19937& random) {
  const auto upto = [&](int n) { return std::uniform_int_distribution<int>(0, n)(random); };
  const auto one_of = [&](auto list) {
    return list[static_cast<std::size_t>(upto(static_cast<int>(std::size(list)) - 1))];
  };
  static constexpr const char* devices[] = {"v100-32g", "p100-16g", "a100-80g", "t4-16g", "h100-80g"};
  SmallQuestion out;
  out.model = model_named(one_of(std::array{"llama-tiny", "gpt2-tiny"}));
  out.model.blocks.resize(static_cast<std::size_t>(2 + upto(1)));
  for (LayerSpec& block : out.model.blocks) block.ffn *= 1 + upto(2);
  std::string name;
  for (int groups = 2 + (upto(3) == 0 ? 1 : 0), i = 0; i < groups; ++i)
    name += (i > 0 ? "+" : "") + std::to_string(1 << upto(groups == 3 ? 1 : 2)) + "x" + one_of(std::to_array(devices));
  out.cluster = mixed_named(name);
  for (Cluster& group : out.cluster.groups) {
    group.device.library_workspace = {};
    group.device.reserve = {};
    group.devices_per_node = one_of(divisors(group.devices));
  }
  for (Link& link : out.cluster.links)
    link = {{1e-6 * upto(40)}, 1e8 * (1 + upto(200)), 1e8 * (1 + upto(200)), 1e8 * (1 + upto(200))};
  out.options.global_batch = 2 * (1 + upto(1));
  out.options.sequence = 32 << upto(2);
  out.options.schedules = {one_of(std::array{ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})};
  out.options.space =
      value_or_throw(parse_space(one_of(std::array{"dp,pp", "dp,zero1,pp", "dp,tp,pp", "tp,pp,recompute"})));
  return out;
}

}  // namespace

TEST_CASE("the search finds the fastest of all plans of small mixed clusters") {
  const char* const wanted = std::getenv("GALVATRON_MIXED_CLUSTERS");
  const int clusters = wanted != nullptr ? std::atoi(wanted) : 40;
  const unsigned seed = std::random_device()();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  int over_groups = 0;
  int tight = 0;
  for (int i = 0; i < clusters; ++i) {
    SmallQuestion q = random_question(random);
    q.options = value_or_throw(search::completed(q.options, q.model, q.cluster));
    CAPTURE(i);
    CAPTURE(q.cluster.name);
    CAPTURE(q.model.name);
    for (const bool is_tight : {false, true}) {
      EveryMixedPlan all(q.model, q.cluster, q.options);
      const double fastest = all.fastest();
      const FoundPlan best = found(q.model, q.cluster, q.options);
      REQUIRE(best.feasible == (fastest < std::numeric_limits<double>::infinity()));
      if (best.feasible) {
        CHECK(best.statistics.proven);
        CHECK(best.cost.iteration.value == doctest::Approx(fastest).epsilon(1e-9));
        CHECK(best.statistics.bound.value <= fastest * (1 + 1e-9));
        CHECK(why_too_large(best.plan, best.cost, q.cluster).empty());
        CHECK(value_or_throw(plan_from_json(to_json(best.plan), "found")) == best.plan);
        over_groups += best.plan.mixes_groups() ? 1 : 0;
        tight += is_tight ? 1 : 0;
      }
      const std::int64_t least = all.least_peak().count;  // memory decides
      for (Cluster& group : q.cluster.groups)
        group.device.memory = {least * (80 + std::uniform_int_distribution<int>(0, 150)(random)) / 100};
      q.options.memory = ClusterView(q.cluster).most_memory();
    }
  }
  CHECK(over_groups > clusters / 10);
  CHECK(tight > clusters / 10);
}

TEST_CASE("a plan on a mixed cluster is never slower than the best one on any of its groups") {
  const std::vector<std::string> names{"4xa100-80g+4xh100-80g", "8xv100-32g+4xa100-40g", "2xt4-16g+2xl4-24g+2xh100-80g",
                                       "4xa100-80g+4xa100-80g"};
  for (const char* const model_name : {"gpt2-774m", "llama2-7b"}) {
    const ModelSpec model = model_named(model_name);
    for (const std::string& name : names) {
      const MixedCluster cluster = mixed_named(name);
      SearchOptions options{.global_batch = 32,
                            .space = value_or_throw(parse_space("pow2,dp,zero1,zero3,tp,pp,recompute"))};
      const FoundPlan best = found(model, cluster, options);
      CAPTURE(name);
      CAPTURE(model_name);
      for (const Cluster& group : cluster.groups) {
        const FoundPlan alone = found(model, group, options);
        if (!alone.feasible) continue;
        REQUIRE(best.feasible);
        CHECK(best.cost.iteration.value <= alone.cost.iteration.value * (1 + 1e-9));
      }
      if (best.feasible) CHECK(why_too_large(best.plan, best.cost, cluster).empty());
    }
  }
}

namespace {

/// Two stages of llama-tiny or gpt2-tiny, the first on `first` ranks of group 0, the second on `second` of group 1.
Plan over_two_groups(const ModelSpec& model, int first, int second) {
  Plan plan;
  plan.model = model.name;
  plan.global_batch = 16;
  plan.sequence_length = 64;
  plan.precision = Precision::bf16;
  plan.microbatches = 2;
  const auto blocks = static_cast<int>(model.blocks.size());
  plan.stages = {{0, 0, 0, first, 0}, {1, blocks - 1, first, second, 1}};
  plan.layers.assign(model.blocks.size(), {.data = second});
  plan.layers.front() = plan.embedding = {.data = first};
  plan.head = {.data = second};
  return plan;
}

}  // namespace

TEST_CASE("stages are priced by their own devices, and borders by the link of their groups") {
  const ModelSpec model = model_named("llama-tiny");
  MixedCluster mixed = mixed_named("4xa100-80g+8xp100-16g");
  mixed.links.front() = {{3e-5}, 2e9, 2e9, 1e9};
  const Plan plan = over_two_groups(model, 2, 8);
  const PlanCost cost = value_or_throw(cost_of(plan, model, mixed));
  // The first layer as it is on two A100, the last as on eight P100, of any pipeline.
  for (const auto& [layer, group] : {std::pair{1, 0}, {2, 1}}) {
    const Cluster& on = mixed.groups[static_cast<std::size_t>(group)];
    const cost::Batch batch = batch_of(plan);
    const StrategySpec& spec = plan.layers[static_cast<std::size_t>(layer - 1)];
    const cost::LayerSeconds seconds =
        cost::layer_seconds(cost::layer_counts(model.blocks[static_cast<std::size_t>(layer - 1)], spec, batch), spec,
                            plan.precision, on, plan.ranks_on(group));
    CHECK(cost.layers[static_cast<std::size_t>(layer)].seconds == seconds);
    CHECK(cost.stages[static_cast<std::size_t>(group)].memory.library == on.device.library_workspace);
  }
  // 8 samples x 64 tokens of 2 bytes: a rank of the first stage sends or receives half of them, one of the second an
  // eighth, and both wait for the half.
  const double bytes = 8.0 * 64 * static_cast<double>(model.hidden()) * 2 / 2;
  CHECK(cost.stages[1].chunks[0].receive_activation.value == doctest::Approx(3e-5 + bytes / 1e9));
  CHECK(cost.stages[0].chunks[0].receive_gradient.value == doctest::Approx(3e-5 + bytes / 1e9));
  CHECK(cost.stages[0].chunks[0].receive_activation.value == 0);

  mixed.links.front().send_bandwidth /= 10;
  const PlanCost slower = value_or_throw(cost_of(plan, model, mixed));
  CHECK(slower.stages[1].chunks[0].receive_activation.value == doctest::Approx(3e-5 + 10 * bytes / 1e9));
  CHECK(slower.iteration > cost.iteration);
  const simulate::Simulation simulated = value_or_throw(simulate::simulate_plan(plan, model, mixed));
  CHECK(simulated.iteration.value == doctest::Approx(slower.iteration.value).epsilon(0.2));
  CHECK(simulated.stages.size() == 2);
}

TEST_CASE("copies of a tied table are kept alike over the link between their groups") {
  const ModelSpec model = model_named("gpt2-tiny");
  REQUIRE(model.head.tied);
  MixedCluster mixed = mixed_named("4xa100-80g+4xh100-80g");
  const Plan plan = over_two_groups(model, 4, 4);
  const auto synchronise = [&](double bandwidth) {
    mixed.links.front() = {{1e-5}, bandwidth, bandwidth, 1e9};
    return value_or_throw(cost_of(plan, model, mixed)).layers.front().seconds.synchronise.value;
  };
  // An all-reduce of two ranks: each sends the table's gradient of 4 bytes once in all.
  const double bytes = 4.0 * static_cast<double>(model.head.vocabulary * model.hidden());
  CHECK(synchronise(1e9) - synchronise(2e9) == doctest::Approx(bytes / 2e9).epsilon(0.01));
  Plan unequal = over_two_groups(model, 4, 2);
  CHECK(says(cost_of(unequal, model, mixed).error().message, "both have one strategy"));
}

TEST_CASE("a mixed cluster of one group is that group, and a plan may be on any one group") {
  const ModelSpec model = model_named("llama-tiny");
  const Cluster a100 = value_or_throw(find_cluster("4xa100-80g"));
  const SearchOptions options{.global_batch = 16};
  const FoundPlan plain = found(model, a100, options);
  const FoundPlan same = found(model, alone(a100), options);
  CHECK(same.plan == plain.plan);
  CHECK(same.cost.iteration == plain.cost.iteration);
  Plan second = plain.plan;
  for (PlanStage& stage : second.stages) stage.group = 1;
  const MixedCluster mixed = mixed_named("8xt4-16g+4xa100-80g");
  CHECK(value_or_throw(cost_of(second, model, mixed)).iteration == plain.cost.iteration);
  CHECK(says(cost_of(second, model, a100).error().message, "has one group"));
  second.stages.front().group = 0;
  second.stages.front().rank_count = 9;
  CHECK_FALSE(cost_of(second, model, mixed).has_value());
}

TEST_CASE("plans on groups that a cluster does not have are refused with the numbers") {
  const ModelSpec model = model_named("llama-tiny");
  Plan plan = over_two_groups(model, 2, 8);
  const MixedCluster small = mixed_named("4xa100-80g+4xp100-16g");
  const std::string few = cost_of(plan, model, small).error().message;
  CHECK(says(few, "needs 8 devices and group 1 (4xp100-16g) of 4xa100-80g+4xp100-16g has 4"));
  plan.stages.back().group = 2;
  CHECK(
      says(cost_of(plan, model, small).error().message, "group 2 of devices, and 4xa100-80g+4xp100-16g has 2 groups"));
  plan.stages.back().group = -1;
  CHECK(says(cost_of(plan, model, small).error().message, "groups are numbered from 0"));
}

TEST_CASE("groups that do not pay, or have too little memory, are left idle, and explain says so") {
  const ModelSpec model = model_named("llama2-7b");
  SearchOptions options{.global_batch = 16, .space = value_or_throw(parse_space("pow2,dp,zero1,zero3,tp,pp"))};
  MixedCluster slow = mixed_named("8xh100-80g+2xt4-16g");
  for (Cluster& group : slow.groups) group.device.reserve = {};
  const FoundPlan without = found(model, slow, options);
  REQUIRE(without.feasible);
  REQUIRE(without.plan.ranks_on(1) == 0);
  const std::string text = value_or_throw(explain(without.plan, model, slow));
  CHECK_MESSAGE(says(text, "Group 1 (2xt4-16g) is left idle: with it no plan is faster."), text);

  slow.groups[1].device.memory = slow.groups[1].device.library_workspace + Bytes{std::int64_t{64} << 20};
  const FoundPlan full = found(model, slow, options);
  REQUIRE(full.feasible);
  const std::string why = value_or_throw(explain(full.plan, model, slow));
  CHECK_MESSAGE(says(why, "Group 1 (2xt4-16g) is left idle: it has too little memory for any stage of this"), why);

  for (Cluster& group : slow.groups) group.device.memory = {std::int64_t{2} << 30};
  const FoundPlan none = found(model, slow, options);
  CHECK_FALSE(none.feasible);
  CHECK_MESSAGE(says(none.reason, "or what a device has: each would need"), none.reason);
  REQUIRE(none.smallest_memory);
  for (Cluster& group : slow.groups) group.device.memory = *none.smallest_memory;
  CHECK(found(model, slow, options).feasible);
  for (Cluster& group : slow.groups) group.device.memory.count -= 1;
  CHECK_FALSE(found(model, slow, options).feasible);
}

TEST_CASE("a search on groups ends when its time is over, and its answer does not depend on threads") {
  const ModelSpec model = model_named("gpt2-774m");
  const MixedCluster cluster = mixed_named("8xv100-32g+8xa100-40g+4xt4-16g");
  SearchOptions options{.global_batch = 32, .space = value_or_throw(parse_space("pow2,dp,zero1,tp,pp,recompute"))};
  const FoundPlan one = found(model, cluster, options);
  options.threads = 3;
  const FoundPlan three = found(model, cluster, options);
  CHECK(one.plan == three.plan);
  options.time = 1e-3;
  CHECK(found(model, cluster, options).statistics.interrupted);
}

TEST_CASE("what a search that runs out of time knows of all plans is true, however far it came") {
  const ModelSpec model = model_named("llama2-7b");
  SearchOptions options{.global_batch = 64, .space = value_or_throw(parse_space("dp,zero1,tp,pp,recompute"))};
  const MixedCluster mixed = mixed_named("32xa100-40g+32xv100-32g+16xh100-80g");
  const Cluster equal = cluster_named("64xa100-40g");
  for (const ClusterView& cluster : {ClusterView(mixed), ClusterView(equal)}) {
    CAPTURE(cluster.name());
    options.time = 0;
    const FoundPlan whole = found(model, cluster, options);
    REQUIRE(whole.feasible);
    for (int part = 1; part <= 30; ++part) {
      options.time = whole.statistics.seconds.value * part / 60;
      CAPTURE(options.time);
      const FoundPlan soon = found(model, cluster, options);
      CHECK(soon.statistics.bound.value <= whole.cost.iteration.value * (1 + 1e-9));
      if (!soon.feasible) continue;
      CHECK(soon.cost.iteration.value >= whole.cost.iteration.value * (1 - 1e-9));
      if (soon.statistics.proven)
        CHECK(soon.cost.iteration.value == doctest::Approx(whole.cost.iteration.value).epsilon(1e-9));
    }
  }
}
