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
// 2205.05198), who recompute S x S matrices, save 5 A S / H bytes more.
//
// The kinds of layers have a header each in cost/detail/. Those that nn/ does not have yet (blocks of which
// LayerSpec::is_plain_block is false, among others) continue the same bookkeeping.
#pragma once

#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/block.hpp>
#include <galvatron/cost/detail/ends.hpp>
#include <galvatron/cost/detail/half_block.hpp>
#include <galvatron/cost/detail/megatron.hpp>
#include <galvatron/cost/detail/mixed_block.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// What one rank does and keeps for `layer` under `spec`. The strategy must fit the layer and the batch
/// (strategy/legality.hpp); expert parallelism is not part of the layer code yet and counts as degree 1.
constexpr LayerCounts layer_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  const detail::LayerShape shape(layer, spec, batch);
  LayerCounts out = layer.kind == LayerKind::embedding ? detail::embedding_counts(shape)
                    : layer.kind == LayerKind::head    ? detail::head_counts(shape)
                    : layer.is_half_block()            ? detail::half_block_counts(shape)
                    : layer.window > 0                 ? detail::block_counts(shape)
                    : !layer.is_plain_block()          ? detail::mixed_block_counts(shape)
                    : shape.habits.keeps_outputs       ? detail::megatron_counts(shape)
                                                       : detail::block_counts(shape);
  out.input = shape.local_bytes(layer.input_elements(batch.sequence));
  out.activation = shape.local_bytes(layer.output_elements(batch.sequence));
  out.overlaps_data = batch.overlap;
  out.carried = shape.local_bytes(layer.carried_elements(batch.sequence));
  return out;
}

/// The head's forward pass alone: its counts carry the backward pass too.
constexpr Flops head_flops(const LayerSpec& head, const Batch& batch) {
  const std::int64_t tokens = head.tokens.of(batch.sequence) * batch.microbatch;
  const std::int64_t rows = head.head == HeadKind::classifier ? batch.microbatch : tokens;
  WorkList products;
  products.push(detail::compute(WorkKind::gemm_nt, rows, head.vocabulary, head.hidden));
  if (head.head == HeadKind::masked_language)
    products.push(detail::compute(WorkKind::gemm_nt, tokens, head.hidden, head.hidden));
  return products.flops();
}

}  // namespace galvatron::cost
