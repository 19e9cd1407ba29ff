// The counts of a Transformer block: attention, everywhere or in windows, and MLP, each behind a norm and around a
// residual. Before it tokens may be merged.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/attention.hpp>
#include <galvatron/cost/detail/merge.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost::detail {

constexpr void block_forward(const LayerShape& s, op::WorkList& out, bool whole) {
  const RegionCounts region(s);
  const LinearCounts linear(s);
  MergeCounts(s).forward(out);
  out.push(compute(op::Kind::norm_forward, s.rows_local, s.h));
  region.enter(out);
  out.push(linear.forward(s.rows, s.qkv, s.h));
  rotate(s, out);
  AttentionCounts(s).forward(out);
  out.push(linear.forward(s.rows, s.h, s.q));
  region.leave(out);
  out.push(compute(op::Kind::add_norm_forward, s.rows_local, s.h));
  region.enter(out);
  const op::Work up = linear.forward(s.rows, s.ffn_in, s.h);
  out.push(up);
  if (!whole) return;
  out.push(linear.activation(op::Kind::activation_forward, s.rows, s.ffn, up));
  out.push(linear.forward(s.rows, s.h, s.ffn));
  region.leave(out);
  out.push(compute(op::Kind::add, s.rows_local * s.h));
}

/// Backward to the input in `out` and the gradients of the weights in `weights`, which is the same list when both come
/// together. In two parts the first leaves copies behind, and the second gathers what it needs anew.
constexpr void block_backward(const LayerShape& s, op::WorkList& out, op::WorkList& weights) {
  const RegionCounts region(s);
  const AttentionCounts attention(s);
  const LinearCounts linear(s);
  const bool split = &weights != &out;
  const std::int64_t uncut = split ? s.uncut_elements() : 0;
  const auto weight = [&](std::int64_t outputs, std::int64_t inputs) {
    weights.push(linear.weight_gradient(s.rows, outputs, inputs));
  };
  const auto input = [&](std::int64_t outputs, std::int64_t inputs) {
    out.push(linear.input_gradient(s.rows, outputs, inputs));
  };
  const auto bias = [&](std::int64_t rows, std::int64_t columns) {
    if (s.layer.bias) weights.push(compute(op::Kind::bias_gradient, rows, columns));
  };
  const auto norm_recompute = [&] {
    if (!s.keeps_outputs()) weights.push(compute(op::Kind::norm_forward, s.rows_local, s.h));
    region.enter(weights);
  };
  const auto keep_gradient = [&] {
    if (!split) return;
    out.push(compute(op::Kind::copy, s.rows_local * s.h * s.e));
    region.enter(weights);
  };
  if (split) {
    out.push(compute(op::Kind::copy, uncut * s.e));
    out.push(compute(op::Kind::fill, uncut * 4));
  }
  region.enter(out);
  if (!s.keeps_outputs()) out.push(compute(op::Kind::activation_forward, s.rows, s.ffn));
  keep_gradient();
  weight(s.h, s.ffn);
  input(s.h, s.ffn);
  bias(s.rows_local, s.h);
  out.push(linear.activation(op::Kind::activation_backward, s.rows, s.ffn, linear.input_gradient(s.rows, s.h, s.ffn)));
  norm_recompute();
  weight(s.ffn_in, s.h);
  input(s.ffn_in, s.h);
  bias(s.rows, s.ffn_in);
  region.leave(out);
  out.push(compute(op::Kind::norm_backward, s.rows_local, s.h));
  region.enter(out);
  if (s.spec.recompute == RecomputeKind::selective) attention.again(out);
  keep_gradient();
  weight(s.h, s.q);
  input(s.h, s.q);
  bias(s.rows_local, s.h);
  attention.backward(out);
  rotate(s, out);
  if (split) out.push(compute(op::Kind::copy, s.rows * s.qkv * s.e));
  norm_recompute();
  weight(s.qkv, s.h);
  input(s.qkv, s.h);
  bias(s.rows, s.qkv);
  region.leave(out);
  out.push(compute(op::Kind::norm_backward, s.rows_local, s.h));
  if (split) weights.push(compute(op::Kind::add, uncut));
  MergeCounts(s).backward(out);
}

