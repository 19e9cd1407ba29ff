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

#include "found.hpp"
#include "says.hpp"

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
