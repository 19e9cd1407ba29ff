// What parameters cost: the states of a store and the traffic of ZeRO.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// What one parameter store keeps, and its traffic.
class StoreCounts {
 public:
  constexpr StoreCounts(const LayerShape& shape, const forward::Graph& graph, ParameterPart part)
      : s_(shape), zero_(shape.spec.zero) {
    const ParameterLayout layout = parameter_layout(graph, part, shape.spec.tensor, shape.shards);
    n_ = layout.elements;
    whole_ = layout.whole_end - layout.whole_begin;
    added_ = s_.traits.writes_gradients ? n_ - layout.written_end : n_;
  }

  [[nodiscard]] constexpr Bytes states() const {
    const std::int64_t shard = n_ / s_.shards;
    const std::int64_t parameters = zero_ == 3 ? shard : n_;
    const std::int64_t gradients = zero_ >= 2 ? shard : n_;
    const std::int64_t optimizer = zero_ >= 1 ? shard : n_;
    const std::int64_t master = s_.batch.precision == Precision::fp32 ? 0 : 4;
    const std::int64_t moments = 2 * element_bytes(s_.batch.moments);
    return {parameters * s_.e + gradients * s_.traits.gradient_bytes + optimizer * (moments + master)};
  }
  /// The gathered parameters while the layer works.
  [[nodiscard]] constexpr Bytes gathered() const { return {zero_ == 3 ? n_ * s_.e : 0}; }
  /// The whole gradient while the layer works backward.
  [[nodiscard]] constexpr Bytes gradient() const { return {zero_ >= 2 ? n_ * 4 : 0}; }
  /// Elements that no tensor rank cuts: norms and some biases.
  [[nodiscard]] constexpr std::int64_t whole() const { return whole_; }

  constexpr void acquire(op::WorkList& out) const {
    if (n_ > 0 && zero_ == 3) out.push(data_group(op::Kind::all_gather, n_ * s_.e));
  }
  constexpr void open_gradients(op::WorkList& out) const {
    if (n_ > 0 && zero_ >= 2 && added_ > 0) out.push(compute(op::Kind::fill, added_ * 4));
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
  /// The all-reduce that keeps the two copies of a tied table alike: one rank of the first with one of the last stage.
  constexpr void tie(op::WorkList& out) const {
    if (!s_.layer.tied || s_.batch.stages == 1) return;
    op::Work work = compute(op::Kind::all_reduce, n_ * 4 / (zero_ >= 1 ? s_.shards : 1), 2);
    work.stride = s_.batch.last_first_rank > 0 ? s_.batch.last_first_rank : (s_.batch.stages - 1) * s_.spec.ranks();
    out.push(work);
  }
  /// @param in_norm  false for the second copy of a tied table: its gradient is in the norm once already
  constexpr void update(op::WorkList& out, bool in_norm = true) const {
    if (n_ == 0) return;
    const std::int64_t zeroed = zero_ >= 2 ? n_ / s_.shards : added_;
    if (zeroed > 0) out.push(compute(op::Kind::fill, zeroed * 4));
    if (in_norm) out.push(compute(op::Kind::norm_squared, n_ / s_.shards));
    out.push(compute(s_.batch.moments == Precision::fp32 ? op::Kind::adamw : op::Kind::adamw_bf16,
                     zero_ >= 1 ? n_ / s_.shards : n_));
    if (zero_ == 1 || zero_ == 2) out.push(data_group(op::Kind::all_gather, n_ * s_.e));
  }

 private:
  // Data and context ranks share parameters.
  [[nodiscard]] constexpr op::Work data_group(op::Kind kind, std::int64_t bytes) const {
    op::Work work = compute(kind, bytes, s_.shards);
    work.stride = s_.spec.shard_stride();
    return work;
  }
  constexpr void sum_whole(op::WorkList& out) const {
    if (s_.cut && whole_ > 0) out.push(s_.tensor_group(op::Kind::all_reduce, whole_ * 4));
  }

  const LayerShape& s_;
  int zero_;
  std::int64_t n_ = 0;      // elements
  std::int64_t whole_ = 0;  // of them, that no tensor rank cuts
  std::int64_t added_ = 0;  // of them, whose gradients begin as zeros; the others are written
};

}  // namespace galvatron::cost::detail
