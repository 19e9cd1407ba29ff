#include <galvatron/search/constexpr_search.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <vector>

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

constexpr ConstexprCluster devices(Bytes memory) {
  return {.devices = 2, .memory = memory, .flops = 1e12, .memory_bandwidth = 1e11, .network_bandwidth = 1e10};
}

// With plenty of memory nothing is recomputed; with little of it something gives way; with less nothing fits.
constexpr auto roomy = constexpr_search<3>(block, devices(1_GiB), options);
constexpr auto tight = constexpr_search<3>(block, devices(34_MiB), options);
constexpr auto hopeless = constexpr_search<3>(block, devices(1_MiB), options);
static_assert(roomy.feasible && roomy.strategies[0].recompute == RecomputeKind::none);
static_assert(tight.feasible && tight.peak <= 34_MiB && tight.iteration > roomy.iteration);
static_assert(tight.strategies[0].recompute == RecomputeKind::none, "one layer keeps its activations");
static_assert(tight.strategies[2].recompute == RecomputeKind::full, "the others compute them again");
static_assert(!hopeless.feasible);

}  // namespace

TEST_CASE("the compile-time search gives the same at run time") {
  const auto again = constexpr_search<3>(block, devices(34_MiB), options);
  CHECK(again.iteration == tight.iteration);
  CHECK(again.peak == tight.peak);
  for (std::size_t i = 0; i < 3; ++i) CHECK(again.strategies[i] == tight.strategies[i]);
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
