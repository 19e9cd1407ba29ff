// The counts of a Transformer block as Megatron-LM carries it out: what forward computes is kept for backward, so that
// backward computes nothing again unless the strategy says so. Bytes for each token and hidden unit of a GPT block in
// 16 bits, without tensor parallelism (Korthikanti et al., arXiv 2205.05198, section 4.1):
//
//     inputs of the norms 4, of the linear layers 2 + 2 + 2 + 8, queries, keys and values 6, hidden units 8;
//     with dropout its masks 2;  attention that is not fused: scores 2 A S / H, with dropout 5 A S / H
//
// Selective recomputation gives up the scores, full recomputation all but the input, and repeats the whole block. Where
// weight gradients are put off, the gradients that they need take the place of what the first part no longer needs (Qi
// et al., arXiv 2401.10241, section 2.3): nothing is kept besides.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/attention.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost::detail {

class MegatronBlock {
 public:
  explicit constexpr MegatronBlock(const LayerShape& shape)
      : s_(shape), region_(shape), attention_(shape), linear_(shape) {}

  constexpr void forward(op::WorkList& out) const {
    enter(out);
    out.push(linear_.forward(s_.rows, s_.qkv, s_.h));
    rotate(out);
    attention_.forward(out);
    out.push(linear_.forward(s_.rows, s_.h, s_.q));
    leave(out);
    enter(out);
    out.push(linear_.forward(s_.rows, s_.ffn_in, s_.h));
    out.push(compute(op::Kind::activation_forward, s_.rows, s_.ffn));
    out.push(linear_.forward(s_.rows, s_.h, s_.ffn));
    leave(out);
  }

  /// @param weights  takes the gradients of weights; the same list where they are not put off
  constexpr void backward(op::WorkList& out, op::WorkList& weights) const {
    return_to(out);
    linear(s_.h, s_.ffn, out, weights);
    bias(s_.rows_local, s_.h, weights);
    out.push(compute(op::Kind::activation_backward, s_.rows, s_.ffn));
    region_.enter(out);  // the input again, for the gradient of the weights
    linear(s_.ffn_in, s_.h, out, weights);
    bias(s_.rows, s_.ffn_in, weights);
    region_.leave(out);
    out.push(compute(op::Kind::norm_backward, s_.rows_local, s_.h));
    return_to(out);
    if (s_.spec.recompute == RecomputeKind::selective) attention_.again(out);
    linear(s_.h, s_.q, out, weights);
    bias(s_.rows_local, s_.h, weights);
    attention_.backward(out);
    rotate(out);
    region_.enter(out);
    linear(s_.qkv, s_.h, out, weights);
    bias(s_.rows, s_.qkv, weights);
    region_.leave(out);
    out.push(compute(op::Kind::norm_backward, s_.rows_local, s_.h));
  }

  /// Kept between input and output, but for the scores.
  [[nodiscard]] constexpr std::int64_t kept_bytes() const {
    const std::int64_t statistics = aligned_bytes(s_.rows_local * 2 * 4);
    return 2 * statistics + 3 * s_.activation() + attention_.input_bytes() + attention_.result_bytes() +
           aligned_bytes(s_.rows * s_.ffn_in * s_.e) + hidden_bytes() +
           (s_.habits.dropout ? 2 * aligned_bytes(s_.rows_local * s_.h) : 0);
  }
  /// What attention keeps of its scores: those after the softmax; with dropout also its mask and its output.
  [[nodiscard]] constexpr std::int64_t score_bytes() const {
    return s_.habits.fused_attention ? 0 : scores() * (s_.habits.dropout ? 2 * s_.e + 1 : s_.e);
  }
  /// Inputs of the second linear layer of the MLP.
  [[nodiscard]] constexpr std::int64_t hidden_bytes() const { return aligned_bytes(s_.rows * s_.ffn * s_.e); }
  /// Transient in forward beyond what is kept: tokens that came together, scores before the softmax.
  [[nodiscard]] constexpr std::int64_t forward_workspace() const {
    return s_.whole_activation() +
           std::max({attention_.forward_workspace(), raw_score_bytes(), linear_.forward_room(s_.rows, s_.ffn_in, s_.h),
                     linear_.forward_room(s_.rows, s_.h, s_.ffn)});
  }
  /// Transient in backward: gradients of what lies between two linear layers.
  [[nodiscard]] constexpr std::int64_t backward_workspace() const {
    const std::int64_t mlp =
        aligned_bytes(s_.rows * s_.ffn_in * s_.e) + hidden_bytes() +
        larger(linear_.backward_room(s_.rows, s_.ffn_in, s_.h), linear_.backward_room(s_.rows, s_.h, s_.ffn));
    return s_.whole_activation() * (s_.cut ? 2 : 1) +
           larger(mlp, attention_.backward_workspace() + 2 * raw_score_bytes());
  }

 private:
  [[nodiscard]] constexpr std::int64_t scores() const { return s_.b * s_.heads * s_.tokens * s_.tokens * s_.c; }
  [[nodiscard]] constexpr std::int64_t raw_score_bytes() const {
    return s_.habits.fused_attention ? 0 : scores() * s_.e;
  }
  constexpr void rotate(op::WorkList& out) const { detail::rotate(s_, out); }
  constexpr void enter(op::WorkList& out) const {
    out.push(compute(op::Kind::norm_forward, s_.rows_local, s_.h));
    region_.enter(out);
  }
  // Dropout and residual are one kernel, which writes the mask besides.
  constexpr void leave(op::WorkList& out) const {
    region_.leave(out);
    if (s_.habits.dropout) out.push(compute(op::Kind::fill, s_.rows_local * s_.h));
    out.push(compute(op::Kind::add, s_.rows_local * s_.h));
  }
  constexpr void return_to(op::WorkList& out) const {
    if (s_.habits.dropout) out.push(compute(op::Kind::copy, s_.rows_local * s_.h * s_.e));
    region_.enter(out);
  }
  constexpr void linear(std::int64_t outputs, std::int64_t inputs, op::WorkList& out, op::WorkList& weights) const {
    weights.push(linear_.weight_gradient(s_.rows, outputs, inputs));
    out.push(linear_.input_gradient(s_.rows, outputs, inputs));
  }
  constexpr void bias(std::int64_t rows, std::int64_t columns, op::WorkList& out) const {
    if (s_.layer.bias) out.push(compute(op::Kind::bias_gradient, rows, columns));
  }

  const LayerShape& s_;
  RegionCounts region_;
  AttentionCounts attention_;
  LinearCounts linear_;
};

constexpr LayerCounts megatron_counts(const LayerShape& s) {
  LayerCounts out;
  const MegatronBlock block(s);
  const bool full = s.spec.recompute == RecomputeKind::full;
  const bool selective = s.spec.recompute == RecomputeKind::selective;
  count_passes(
      s, [&](op::WorkList& work, bool) { block.forward(work); },
      [&](op::WorkList& inputs, op::WorkList& weights) { block.backward(inputs, weights); }, full, out);
  const std::int64_t again = full ? block.kept_bytes() + block.score_bytes() : selective ? block.score_bytes() : 0;
  out.stash = {s.activation() + block.kept_bytes() + block.score_bytes() - again};
  out.forward_workspace = {block.forward_workspace() + (selective ? block.score_bytes() : 0) +
                           (full ? 2 * block.hidden_bytes() : 0)};
  out.backward_workspace = {again + block.backward_workspace()};
  if (s.splits_backward()) out.weights_workspace = {block.backward_workspace()};
  out.overlaps_tensor = s.habits.overlaps_tensor && s.cut;
  return out;
}

}  // namespace galvatron::cost::detail
