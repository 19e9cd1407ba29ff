// A search that also runs at compile time: one stage, any strategy in every layer, the cost model of the run-time
// search.
//
//     constexpr auto best = search::constexpr_search<4>(block, devices, {.global_batch = 8, ...});
//     static_assert(best.feasible && best.strategies[0].zero == 3);
//
// It needs constexpr std::vector and std::string: g++ 12 has both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/schedule/in_flight.hpp>
#include <galvatron/search/build_problem.hpp>
#include <galvatron/search/choices.hpp>
#include <galvatron/search/options.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/solver.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

/// Equal devices on one network, as rates: what a data sheet tells.
struct ConstexprCluster {
  int devices = 1;
  Bytes memory;                     ///< of each
  double flops = 1e14;              ///< FLOP/s reached by GEMMs, and the peak of attention
  double memory_bandwidth = 1e12;   ///< bytes/s
  double network_bandwidth = 1e11;  ///< bytes/s on the busiest link of a ring
  double latency = 5e-6;            ///< seconds of a step of a ring
};

struct ConstexprOptions {
  std::int64_t global_batch = 8;
  std::int64_t sequence = 128;
  Precision precision = Precision::bf16;
  int microbatches = 1;
  bool recompute = true;  ///< full recomputation may be chosen
};

/// The same devices in the terms of every other search and price. `out` is a cluster without a name and tables.
constexpr void describe(const ConstexprCluster& rates, Precision precision, Cluster& out) {
  out.devices = out.devices_per_node = rates.devices;
  out.device.memory = rates.memory;
  out.device.memory_bandwidth = rates.memory_bandwidth;
  out.device.memory_share = 1;
  out.device.rates.resize(1);
  out.device.rates[0].precision = precision;
  out.device.rates[0].peak_flops = rates.flops;
  out.device.rates[0].gemm_share = 1;
  out.inside_node = {{rates.latency}, rates.network_bandwidth, rates.network_bandwidth, rates.network_bandwidth};
  out.across_nodes = out.inside_node;
}

/// The same limits in the terms of the run-time search: one stage, the micro-batches given.
constexpr SearchOptions search_options(const ConstexprOptions& options, Bytes memory) {
  SearchOptions out;
  out.global_batch = options.global_batch;
  out.sequence = options.sequence;
  out.memory = memory;
  out.precision = options.precision;
  out.microbatches = options.microbatches;
  out.space.pipeline.forced = 1;
  out.space.context.open = false;
  out.space.sequence = {SequenceKind::none, SequenceKind::megatron};
  out.space.recompute = {RecomputeKind::cheap};
  if (options.recompute) out.space.recompute.push_back(RecomputeKind::full);
  return out;
}

template <std::size_t Layers>
struct ConstexprPlan {
  bool feasible = false;
  StrategySpec embedding;
  std::array<StrategySpec, Layers> strategies{};  ///< of the blocks
  StrategySpec head;
  Seconds iteration;
  Bytes peak;  ///< of every rank
};

/// The fastest strategies for an embedding, `Layers` equal blocks and a head on one stage within the devices' memory:
/// for every layer any division of the devices into tensor and data ranks, ZeRO 0-3, Megatron sequence parallelism, and
/// recomputation. It is the problem that search() makes of the model, priced by the same functions and solved by the
/// same solver.
/// @param block  of the model; it carries the vocabulary, and `tied` if the head uses the embedding's table
template <std::size_t Layers>
constexpr ConstexprPlan<Layers> constexpr_search(const LayerSpec& block, const ConstexprCluster& devices,
                                                 const ConstexprOptions& options) {
  Cluster cluster;
  describe(devices, options.precision, cluster);
  ModelSpec model;
  model.blocks.assign(Layers, block);
  for (LayerSpec& layer : model.blocks) {
    layer.kind = LayerKind::block;
    layer.layers = static_cast<int>(Layers);
  }
  model.embedding = model.head = model.blocks.front();
  model.embedding.kind = LayerKind::embedding;
  model.head.kind = LayerKind::head;
  const SearchOptions limits = search_options(options, devices.memory);

  ConstexprPlan<Layers> out;
  if (options.global_batch % options.microbatches != 0 || options.sequence > block.positions) return out;
  const detail::StageSetting setting(1, devices.devices, strategies(limits.space, devices.devices));
  detail::LayerKinds kinds(model);
  kinds.lower(limits, {&setting, 1}, false);
  detail::CommonPrices prices(kinds, {options.microbatches}, limits.precision, cluster, cluster.devices);
  Case one = detail::make_case(model, kinds, cluster, limits, setting, options.microbatches, false, false, prices);
  if (one.problem.types.empty()) return out;
  one.problem.slots = {{microbatches_in_flight(one.schedule, 1, 0, options.microbatches)}};
  drop_dominated(one.problem);
  const std::optional<Solution> found =
      Solver<>(one.problem, {.labels = std::numeric_limits<std::int32_t>::max()}, nullptr, 1).fastest();
  if (!found) return out;
  const auto strategy = [&](std::size_t layer) {
    const int tag = one.problem.choice(static_cast<int>(layer), found->plan.choice[layer]).tag;
    return nth(one.specs, tag);
  };
  out.feasible = true;
  out.embedding = strategy(0);
  for (std::size_t i = 0; i < Layers; ++i) out.strategies[i] = strategy(i + 1);
  out.head = strategy(Layers + 1);
  out.iteration = {found->cost.seconds};
  out.peak = {found->cost.peak};
  return out;
}

}  // namespace galvatron::search
