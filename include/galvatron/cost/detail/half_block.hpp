// The counts of one half of a Transformer block, attention or MLP, as a layer of its own. Where both halves have one
// strategy they add up to the block of cost/detail/block.hpp, in work and in bytes; but for the sum between them, which
// is not part of the other half's norm, and for full recomputation, where each half keeps its own input, so that this
// sum is kept, and attention's last product not repeated.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/attention.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost::detail {

class HalfBlock {
 public:
  explicit constexpr HalfBlock(const LayerShape& shape)
      : s_(shape), region_(shape), core_(shape), linear_(shape), attention_(shape.layer.part == BlockPart::attention) {}

  /// @param whole  false: up to what backward needs
  constexpr void forward(op::WorkList& out, bool whole) const {
    out.push(compute(op::Kind::norm_forward, s_.rows_local, s_.h));
    region_.enter(out);
    const op::Work in = linear_.forward(s_.rows, attention_ ? s_.qkv : s_.ffn_in, s_.h);
    out.push(in);
    if (attention_) {
      rotate(out);
      core_.forward(out);
    }
    if (!whole) return;
    if (!attention_) out.push(linear_.activation(op::Kind::activation_forward, s_.rows, s_.ffn, in));
    out.push(linear_.forward(s_.rows, s_.h, inner()));
    region_.leave(out);
    out.push(compute(op::Kind::add, s_.rows_local * s_.h));
  }

  constexpr void backward(op::WorkList& out) const {
    region_.enter(out);
    if (!attention_ && !s_.keeps_outputs()) out.push(compute(op::Kind::activation_forward, s_.rows, s_.ffn));
    if (attention_ && s_.spec.recompute == RecomputeKind::selective) core_.again(out);
    linear(s_.h, inner(), s_.rows_local, out);
    if (attention_) {
      core_.backward(out);
      rotate(out);
    } else {
      out.push(linear_.activation(op::Kind::activation_backward, s_.rows, s_.ffn,
                                  linear_.input_gradient(s_.rows, s_.h, s_.ffn)));
    }
    if (!s_.keeps_outputs()) out.push(compute(op::Kind::norm_forward, s_.rows_local, s_.h));
    region_.enter(out);
    linear(attention_ ? s_.qkv : s_.ffn_in, s_.h, s_.rows, out);
    region_.leave(out);
    out.push(compute(op::Kind::norm_backward, s_.rows_local, s_.h));
  }

  /// Kept beside the input, but for what the attention core gave.
  [[nodiscard]] constexpr std::int64_t kept_bytes() const {
    return aligned_bytes(s_.rows_local * 2 * 4) +
           (s_.keeps_outputs() ? s_.activation() + (attention_ ? 0 : hidden_bytes()) : 0) +
           (attention_ ? core_.input_bytes() : aligned_bytes(s_.rows * s_.ffn_in * s_.e));
  }
  [[nodiscard]] constexpr std::int64_t result_bytes() const { return attention_ ? core_.result_bytes() : 0; }
  /// Transient beside parameters, gradients and one whole activation; what is computed again left out.
  [[nodiscard]] constexpr std::int64_t forward_transients() const {
    const std::int64_t in = linear_.forward_room(s_.rows, attention_ ? s_.qkv : s_.ffn_in, s_.h);
    const std::int64_t out = linear_.forward_room(s_.rows, s_.h, inner());
    if (!attention_) return hidden_room() + larger(in, out);
    return larger(core_.forward_workspace(), core_.projection_bytes() + larger(in, out));
  }
  [[nodiscard]] constexpr std::int64_t backward_transients() const {
    const std::int64_t room = larger(linear_.backward_room(s_.rows, s_.h, inner()),
                                     linear_.backward_room(s_.rows, attention_ ? s_.qkv : s_.ffn_in, s_.h));
    if (!attention_) return hidden_room() + room;
    return larger(s_.spec.recompute == RecomputeKind::selective ? core_.again_workspace() : 0,
                  larger(core_.backward_workspace(), core_.gradient_bytes() + room));
  }

 private:
  /// Width between the two linear layers.
  [[nodiscard]] constexpr std::int64_t inner() const { return attention_ ? s_.q : s_.ffn; }
  // What the activation gives: kept, or transient.
  [[nodiscard]] constexpr std::int64_t hidden_bytes() const { return aligned_bytes(s_.rows * s_.ffn * s_.e); }
  [[nodiscard]] constexpr std::int64_t hidden_room() const { return s_.keeps_outputs() ? 0 : hidden_bytes(); }
  constexpr void rotate(op::WorkList& out) const { detail::rotate(s_, out); }
  constexpr void linear(std::int64_t outputs, std::int64_t inputs, std::int64_t bias_rows, op::WorkList& out) const {
    out.push(linear_.weight_gradient(s_.rows, outputs, inputs));
    out.push(linear_.input_gradient(s_.rows, outputs, inputs));
    if (s_.layer.bias) out.push(compute(op::Kind::bias_gradient, bias_rows, outputs));
  }

  const LayerShape& s_;
  RegionCounts region_;
  AttentionCounts core_;
  LinearCounts linear_;
  bool attention_;
};

constexpr LayerCounts half_block_counts(const LayerShape& s) {
  LayerCounts out;
  const HalfBlock half(s);
  const bool full = s.spec.recompute == RecomputeKind::full;
  count_passes(
      s, [&](op::WorkList& work, bool first) { half.forward(work, first); },
      [&](op::WorkList& inputs, op::WorkList&) { half.backward(inputs); }, full, out);
  const std::int64_t results_again = s.spec.recompute == RecomputeKind::selective ? half.result_bytes() : 0;
  const std::int64_t again = full ? half.kept_bytes() + half.result_bytes() : results_again;
  const std::int64_t whole = s.whole_activation();
  out.stash = {s.activation() + half.kept_bytes() + half.result_bytes() - again};
  out.forward_workspace = {again + whole + half.forward_transients()};
  out.backward_workspace = {
      again + whole + larger((s.cut ? whole : 0) + half.backward_transients(), full ? half.forward_transients() : 0)};
  return out;
}

}  // namespace galvatron::cost::detail
