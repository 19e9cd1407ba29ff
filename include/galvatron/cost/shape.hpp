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
  std::int64_t t;           // tensor degree
  std::int64_t c;           // context degree
  std::int64_t shards;      // ranks with the same parameters: ZeRO shards over data x context
  std::int64_t b;           // samples of a rank
  std::int64_t tokens;      // of a sequence, on a rank
  std::int64_t rows;        // tokens * b
  std::int64_t rows_local;  // of them, between tensor-parallel regions
  std::int64_t h, heads, kv_heads, q, kv, qkv, ffn, ffn_in, e;
  bool cut;  // Megatron sequence parallelism
  RuntimeTraits traits;

  constexpr LayerShape(const LayerSpec& l, const StrategySpec& s, const Batch& bt)
      : layer(l),
        spec(s),
        batch(bt),
        t(s.tensor),
        c(s.context),
        shards(s.shards()),
        b(bt.microbatch / s.data),
        tokens(l.tokens.of(bt.sequence) / s.context),
        rows(tokens * b),
        rows_local(s.sequence == SequenceKind::megatron ? rows / t : rows),
        h(l.hidden),
        heads(l.heads / t),
        kv_heads(l.kv_heads / t),
        q(heads * l.head_dim),
        kv(kv_heads * l.head_dim),
        qkv(q + 2 * kv),
        ffn(l.ffn / t),
        ffn_in(l.ffn_inputs() / t),
        e(element_bytes(bt.precision)),
        cut(s.sequence == SequenceKind::megatron),
        traits(traits_of(bt.trainer)) {}

  /// Of so many elements a sample, what a rank holds between layers.
  [[nodiscard]] constexpr Bytes local_bytes(std::int64_t elements) const {
    return {aligned_bytes(elements * b / (cut ? t * c : c) * e)};
  }
  /// A collective of the tensor ranks; `bytes` as op::Work::m says.
  [[nodiscard]] constexpr op::Work tensor_group(op::Kind kind, std::int64_t bytes) const {
    return {.kind = kind, .m = bytes, .n = t, .stride = spec.tensor_stride()};
  }
  /// What norms and activations give is kept for backward.
  [[nodiscard]] constexpr bool keeps_outputs() const {
    return spec.recompute == RecomputeKind::none || traits.passes.keeps_outputs;
  }
  /// The schedule defers the gradients of the layer's weights.
  [[nodiscard]] constexpr bool splits_backward() const {
    return batch.splits_backward && galvatron::splits_backward(layer, spec);
  }
  /// Runs of a sequence that a rank's tokens are: what depends on positions is done run by run.
  [[nodiscard]] constexpr int pieces() const { return spec.uses_ring() ? 2 : 1; }
  /// op::Work::writes_one_in of a block's weight gradients: under ZeRO-2/3 every micro-batch writes them, for its
  /// shards are added later; else the first one does, and the others add.
  [[nodiscard]] constexpr int writes_one_in(const forward::Graph& graph) const {
    if (!traits.writes_gradients || !writes_gradients(graph)) return 0;
    return spec.zero >= 2 ? 1 : batch.microbatches;
  }
  [[nodiscard]] constexpr ParameterLayout parameters(const forward::Graph& graph, ParameterPart part) const {
    return parameter_layout(graph, part, spec.tensor, spec.shards());
  }
};

constexpr std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

constexpr op::Work compute(op::Kind kind, std::int64_t m, std::int64_t n = 0, std::int64_t k = 0) {
  return {.kind = kind, .m = m, .n = n, .k = k};
}

}  // namespace galvatron::cost::detail
