// The closed formulas: what one rank does and keeps for one layer under one strategy.
//
// They mirror, operation by operation, what the layers of nn/ do on a device; a test runs those layers on device::dry
// and compares. Shape letters as in model/spec.hpp; t tensor, c context and d data degree, b samples of a
// rank, e bytes of an element. `rows` = S / c * b tokens; under Megatron sequence parallelism a rank holds rows / t of
// them between the tensor-parallel regions. Ulysses and ring attention are in cost/detail/attention.hpp.
//
// Selective recomputation keeps queries, keys and values and computes the attention core again before its backward
// pass. Attention in blocks has no S x S matrices to keep, so it saves only the core's output and the statistics of
// the softmax: of a GPT block in bf16 about 2 of the 20 bytes for each token and hidden unit. Korthikanti et al. (arXiv
// 2205.05198), who recompute S x S matrices, save 5 A S / H bytes more. The kinds of layers have a header each in
// cost/detail/.
#pragma once

#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/block.hpp>
#include <galvatron/cost/detail/ends.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// What one rank does and keeps for `layer` under `spec`. The strategy must fit the layer and the batch
/// (strategy/legality.hpp); expert parallelism is not part of the layer code yet and counts as degree 1.
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
