// The closed formulas: what one rank does and keeps for one layer under one strategy.
//
// They mirror, operation by operation, what the layers of nn/ do on a device; a test runs those layers on device::dry
// and compares. Shape letters as in model/spec.hpp; t tensor degree, d data degree, b samples of a rank,
// e bytes of an element. `rows` = S * b tokens; under Megatron sequence parallelism a rank holds rows / t of them
// between the tensor-parallel regions. The kinds of layers have a header each in cost/detail/.
#pragma once

#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/block.hpp>
#include <galvatron/cost/detail/ends.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// What one rank does and keeps for `layer` under `spec`. The strategy must fit the layer and the batch
/// (strategy/legality.hpp); context and expert parallelism are not part of the layer code yet and count as degree 1.
constexpr LayerCounts layer_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  const detail::LayerShape shape(layer, spec, batch);
  switch (layer.kind) {
    case LayerKind::embedding:
      return detail::embedding_counts(shape);
    case LayerKind::head:
      return detail::head_counts(shape);
    case LayerKind::block:
      break;
  }
  return detail::block_counts(shape);
}

}  // namespace galvatron::cost