constexpr LayerCounts block_counts(const LayerShape& s) {
  LayerCounts out;
  const bool again = s.spec.recompute == RecomputeKind::full;
  const bool selective = s.spec.recompute == RecomputeKind::selective;
  const bool split = s.splits_backward();
  count_passes(
      s, [&](op::WorkList& work, bool first) { block_forward(s, work, first); },
      [&](op::WorkList& inputs, op::WorkList& weights) { block_backward(s, inputs, weights); }, again, out);

  const AttentionCounts attention(s);
  const MergeCounts merge(s);
  // Kept for backward beside the input: norm statistics, queries, keys and values, the sum after attention, the MLP's
  // hidden units; where outputs are, those of both norms and of the activation; and what the attention core gave.
  const std::int64_t mlp = aligned_bytes(s.rows * s.ffn * s.e);
  const std::int64_t norms_and_hidden = s.keeps_outputs() ? 2 * s.activation() + mlp : 0;
  const std::int64_t kept = 2 * aligned_bytes(s.rows_local * 2 * 4) + attention.input_bytes() + s.activation() +
                            aligned_bytes(s.rows * s.ffn_in * s.e) + norms_and_hidden + merge.kept_bytes();
  const std::int64_t results = attention.result_bytes();
  // What is recomputed lies in the workspace instead.
  const std::int64_t all_again = again ? kept + results : 0;
  const std::int64_t results_again = selective ? results : 0;
  // Linear layers of 8-bit operands have room for them beside what lies there at the time.
  const LinearCounts linear(s);
  const auto backward_room = [&](std::int64_t outputs, std::int64_t inputs) {
    return split ? linear.input_room(s.rows, outputs, inputs) : linear.backward_room(s.rows, outputs, inputs);
  };
  const std::int64_t forward_core =
      results_again + larger(attention.forward_workspace(),
                             attention.projection_bytes() + larger(linear.forward_room(s.rows, s.qkv, s.h),
                                                                   linear.forward_room(s.rows, s.h, s.q)));
  const std::int64_t mlp_in_room = linear.forward_room(s.rows, s.ffn_in, s.h);
  const std::int64_t forward_mlp =
      (s.keeps_outputs() ? 0 : mlp) + larger(mlp_in_room, linear.forward_room(s.rows, s.h, s.ffn));
  const std::int64_t backward_core =
      results_again + larger(larger(selective ? attention.again_workspace() : 0, attention.backward_workspace()),
                             attention.gradient_bytes() + larger(backward_room(s.h, s.q), backward_room(s.qkv, s.h)));
  // The gradient of the activation's output takes the place of that, unless the weights still need it.
  const std::int64_t backward_mlp =
      (s.keeps_outputs() && !split ? 0 : mlp) + larger(backward_room(s.h, s.ffn), backward_room(s.ffn_in, s.h));
  const std::int64_t whole = s.whole_activation();
  const std::int64_t backward_block = whole + larger((s.cut ? whole : 0) + larger(backward_mlp, backward_core),
                                                     again ? larger(forward_core, mlp_in_room) : 0);
  out.stash = {merge.input_bytes() + kept + results - all_again - results_again};
  out.forward_workspace = {all_again + larger(whole + larger(forward_mlp, forward_core), merge.forward_workspace())};
  out.backward_workspace = {all_again + larger(backward_block, merge.backward_workspace()) + merge.growth_bytes()};
  if (!split) return out;
  const std::int64_t uncut = s.uncut_elements();
  out.deferred = {2 * s.activation() + (s.keeps_outputs() ? 0 : mlp) + aligned_bytes(uncut * s.e) +
                  aligned_bytes(uncut * 4)};
  const std::int64_t weight_room =
      larger(larger(linear.weight_room(s.rows, s.h, s.ffn), linear.weight_room(s.rows, s.ffn_in, s.h)),
             larger(linear.weight_room(s.rows, s.h, s.q), linear.weight_room(s.rows, s.qkv, s.h)));
  out.weights_workspace = {whole + (s.cut ? whole : 0) + weight_room};
  return out;
}

}  // namespace galvatron::cost::detail
