#include <galvatron/search/constexpr_search.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/strategy/spec.hpp>

using namespace galvatron;
using namespace galvatron::search;

namespace {

constexpr LayerSpec block{.hidden = 256,
                          .heads = 8,
                          .kv_heads = 8,
                          .head_dim = 32,
                          .ffn = 1024,
                          .vocabulary = 1000,
                          .positions = 128,
                          .layers = 3};
constexpr ConstexprOptions options{.global_batch = 8, .sequence = 128, .precision = Precision::fp32};

constexpr ConstexprCluster devices(Bytes memory, int count = 2) {
  return {.devices = count, .memory = memory, .flops = 1e12, .memory_bandwidth = 1e11, .network_bandwidth = 1e10};
}

// With plenty of memory nothing is recomputed; with little of it something gives way; with less nothing fits.
constexpr auto roomy = constexpr_search<3>(block, devices(1_GiB), options);
constexpr auto tight = constexpr_search<3>(block, devices(34_MiB), options);
constexpr auto hopeless = constexpr_search<3>(block, devices(1_MiB), options);
static_assert(roomy.feasible && roomy.strategies[0].recompute == RecomputeKind::cheap);
static_assert(tight.feasible && tight.peak <= 34_MiB && tight.iteration > roomy.iteration);
static_assert(!hopeless.feasible);

// The run-time search of the same case, with room for all labels that a proof needs.
template <std::size_t Layers>
SearchResult searched(const LayerSpec& layer, const ConstexprCluster& cluster, const ConstexprOptions& limits) {
  Cluster same;
  describe(cluster, limits.precision, same);
  SearchOptions wanted = search_options(limits, cluster.memory);
  wanted.effort = 16;
  return value_or_throw(search::search(model_of_equal_blocks("blocks", layer, static_cast<int>(Layers)), same, wanted));
}

}  // namespace

TEST_CASE("the compile-time search gives the same at run time, and the same as the run-time search") {
  const auto again = constexpr_search<3>(block, devices(34_MiB), options);
  CHECK(again.iteration == tight.iteration);
  CHECK(again.peak == tight.peak);
  CHECK(again.embedding == tight.embedding);
  CHECK(again.strategies == tight.strategies);
  CHECK(again.head == tight.head);
  for (const auto& [found, memory] : {std::pair{tight, 34_MiB}, {roomy, 1_GiB}}) {
    const SearchResult run_time = searched<3>(block, devices(memory), options);
    REQUIRE(run_time.feasible);
    CHECK(found.iteration.value == doctest::Approx(run_time.best.iteration.value).epsilon(1e-12));
    CHECK(found.peak <= memory);
  }
  CHECK(!searched<3>(block, devices(1_MiB), options).feasible);
}

TEST_CASE("every budget, device count and batch has the seconds of the run-time search") {
  std::set<std::string> seen;
  int feasible = 0;
  int mixed = 0;
  for (const bool tied : {false, true})
    for (const int count : {1, 2, 4, 6})
      for (const int microbatches : {1, 2})
        for (std::int64_t mib = 4; mib <= 96; mib = mib * 5 / 4 + 1) {
          LayerSpec layer = block;
          layer.tied = tied;
          ConstexprOptions limits = options;
          limits.global_batch = 24;
          limits.microbatches = microbatches;
          const ConstexprCluster cluster = devices({mib << 20}, count);
          INFO(mib << " MiB on " << count << " devices, " << microbatches << " micro-batches, tied " << tied);
          const auto found = constexpr_search<5>(layer, cluster, limits);
          const SearchResult run_time = searched<5>(layer, cluster, limits);
          REQUIRE(found.feasible == run_time.feasible);
          if (!found.feasible) continue;
          ++feasible;
          CHECK(run_time.statistics.proven);
          CHECK(found.iteration.value == doctest::Approx(run_time.best.iteration.value).epsilon(1e-9));
          CHECK(found.peak <= cluster.memory);
          for (const StrategySpec& spec : found.strategies) seen.insert(strategy_text(spec));
          mixed += found.strategies.front() == found.strategies.back() ? 0 : 1;
        }
  CHECK(feasible > 50);
  CHECK(mixed > 5);
  CHECK(seen.size() > 5);  // tensor, data, ZeRO and recomputation are all chosen somewhere
}

TEST_CASE("less memory is never faster, and the budget is kept") {
  double last = std::numeric_limits<double>::infinity();
  bool feasible = false;
  for (std::int64_t mib = 1; mib <= 128; mib += 3) {
    const Bytes memory{mib << 20};
    const auto plan = constexpr_search<3>(block, devices(memory), options);
    if (!plan.feasible) {
      CHECK(!feasible);
      continue;
    }
    feasible = true;
    CHECK(plan.peak <= memory);
    CHECK(plan.iteration.value <= last);
    last = plan.iteration.value;
  }
  CHECK(feasible);
}
