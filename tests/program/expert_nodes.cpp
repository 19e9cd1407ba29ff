// How many nodes a token goes to, against all choices of its router.
#include <galvatron/program/expert_nodes.hpp>

#include <bit>
#include <cstdint>

#include <doctest/doctest.h>

using namespace galvatron;

namespace {

LayerSpec routed(std::int64_t experts, std::int64_t active, std::int64_t groups = 1, std::int64_t top = 1) {
  return {.experts = experts, .active_experts = active, .router = {.groups = groups, .top_groups = top}};
}

// The mean over all sets of experts that a token may have, of which those in as many groups as are chosen are equally
// likely, and so are the groups.
double counted(const LayerSpec& layer, std::int64_t nodes) {
  const auto bits = [](std::int64_t run, std::int64_t size) {
    return ((std::uint64_t{1} << size) - 1) << (run * size);
  };
  const std::int64_t of_group = layer.experts / layer.router.groups;
  double sum = 0;
  std::int64_t sets = 0;
  for (std::uint64_t groups = 0; groups < std::uint64_t{1} << layer.router.groups; ++groups) {
    if (std::popcount(groups) != layer.router.top_groups) continue;
    std::uint64_t open = 0;
    for (std::int64_t group = 0; group < layer.router.groups; ++group)
      if ((groups >> group & 1) != 0) open |= bits(group, of_group);
    for (std::uint64_t chosen = 0; chosen < std::uint64_t{1} << layer.experts; ++chosen) {
      if ((chosen & ~open) != 0 || std::popcount(chosen) != layer.active_experts) continue;
      ++sets;
      for (std::int64_t node = 0; node < nodes; ++node)
        sum += (chosen & bits(node, layer.experts / nodes)) != 0 ? 1 : 0;
    }
  }
  return sum / static_cast<double>(sets);
}

}  // namespace

TEST_CASE("a token goes to as many nodes as its experts lie in, in the mean over all choices") {
  for (const std::int64_t nodes : {1, 2, 3, 4, 6, 12})
    for (const std::int64_t active : {1, 2, 3, 5}) {
      CAPTURE(nodes);
      CAPTURE(active);
      const LayerSpec layer = routed(12, active);
      CHECK(program::nodes_of_token(layer, nodes) == doctest::Approx(counted(layer, nodes)));
    }
  CHECK(program::nodes_of_token(routed(8, 8), 4) == doctest::Approx(4));
}

TEST_CASE("a router that chooses groups first goes to fewer nodes") {
  for (const std::int64_t groups : {2, 4, 6})
    for (std::int64_t top = 1; top < groups; ++top)
      for (const std::int64_t nodes : {1, 2, 4, 6, 12}) {
        if (nodes % groups != 0 && groups % nodes != 0) continue;
        const LayerSpec layer = routed(12, top == 1 ? 2 : 3, groups, top);
        CAPTURE(groups);
        CAPTURE(top);
        CAPTURE(nodes);
        CHECK(program::nodes_of_token(layer, nodes) == doctest::Approx(counted(layer, nodes)));
      }
}

TEST_CASE("ranks make room for the stated imbalance, and no more than all tokens") {
  const LayerSpec layer = routed(8, 2);
  const StrategySpec spec{.data = 8, .expert = 8, .expert_nodes = 2};
  const program::ExchangeNodes mean = program::exchange_nodes(layer, spec, 100, 1);
  CHECK(mean.count == 2);
  CHECK(mean.tokens == static_cast<std::int64_t>(100 * program::nodes_of_token(layer, 2)) + 1);
  CHECK(mean.rows == 201);
  const program::ExchangeNodes all = program::exchange_nodes(layer, spec, 100, 50);
  CHECK(all.tokens == 200);
  CHECK(all.rows == 400);
  CHECK(program::exchange_nodes(layer, {.data = 8, .expert = 8}, 100, 1).count == 1);
  CHECK(program::exchange_nodes({}, spec, 100, 1).count == 1);
}
