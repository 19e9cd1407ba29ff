// The extents of one rank's part of a layer, from which all counts are made.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost::detail {

struct LayerShape {
  const LayerSpec& layer;
  const StrategySpec& spec;
  const Batch& batch;
  std::int64_t c = spec.context;                              ///< context degree
  std::int64_t shards = spec.shards();                        ///< ranks with the same parameters: data x context
  std::int64_t b = batch.microbatch / spec.data;              ///< samples of a rank
  std::int64_t tokens = layer.tokens.of(batch.sequence) / c;  ///< of a sequence, on a rank
  std::int64_t rows = tokens * b;                             ///< of activations
  bool cut = spec.sequence == SequenceKind::megatron;         ///< Megatron sequence parallelism
  std::int64_t rows_local = cut ? rows / spec.tensor : rows;  ///< between tensor-parallel regions
  std::int64_t h = layer.hidden;
  std::int64_t kv_heads = layer.kv_heads / spec.tensor;
  std::int64_t q = layer.heads / spec.tensor * layer.head_dim;  ///< width of queries
  std::int64_t kv = kv_heads * layer.head_dim;                  ///< width of keys
  std::int64_t ffn = layer.ffn / spec.tensor;
  std::int64_t ffn_in = layer.ffn_inputs() / spec.tensor;
  std::int64_t e = element_bytes(batch.precision);
  RuntimeTraits traits = traits_of(batch.trainer);

  /// Of so many elements a sample, what a rank holds between layers.
  [[nodiscard]] constexpr Bytes local_bytes(std::int64_t elements) const {
    return {aligned_bytes(elements * b / (cut ? spec.tensor * c : c) * e)};
  }
  /// A collective of the tensor ranks; `bytes` as op::Work::m says.
  [[nodiscard]] constexpr op::Work tensor_group(op::Kind kind, std::int64_t bytes) const {
    return {.kind = kind, .m = bytes, .n = spec.tensor, .stride = spec.tensor_stride()};
  }
  /// Of m sequences times heads.
  [[nodiscard]] constexpr op::Work attention(op::Kind kind, std::int64_t m, std::int64_t queries, std::int64_t keys,
                                             std::int64_t head_dim, bool causal) const {
    const program::Options& how = traits.passes;
    return {.kind = kind,
            .m = m,
            .n = queries,
            .k = keys,
            .l = head_dim,
            .causal = causal,
            .unfused = !how.fused_attention,
            .dropout = !how.fused_attention && how.dropout};
  }
  /// What norms and activations give is kept for backward.
  [[nodiscard]] constexpr bool keeps_outputs() const {
    return spec.recompute == RecomputeKind::none || traits.passes.keeps_outputs;
  }
  /// The schedule defers the gradients of the layer's weights.
  [[nodiscard]] constexpr bool splits_backward() const {
    return batch.splits_backward && galvatron::splits_backward(layer, spec);
  }
  /// op::Work::writes_one_in of a block's weight gradients: under ZeRO-2/3 every micro-batch writes them, for its
  /// shards are added later; else the first one does, and the others add.
  [[nodiscard]] constexpr int writes_one_in(const forward::Graph& graph) const {
    if (!traits.writes_gradients || !writes_gradients(graph)) return 0;
    return spec.zero >= 2 ? 1 : batch.microbatches;
  }
};

constexpr op::Work compute(op::Kind kind, std::int64_t m, std::int64_t n = 0, std::int64_t k = 0) {
  return {.kind = kind, .m = m, .n = n, .k = k};
}

}  // namespace galvatron::cost::detail
