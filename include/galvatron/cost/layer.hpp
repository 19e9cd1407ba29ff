// What one rank does and keeps for one layer under one strategy: a fold of the layer's program (cost/fold.hpp) where
// its forward pass is written (model/layers.hpp), else closed formulas.
//
// The formulas mirror, operation by operation, what the layers of nn/ do on a device; a test runs those layers on
// device::dry and compares. Shape letters as in model/spec.hpp; t tensor, c context and d data degree, b samples of a
// rank, e bytes of an element. `rows` = S / c * b tokens; under Megatron sequence parallelism a rank holds rows / t of
// them between the tensor-parallel regions. Ulysses and ring attention are in cost/detail/attention.hpp. The kinds of
// layers have a header each in cost/detail/.
//
// Selective recomputation keeps queries, keys and values and recomputes the attention core before its backward pass.
// Attention in blocks has no S x S matrices to keep, so it saves only the core's output and the statistics of the
// softmax: of a GPT block in bf16 about 2 of the 20 bytes for each token and hidden unit. Korthikanti et al. (arXiv
// 2205.05198), who recompute S x S matrices, save 5 A S / H bytes more.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/block.hpp>
#include <galvatron/cost/detail/ends.hpp>
#include <galvatron/cost/detail/megatron.hpp>
#include <galvatron/cost/detail/mixed_block.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/cost/fold.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

namespace detail {

constexpr LayerCounts counts_of_kind(const LayerShape& shape) {
  const LayerSpec& layer = shape.layer;
  if (layer.kind == LayerKind::embedding) return embedding_counts(shape);
  if (layer.kind == LayerKind::head) return head_counts(shape);
  if (layer.window > 0) return block_counts(shape);
  if (!layer.is_plain_block()) return mixed_block_counts(shape);
  return shape.habits.keeps_outputs ? megatron_counts(shape) : block_counts(shape);
}

}  // namespace detail

/// True when a layer's counts come of its program: where its forward pass is written and this library trains it.
constexpr bool has_program(const LayerSpec&, const Batch& batch) { return batch.trainer == Trainer::galvatron; }

/// Programs of one layer. They depend on the kinds of a strategy alone, of these not on ZeRO's, and those of an
/// embedding and a head not on what is recomputed.
class LayerPrograms {
 public:
  explicit constexpr LayerPrograms(const LayerSpec& layer) : layer_(layer) {}

  [[nodiscard]] constexpr const LayerSpec& layer() const { return layer_; }
  /// Makes the program of these kinds, unless it is there or the layer has none.
  constexpr void add(const StrategySpec& spec, const Batch& batch) {
    int& index = index_[kind_of(spec, batch)];
    if (index > 0 || !has_program(layer_, batch)) return;
    programs_.push_back(program::lower(forward_of(layer_), spec, batch.splits_backward));
    index = static_cast<int>(programs_.size());
  }
  /// A program that was added; null where the layer has none.
  [[nodiscard]] constexpr const program::LayerProgram* of(const StrategySpec& spec, const Batch& batch) const {
    const int index = index_[kind_of(spec, batch)];
    return index == 0 ? nullptr : &programs_[static_cast<std::size_t>(index - 1)];
  }

 private:
  static constexpr std::size_t recomputations = recompute_kinds.size();
  [[nodiscard]] constexpr std::size_t kind_of(const StrategySpec& spec, const Batch& batch) const {
    const std::size_t sequence =
        static_cast<std::size_t>(spec.sequence) + (spec.uses_ring() ? sequence_kinds.size() : 0);
    const std::size_t recompute = layer_.kind == LayerKind::block ? static_cast<std::size_t>(spec.recompute) : 0;
    return (sequence * recomputations + recompute) * 2 + (batch.splits_backward ? 1 : 0);
  }

  LayerSpec layer_;
  std::array<int, 2 * sequence_kinds.size() * recomputations * 2> index_{};  ///< by kind, from 1
  std::vector<program::LayerProgram> programs_;
};

/// The passes of `layer`: arithmetic, messages around it, activations. Of a block they are the same for all stages of
/// ZeRO; of an embedding and a head they are everything that layer_counts has.
/// @param program  the layer's under the strategy; null where it has none
constexpr LayerCounts pass_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch,
                                  const program::LayerProgram* program) {
  const detail::LayerShape shape(layer, spec, batch);
  LayerCounts out = program != nullptr ? fold_passes(*program, spec, batch) : detail::counts_of_kind(shape);
  out.input = shape.local_bytes(layer.input_elements(batch.sequence));
  out.activation = shape.local_bytes(layer.output_elements(batch.sequence));
  out.overlaps_data = batch.overlap;
  out.carried = shape.local_bytes(layer.carried_elements(batch.sequence));
  return out;
}
constexpr LayerCounts pass_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  LayerPrograms programs(layer);
  programs.add(spec, batch);
  return pass_counts(layer, spec, batch, programs.of(spec, batch));
}

/// What the parameters of a block add to its passes: states, traffic of parameters and gradients, room for them. The
/// same whatever is recomputed, as long as backward is split or not.
constexpr LayerCounts parameter_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  LayerCounts out;
  if (layer.kind == LayerKind::block) out = detail::store_counts(detail::LayerShape(layer, spec, batch));
  out.overlaps_data = batch.overlap;
  return out;
}

/// What one rank does and keeps for `layer` under `spec`. The strategy must fit the layer and the batch
/// (strategy/legality.hpp); expert parallelism is not part of the layer code yet and counts as degree 1.
constexpr LayerCounts layer_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  LayerCounts out = pass_counts(layer, spec, batch);
  out.add(parameter_counts(layer, spec, batch));
  return out;
}

/// The head's forward pass alone: its counts carry the backward pass too.
constexpr Flops head_flops(const LayerSpec& head, const Batch& batch) {
  const std::int64_t tokens = head.tokens.of(batch.sequence) * batch.microbatch;
  const std::int64_t rows = head.head == HeadKind::classifier ? batch.microbatch : tokens;
  op::WorkList products;
  products.push(detail::compute(op::Kind::gemm_nt, rows, head.vocabulary, head.hidden));
  if (head.head == HeadKind::masked_language)
    products.push(detail::compute(op::Kind::gemm_nt, tokens, head.hidden, head.hidden));
  return products.flops();
}

}  // namespace galvatron::cost
