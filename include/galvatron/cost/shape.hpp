// One rank's part of a layer: its extents, from which all counts are made, and what its parameters cost.
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

/// Of the pairs of a causal mask over `keys` tokens, the share that a sliding window leaves. @param window  0: none
constexpr double share_in_window(std::int64_t window, std::int64_t keys) {
  if (window == 0) return 1;
  const auto w = static_cast<double>(window);
  const auto n = static_cast<double>(keys);
  return (n * w - w * (w - 1) / 2) / (n * (n + 1) / 2);
}

struct LayerShape {
  const LayerSpec& layer;
  const StrategySpec& spec;
  const Batch& batch;
  RankShares shares = RankShares(spec, batch.ratios, batch.local_rank);
  std::int64_t c = spec.context;                                  ///< context degree
  std::int64_t shards = spec.shards();                            ///< ranks with the same parameters: data x context
  std::int64_t b = batch.microbatch / spec.data;                  ///< samples of a rank
  std::int64_t sequence = layer.tokens.of(batch.sequence);        ///< tokens of the layer
  std::int64_t tokens = shares.region_tokens().count(sequence);   ///< of a sequence, on a rank
  std::int64_t rows = tokens * b;                                 ///< of activations
  bool cut = spec.cuts_over_tensor();                             ///< Megatron sequence parallelism
  std::int64_t rows_local = shares.tokens().count(sequence) * b;  ///< between tensor-parallel regions
  std::int64_t h = layer.hidden;
  std::int64_t kv_heads = shares.heads().count(layer.kv_heads);
  std::int64_t heads = kv_heads > 0 ? layer.heads / layer.kv_heads* kv_heads : 0;
  std::int64_t q = heads * layer.head_dim;      ///< width of queries
  std::int64_t kv = kv_heads * layer.head_dim;  ///< width of keys
  std::int64_t e = element_bytes(batch.precision);
  const RuntimeTraits& traits = *batch.trainer;

