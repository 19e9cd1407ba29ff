// Curves of layers, by the prices of the programs that the runtime executes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/plan_cost.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/spindle/curve.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/space.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::spindle {

/// A curve, and the strategy of the layer on each of its numbers of devices.
struct LayerCurve {
  Curve curve;
  std::vector<StrategySpec> strategies;
};

/// Strategies that differ in seconds alone: tensor and data parallelism, Megatron's sequence parallelism, everything
/// kept and nothing sharded, on powers of two.
inline Space quick_space() {
  Space out;
  out.context.open = false;
  out.zero = {true, false, false, false};
  out.sequence = {SequenceKind::none, SequenceKind::megatron};
  out.recompute = {RecomputeKind::none};
  out.strided = false;
  out.powers_of_two = true;
  return out;
}

/// Seconds of the forward and backward pass of a layer on a batch, in one micro-batch, with the fastest strategy of a
/// space on each number of devices. Gradients are reduced and states updated once a step, whatever the waves: they are
/// not in the curve. Errors (usage): no strategy of the space fits the layer.
/// @param samples   of the batch, all devices together
/// @param sequence  tokens of a sample
inline Result<LayerCurve> layer_curve(const LayerSpec& layer, std::int64_t samples, std::int64_t sequence,
                                      Precision precision, const Cluster& cluster, const Space& space = quick_space()) {
  const cost::Batch batch{
      .microbatch = samples, .sequence = sequence, .precision = precision, .overlap = cost::can_overlap(cluster)};
  std::vector<StrategySpec> all;
  std::vector<Curve> ways;
  std::string_view why = "the space has none";
  for (int n = 1; n <= cluster.devices; n = space.powers_of_two ? 2 * n : n + 1)
    for (const StrategySpec& spec : strategies(space, n, cluster.devices_per_node)) {
      if (const std::string_view unfit = why_unfit(layer, spec, samples, sequence); !unfit.empty()) {
        why = unfit;
        continue;
      }
      const cost::LayerCounts counts = cost::layer_counts(layer, spec, batch);
      const cost::LayerSeconds seconds = cost::layer_seconds(counts, spec, precision, cluster, n);
      all.push_back(spec);
      ways.push_back({{n}, {(seconds.forward + seconds.backward).value}});
    }
  if (all.empty()) return usage_error(text_of("no strategy spreads the layer: ", why));
  FastestCurve fastest = fastest_of(ways);
  LayerCurve out{std::move(fastest.curve), {}};
  for (const int way : fastest.choices) out.strategies.push_back(all[static_cast<std::size_t>(way)]);
  return out;
}

}  // namespace galvatron::spindle
