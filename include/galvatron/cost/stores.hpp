// What parameters cost: the states of a store and the traffic of ZeRO.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// The traffic of one parameter store.
class StoreCounts {
 public:
  constexpr StoreCounts(const LayerShape& shape, const ParameterLayout& layout)
      : s_(shape), layout_(layout), n_(layout.elements), zero_(shape.spec.zero) {}

  [[nodiscard]] constexpr Bytes states() const {
    const std::int64_t shard = n_ / s_.shards;
    const std::int64_t parameters = zero_ == 3 ? shard : n_;
    const std::int64_t gradients = zero_ >= 2 ? shard : n_;
    const std::int64_t optimizer = zero_ >= 1 ? shard : n_;
    const std::int64_t master = s_.batch.precision == Precision::fp32 ? 0 : 4;
    const std::int64_t moments = 2 * element_bytes(s_.batch.moments);
    return {parameters * s_.e + gradients * s_.traits.gradient_bytes + optimizer * (moments + master)};
  }
  /// Bytes of the gathered parameters while the layer works. In a layer that streams there is room for two.
  [[nodiscard]] constexpr std::int64_t gathered_bytes() const { return zero_ == 3 ? n_ * s_.e : 0; }
  /// Bytes of the whole gradient while the layer works backward.
  [[nodiscard]] constexpr std::int64_t gradient_bytes() const { return zero_ >= 2 ? n_ * 4 : 0; }
  [[nodiscard]] constexpr std::int64_t parameter_room() const { return gathered_bytes() * rooms(); }
  [[nodiscard]] constexpr std::int64_t gradient_room() const { return gradient_bytes() * rooms(); }
  /// The traffic of a micro-batch runs beside the work of neighbouring layers.
  [[nodiscard]] constexpr bool streams() const { return s_.batch.overlap; }
  constexpr void acquire(op::WorkList& out) const {
    if (n_ > 0 && zero_ == 3) out.push(data_group(op::Kind::all_gather, n_ * s_.e));
  }
  constexpr void open_gradients(op::WorkList& out) const {
    if (n_ > 0 && zero_ >= 2 && added() > 0) out.push(compute(op::Kind::fill, added() * 4));
  }
  constexpr void close_gradients(op::WorkList& out) const {
    if (n_ == 0 || zero_ < 2) return;
    sum_whole(out);
    out.push(data_group(op::Kind::reduce_scatter, n_ * s_.traits.gradient_bytes));
    out.push(compute(op::Kind::add, n_ / s_.shards));
  }
  constexpr void synchronise(op::WorkList& out) const {
    if (n_ == 0 || zero_ >= 2) return;
    sum_whole(out);
    if (s_.shards > 1)
      out.push(data_group(zero_ == 0 ? op::Kind::all_reduce : op::Kind::reduce_scatter, n_ * s_.traits.gradient_bytes));
  }
  /// @param in_norm  false for the second copy of a tied table: its gradient is in the norm once already
  constexpr void update(op::WorkList& out, bool in_norm = true) const {
    if (n_ == 0) return;
    const std::int64_t zeroed = zero_ >= 2 ? n_ / s_.shards : added();
    if (zeroed > 0) out.push(compute(op::Kind::fill, zeroed * 4));
    if (in_norm) out.push(compute(op::Kind::norm_squared, n_ / s_.shards));
    out.push(compute(s_.batch.moments == Precision::fp32 ? op::Kind::adamw : op::Kind::adamw_bf16,
                     zero_ >= 1 ? n_ / s_.shards : n_));
    if (zero_ == 1 || zero_ == 2) out.push(data_group(op::Kind::all_gather, n_ * s_.e));
  }

 private:
  // Elements of the gradient that begin as zeros; the others are written.
  [[nodiscard]] constexpr std::int64_t added() const {
    return s_.traits.writes_gradients ? n_ - layout_.written_end : n_;
  }
  [[nodiscard]] constexpr std::int64_t rooms() const { return streams() ? 2 : 1; }
  // Data and context ranks share parameters.
  [[nodiscard]] constexpr op::Work data_group(op::Kind kind, std::int64_t bytes) const {
    op::Work work = compute(kind, bytes, s_.shards);
    work.stride = s_.spec.shard_stride();
    return work;
  }
  constexpr void sum_whole(op::WorkList& out) const {
    const std::int64_t whole = layout_.whole_end - layout_.whole_begin;
    if (s_.cut && whole > 0) out.push(s_.tensor_group(op::Kind::all_reduce, whole * 4));
  }

  const LayerShape& s_;
  const ParameterLayout& layout_;
  std::int64_t n_;
  int zero_;
};

/// What the parameters of a layer of one store cost: their states, their traffic and gradients, and room for these.
constexpr LayerCounts store_counts(const LayerShape& s, const forward::Graph& graph) {
  const ParameterLayout layout = s.parameters(graph, ParameterPart::rest);
  const StoreCounts store(s, layout);
  const bool split = s.splits_backward();
  LayerCounts out;
  op::WorkList& weights = split ? out.weights : out.backward;
  store.acquire(out.forward);
  store.acquire(out.backward);
  store.open_gradients(weights);
  store.close_gradients(weights);
  store.synchronise(out.synchronise);
  store.update(out.update);
  out.states = store.states();
  out.streams = store.streams();
  out.forward_workspace = {store.parameter_room()};
  out.backward_workspace = {store.parameter_room() + (split ? 0 : store.gradient_room())};
  out.weights_workspace = {split ? store.gradient_room() : 0};
  return out;
}

}  // namespace galvatron::cost::detail