  /// What a rank holds between layers of the parts of a bundle that `chosen` names: chosen(part) -> BundlePart.
  template <class Chosen>
  [[nodiscard]] constexpr Bytes local_bytes(const Chosen& chosen) const {
    std::int64_t elements = 0;
    for (int i = 0; i < most_parts; ++i) {
      const BundlePart part = chosen(i);
      elements += shares.tokens().count(part.tokens.of(batch.sequence)) * b * part.width;
    }
    return {aligned_bytes(elements * e)};
  }
  /// A collective of the tensor ranks; `bytes` as op::Work::m says.
  [[nodiscard]] constexpr op::Work tensor_group(op::Kind kind, std::int64_t bytes) const {
    return {.kind = kind, .m = bytes, .n = spec.tensor, .stride = spec.tensor_stride()};
  }
  /// A collective of the data and context ranks, which share parameters.
  [[nodiscard]] constexpr op::Work shard_group(op::Kind kind, std::int64_t bytes) const {
    return {.kind = kind, .m = bytes, .n = shards, .stride = spec.shard_stride()};
  }
  /// Of m sequences times heads. Where it is causal, the layer's sliding window holds.
  [[nodiscard]] constexpr op::Work attention(op::Kind kind, std::int64_t m, std::int64_t queries, std::int64_t keys,
                                             std::int64_t head_dim, bool causal) const {
    const program::Options& how = traits.passes;
    return {.kind = kind,
            .m = m,
            .n = queries,
            .k = keys,
            .l = head_dim,
            .causal = causal,
            .seen = causal && queries == keys ? share_in_window(layer.window_within(keys), keys) : 1,
            .kernel = traits.attention,
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
  /// op::Work::writes_one_in of a block's weight gradients: under ZeRO-2/3 every micro-batch writes them, for their
  /// reduction; else the first one does, and the others add.
  [[nodiscard]] constexpr int writes_one_in(const forward::Graph& graph) const {
    if (!traits.writes_gradients || !writes_gradients(graph)) return 0;
    return spec.zero >= 2 ? op::Work::for_reduction : batch.microbatches;
  }
};

constexpr op::Work compute(op::Kind kind, std::int64_t m, std::int64_t n = 0, std::int64_t k = 0) {
  return {.kind = kind, .m = m, .n = n, .k = k};
}

/// `work` so many times, if any.
constexpr void push_times(op::WorkList& out, op::Work work, std::int64_t times) {
  work.times = static_cast<std::int32_t>(times);
  if (times > 0) out.push(work);
}
/// To and from context ranks.
constexpr op::Work context_group(const LayerShape& s, op::Kind kind, std::int64_t bytes) {
  op::Work work = kind == op::Kind::send ? compute(kind, bytes, 1, s.c) : compute(kind, bytes, s.c);
  work.stride = s.spec.shard_stride();
  return work;
}

/// Elements of a rank's part of a store.
struct StoreElements {
  std::int64_t all = 0;
  std::int64_t whole = 0;      ///< that no tensor rank cuts: norms and some biases
  std::int64_t written = 0;    ///< see ParameterLayout::written_end
  bool frozen = false;         ///< the same
  bool partial_whole = false;  ///< the same

  constexpr StoreElements(const forward::Graph& graph, const StrategySpec& spec, const Batch& batch, ParameterPart part)
      : StoreElements(parameter_layout(graph, part, spec, batch.ratios, batch.local_rank)) {}

 private:
  explicit constexpr StoreElements(const ParameterLayout& layout)
      : all(layout.elements),
        whole(layout.whole_end - layout.whole_begin),
        written(layout.written_end),
        frozen(layout.frozen),
        partial_whole(layout.partial_whole) {}
};

/// What one parameter store keeps, and its traffic.
class StoreCounts {
 public:
  constexpr StoreCounts(const LayerShape& shape, ParameterPart part, const StoreElements& elements)
      : s_(shape),
        ranks_(shape.spec, part),
        zero_(shape.spec.zero),
        n_(elements.all),
        whole_(elements.whole),
        frozen_(elements.frozen),
        sums_whole_(shape.cut || elements.partial_whole) {
    added_ = s_.traits.writes_gradients ? n_ - elements.written : n_;
    const Batch& batch = shape.batch;
    own_ = batch.ratios.states.empty()
               ? n_ / shards_
               : ranks_.cut(n_, batch.ratios.states, batch.local_rank).count(ranks_.shard(batch.local_rank));
  }

  [[nodiscard]] constexpr Bytes states() const {
    const std::int64_t parameters = zero_ == 3 ? own_ : n_;
    const std::int64_t gradients = zero_ >= 2 ? own_ : n_;
    const std::int64_t optimizer = zero_ >= 1 ? own_ : n_;
    const std::int64_t master = s_.batch.precision == Precision::fp32 ? 0 : 4;
    const std::int64_t moments = 2 * element_bytes(s_.batch.moments);
    // Without parameters beside the master, ZeRO-3 has those of other ranks only where they are gathered.
    const bool kept = s_.traits.keeps_parameters || master == 0 || zero_ != 3;
    if (frozen_) return {parameters * s_.e};
    return {(kept ? parameters * s_.e : 0) + gradients * s_.traits.gradient_bytes + optimizer * (moments + master)};
  }
  /// The gathered parameters while the layer works.
  [[nodiscard]] constexpr Bytes gathered() const { return {zero_ == 3 ? n_ * s_.e : 0}; }
  /// The whole gradient while the layer works backward.
  [[nodiscard]] constexpr Bytes gradient() const { return {zero_ >= 2 && !frozen_ ? n_ * s_.traits.message_bytes : 0}; }

  constexpr void acquire(op::WorkList& out) const {
    if (n_ > 0 && zero_ == 3) push(out, shard_group(op::Kind::all_gather, n_ * s_.e));
  }
  constexpr void open_gradients(op::WorkList& out) const {
    if (n_ > 0 && zero_ >= 2 && added_ > 0 && !frozen_) out.push(compute(op::Kind::fill, added_ * 4));
  }
  constexpr void close_gradients(op::WorkList& out) const {
    if (n_ == 0 || zero_ < 2 || frozen_) return;
    sum_whole(out);
    push(out, shard_group(op::Kind::reduce_scatter, n_ * s_.traits.message_bytes));
    out.push(compute(op::Kind::add, own_));
  }
  constexpr void synchronise(op::WorkList& out) const {
    if (n_ == 0 || zero_ >= 2 || frozen_) return;
    sum_whole(out);
    push(out, shard_group(zero_ == 0 ? op::Kind::all_reduce : op::Kind::reduce_scatter, n_ * s_.traits.message_bytes));
  }
  /// The all-reduce that keeps the two copies of a tied table alike: one rank of the first with one of the last stage.
  constexpr void tie(op::WorkList& out) const {
    if (!s_.layer.tied || s_.batch.stages == 1 || frozen_) return;
    op::Work work = compute(op::Kind::all_reduce, 4 * (zero_ >= 1 ? own_ : n_), 2);
    work.between_ends = true;
    work.stride = s_.batch.last_first_rank > 0 ? s_.batch.last_first_rank : (s_.batch.stages - 1) * s_.spec.ranks();
    out.push(work);
  }
  /// @param in_norm  false for the second copy of a tied table: its gradient is in the norm once already
  constexpr void update(op::WorkList& out, bool in_norm = true) const {
    if (n_ == 0 || frozen_) return;
    const std::int64_t zeroed = zero_ >= 2 ? own_ : added_;
    if (zeroed > 0) out.push(compute(op::Kind::fill, zeroed * 4));
    if (in_norm) out.push(compute(op::Kind::norm_squared, own_));
    out.push(
        compute(s_.batch.moments == Precision::fp32 ? op::Kind::adamw : op::Kind::adamw_bf16, zero_ >= 1 ? own_ : n_));
    if (zero_ == 1 || zero_ == 2) push(out, shard_group(op::Kind::all_gather, n_ * s_.e));
  }

 private:
  constexpr void sum_whole(op::WorkList& out) const {
    if (sums_whole_ && s_.spec.tensor > 1 && whole_ > 0) out.push(s_.tensor_group(op::Kind::all_reduce, whole_ * 4));
  }

  // A message, unless a rank is alone.
  static constexpr void push(op::WorkList& out, const op::Work& work) {
    if (work.n > 1) out.push(work);
  }
  [[nodiscard]] constexpr op::Work shard_group(op::Kind kind, std::int64_t bytes) const {
    return {.kind = kind, .m = bytes, .n = shards_, .parameters = true, .stride = ranks_.shard_stride()};
  }

  const LayerShape& s_;
  StoreRanks ranks_;
  int shards_ = ranks_.shards();
  int zero_;
  std::int64_t n_;      // elements
  std::int64_t whole_;  // of them, that no tensor rank cuts
  bool frozen_;
  bool sums_whole_;         // their gradients, over tensor ranks
  std::int64_t own_ = 0;    // of them, in the shard of the rank
  std::int64_t added_ = 0;  // of them, whose gradients begin as zeros; the others are written
};

}  // namespace galvatron::cost::detail
