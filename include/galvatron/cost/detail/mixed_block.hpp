// The counts of blocks beyond GPT's, Llama's and Swin's: norms after the residual, biases by relative position, cross
// attention, experts.
//
// A block is a list of parts: self-attention, cross attention if it has some, MLP or experts. Each part has a norm
// before it or after its residual. The bookkeeping is that of cost/detail/block.hpp, whose counts a plain block gets
// here too.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/attention.hpp>
#include <galvatron/cost/detail/experts.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost::detail {

class MixedBlock {
 public:
  explicit constexpr MixedBlock(const LayerShape& shape)
      : s_(shape),
        region_(shape),
        core_(shape),
        linear_(shape),
        kv_(2 * shape.kv),
        memory_(shape.layer.memory.of(shape.batch.sequence)),
        memory_rows_(memory_ * shape.b),
        memory_local_(shape.cut ? memory_rows_ / shape.t : memory_rows_),
        post_(shape.layer.norm_order == NormOrder::after),
        relative_(shape.layer.position == PositionKind::relative) {}

  /// @param whole  false: up to what backward needs
  constexpr void forward(op::WorkList& out, bool whole) const {
    const bool all = whole || post_ || s_.layer.closing_norm;
    // A residual and the norm behind it are one operation, whichever part the norm belongs to.
    if (!post_) out.push(norm(op::Kind::norm_forward));
    attention_forward(out);
    out.push(norm(op::Kind::add_norm_forward));
    if (s_.layer.memory.any()) {
      cross_forward(out);
      out.push(norm(op::Kind::add_norm_forward));
    }
    mlp_forward(out, all);
    if (!all) return;
    out.push(post_ || s_.layer.closing_norm ? norm(op::Kind::add_norm_forward)
                                            : compute(op::Kind::add, s_.rows_local * s_.h));
    if (post_ && s_.layer.closing_norm) out.push(norm(op::Kind::norm_forward));
  }

  constexpr void backward(op::WorkList& out) const {
    if (s_.layer.closing_norm) out.push(norm(op::Kind::norm_backward));
    part_backward(out, false, [&](const auto& input) { mlp_backward(out, input); });
    if (s_.layer.memory.any()) part_backward(out, false, [&](const auto& input) { cross_backward(out, input); });
    part_backward(out, true, [&](const auto& input) { attention_backward(out, input); });
  }

  /// The input, as far as no other layer keeps it.
  [[nodiscard]] constexpr std::int64_t input_bytes() const {
    if (s_.layer.begins_decoder) return aligned_bytes(memory_local_ * s_.h * s_.e);
    return s_.activation();
  }
  /// What attention computes and a selective recomputation computes again.
  [[nodiscard]] constexpr std::int64_t result_bytes() const { return core_.result_bytes() + cross_results(); }
  /// Everything else between input and output that backward needs.
  [[nodiscard]] constexpr std::int64_t internal_bytes() const {
    const int parts = s_.layer.block_parts();
    const std::int64_t statistics = aligned_bytes(s_.rows_local * 2 * 4);
    std::int64_t out = parts * statistics + (post_ ? parts : parts - 1) * s_.activation();
    out += core_.input_bytes();
    if (s_.layer.memory.any()) out += aligned_bytes(s_.rows * s_.q * s_.e) + aligned_bytes(memory_rows_ * kv_ * s_.e);
    if (s_.layer.closing_norm) out += statistics + s_.activation();
    if (s_.keeps_outputs())
      out += (post_ ? parts - 1 : parts) * s_.activation() +
             (s_.layer.experts > 0 ? experts_hidden_bytes(s_) : hidden_bytes());
    return out + (s_.layer.experts > 0 ? experts_stash(s_) : aligned_bytes(s_.rows * s_.ffn_in * s_.e));
  }
  /// Beside one whole activation.
  [[nodiscard]] constexpr std::int64_t forward_transients() const {
    return larger(mlp_forward_workspace(), transients_before_mlp());
  }
  /// The same when everything up to what backward needs is computed again.
  [[nodiscard]] constexpr std::int64_t again_transients() const {
    return larger(post_ || s_.layer.closing_norm ? mlp_forward_workspace() : mlp_in_room(), transients_before_mlp());
  }
  /// Beside the gradient and, for its gathered and recomputed input, one or two whole activations.
  [[nodiscard]] constexpr std::int64_t backward_transients() const {
    const std::int64_t mlp = s_.layer.experts > 0
                                 ? experts_backward_workspace(s_)
                                 : hidden_room() + larger(linear_.backward_room(s_.rows, s_.h, s_.ffn),
                                                          linear_.backward_room(s_.rows, s_.ffn_in, s_.h));
    const std::int64_t products = core_.gradient_bytes() + larger(linear_.backward_room(s_.rows, s_.h, s_.q),
                                                                  linear_.backward_room(s_.rows, s_.qkv, s_.h));
    const std::int64_t attention = again(core_.result_bytes()) +
                                   std::max({again(core_.again_workspace()), core_.backward_workspace(), products}) +
                                   2 * bias_bytes();
    return std::max({mlp, attention, cross_backward_workspace()});
  }

 private:
  [[nodiscard]] constexpr std::int64_t mlp_in_room() const {
    return s_.layer.experts > 0 ? 0 : linear_.forward_room(s_.rows, s_.ffn_in, s_.h);
  }
  [[nodiscard]] constexpr std::int64_t mlp_forward_workspace() const {
    if (s_.layer.experts > 0) return experts_forward_workspace(s_);
    return hidden_room() + larger(mlp_in_room(), linear_.forward_room(s_.rows, s_.h, s_.ffn));
  }
  // What the activation gives: kept, or transient.
  [[nodiscard]] constexpr std::int64_t hidden_bytes() const { return aligned_bytes(s_.rows * s_.ffn * s_.e); }
  [[nodiscard]] constexpr std::int64_t hidden_room() const { return s_.keeps_outputs() ? 0 : hidden_bytes(); }
  // Up to the MLP's input.
  [[nodiscard]] constexpr std::int64_t transients_before_mlp() const {
    const std::int64_t products = core_.projection_bytes() + larger(linear_.forward_room(s_.rows, s_.qkv, s_.h),
                                                                    linear_.forward_room(s_.rows, s_.h, s_.q));
    const std::int64_t attention =
        again(core_.result_bytes()) + larger(core_.forward_workspace(), products) + bias_bytes();
    if (!s_.layer.memory.any()) return attention;
    return std::max({attention, linear_.forward_room(s_.rows, s_.q, s_.h),
                     gathered_memory() + linear_.forward_room(memory_rows_, kv_, s_.h),
                     again(cross_results()) + linear_.forward_room(s_.rows, s_.h, s_.q)});
  }
  [[nodiscard]] constexpr op::Work norm(op::Kind kind) const { return compute(kind, s_.rows_local, s_.h); }
  // The gradient of a part; `inner` calls its argument where it needs the part's input again.
  template <class Inner>
  constexpr void part_backward(op::WorkList& out, bool first, const Inner& inner) const {
    if (post_) out.push(norm(op::Kind::norm_backward));
    region_.enter(out);
    inner([&] {
      if ((!post_ || !first) && !s_.keeps_outputs()) out.push(norm(op::Kind::norm_forward));
      region_.enter(out);
    });
    region_.leave(out);
    out.push(post_ ? compute(op::Kind::add, s_.rows_local * s_.h) : norm(op::Kind::norm_backward));
  }
  constexpr void linear_backward(op::WorkList& out, std::int64_t rows, std::int64_t outputs,
                                 std::int64_t inputs) const {
    out.push(linear_.weight_gradient(rows, outputs, inputs));
    out.push(linear_.input_gradient(rows, outputs, inputs));
  }
  constexpr void bias_backward(op::WorkList& out, std::int64_t rows, std::int64_t columns) const {
    if (s_.layer.bias) out.push(compute(op::Kind::bias_gradient, rows, columns));
  }

  // The bias of every distance from the table.
  [[nodiscard]] constexpr std::int64_t biases() const { return 2 * s_.tokens - 1; }
  constexpr void spread_bias(op::WorkList& out) const {
    if (relative_) out.push(compute(op::Kind::embedding_forward, biases(), s_.heads));
  }
  constexpr void rotate(op::WorkList& out) const { detail::rotate(s_, out); }
  constexpr void core_forward(op::WorkList& out) const {
    spread_bias(out);
    core_.forward(out);
  }
  constexpr void core_recompute(op::WorkList& out) const {
    if (s_.spec.recompute == RecomputeKind::selective) core_.again(out);
  }
  constexpr void core_backward(op::WorkList& out) const {
    core_.backward(out);
    if (!relative_) return;
    out.push(compute(op::Kind::fill, biases() * s_.heads * 4));
    out.push(compute(op::Kind::embedding_backward, biases(), s_.heads));
  }
  constexpr void attention_forward(op::WorkList& out) const {
    region_.enter(out);
    out.push(linear_.forward(s_.rows, s_.qkv, s_.h));
    rotate(out);
    core_forward(out);
    out.push(linear_.forward(s_.rows, s_.h, s_.q));
    region_.leave(out);
  }
  template <class Input>
  constexpr void attention_backward(op::WorkList& out, const Input& input) const {
    spread_bias(out);
    core_recompute(out);
    linear_backward(out, s_.rows, s_.h, s_.q);
    bias_backward(out, s_.rows_local, s_.h);
    core_backward(out);
    rotate(out);
    input();
    linear_backward(out, s_.rows, s_.qkv, s_.h);
    bias_backward(out, s_.rows, s_.qkv);
  }

  // Cross attention: queries from the layer's tokens, keys and values from the encoder's output, no mask.
  [[nodiscard]] constexpr op::Work cross(op::Kind kind) const {
    return {.kind = kind, .m = s_.b * s_.heads, .n = s_.tokens, .k = memory_, .l = s_.layer.head_dim};
  }
  constexpr void gather_memory(op::WorkList& out) const {
    if (s_.cut) out.push(s_.tensor_group(op::Kind::all_gather, memory_rows_ * s_.h * s_.e));
  }
  constexpr void cross_forward(op::WorkList& out) const {
    region_.enter(out);
    gather_memory(out);
    out.push(linear_.forward(s_.rows, s_.q, s_.h));
    out.push(linear_.forward(memory_rows_, kv_, s_.h));
    out.push(cross(op::Kind::attention_forward));
    out.push(linear_.forward(s_.rows, s_.h, s_.q));
    region_.leave(out);
  }
  template <class Input>
  constexpr void cross_backward(op::WorkList& out, const Input& input) const {
    if (s_.spec.recompute == RecomputeKind::selective) out.push(cross(op::Kind::attention_forward));
    linear_backward(out, s_.rows, s_.h, s_.q);
    bias_backward(out, s_.rows_local, s_.h);
    out.push(cross(op::Kind::attention_backward));
    gather_memory(out);
    linear_backward(out, memory_rows_, kv_, s_.h);
    bias_backward(out, memory_rows_, kv_);
    if (s_.t > 1)
      out.push(s_.tensor_group(s_.cut ? op::Kind::reduce_scatter : op::Kind::all_reduce, memory_rows_ * s_.h * s_.e));
    out.push(compute(op::Kind::add, memory_local_ * s_.h));  // to the gradient from the layers behind
    input();
    linear_backward(out, s_.rows, s_.q, s_.h);
    bias_backward(out, s_.rows, s_.q);
  }

  constexpr void mlp_forward(op::WorkList& out, bool whole) const {
    if (s_.layer.experts > 0) {
      route_forward(s_, out);
      region_.enter(out);
      experts_forward(s_, out, whole);
    } else {
      region_.enter(out);
      const op::Work up = linear_.forward(s_.rows, s_.ffn_in, s_.h);
      out.push(up);
      if (!whole) return;
      out.push(linear_.activation(op::Kind::activation_forward, s_.rows, s_.ffn, up));
      out.push(linear_.forward(s_.rows, s_.h, s_.ffn));
    }
    if (whole) region_.leave(out);
  }
  template <class Input>
  constexpr void mlp_backward(op::WorkList& out, const Input& input) const {
    if (s_.layer.experts > 0) {
      experts_backward(s_, out);
      input();
      return;
    }
    if (!s_.keeps_outputs()) out.push(compute(op::Kind::activation_forward, s_.rows, s_.ffn));
    linear_backward(out, s_.rows, s_.h, s_.ffn);
    bias_backward(out, s_.rows_local, s_.h);
    out.push(linear_.activation(op::Kind::activation_backward, s_.rows, s_.ffn,
                                linear_.input_gradient(s_.rows, s_.h, s_.ffn)));
    input();
    linear_backward(out, s_.rows, s_.ffn_in, s_.h);
    bias_backward(out, s_.rows, s_.ffn_in);
  }

  [[nodiscard]] constexpr std::int64_t cross_statistics() const {
    return aligned_bytes(s_.b * s_.heads * s_.tokens * 4);
  }
  [[nodiscard]] constexpr std::int64_t cross_results() const {
    return s_.layer.memory.any() ? aligned_bytes(s_.rows * s_.q * s_.e) + cross_statistics() : 0;
  }
  // The gradients of output, queries, keys and values; then what backward of attention takes, or the encoder's output
  // and its gradient, one after the other.
  [[nodiscard]] constexpr std::int64_t cross_backward_workspace() const {
    if (!s_.layer.memory.any()) return 0;
    return again(cross_results()) + 2 * aligned_bytes(s_.rows * s_.q * s_.e) +
           aligned_bytes(memory_rows_ * kv_ * s_.e) +
           std::max({cross_statistics(),
                     aligned_bytes(memory_rows_ * s_.h * s_.e) + linear_.backward_room(memory_rows_, kv_, s_.h),
                     linear_.backward_room(s_.rows, s_.h, s_.q), linear_.backward_room(s_.rows, s_.q, s_.h)});
  }
  // Of `bytes` that a selective recomputation makes again: they lie in the workspace.
  [[nodiscard]] constexpr std::int64_t again(std::int64_t bytes) const {
    return s_.spec.recompute == RecomputeKind::selective ? bytes : 0;
  }
  [[nodiscard]] constexpr std::int64_t bias_bytes() const {
    return relative_ ? aligned_bytes(biases() * s_.heads * 4) : 0;
  }
  [[nodiscard]] constexpr std::int64_t gathered_memory() const {
    return s_.cut ? aligned_bytes(memory_rows_ * s_.h * s_.e) : 0;
  }

  const LayerShape& s_;
  RegionCounts region_;
  AttentionCounts core_;  // of self-attention
  LinearCounts linear_;
  std::int64_t kv_;            // width of its keys and values
  std::int64_t memory_;        // tokens of the encoder's output
  std::int64_t memory_rows_;   // of a rank, gathered
  std::int64_t memory_local_;  // between layers
  bool post_;
  bool relative_;
};

constexpr LayerCounts mixed_block_counts(const LayerShape& s) {
  LayerCounts out;
  const MixedBlock block(s);
  const bool again = s.spec.recompute == RecomputeKind::full;
  count_passes(
      s, [&](op::WorkList& work, bool first) { block.forward(work, first); },
      [&](op::WorkList& inputs, op::WorkList&) { block.backward(inputs); }, again, out);

  const std::int64_t kept = block.internal_bytes();
  const std::int64_t results = block.result_bytes();
  const std::int64_t all_again = again ? kept + results : 0;  // lies in the workspace instead
  const std::int64_t results_again = s.spec.recompute == RecomputeKind::selective ? results : 0;
  const std::int64_t whole = s.whole_activation();
  out.stash = {block.input_bytes() + kept + results - all_again - results_again};
  out.forward_workspace = {all_again + whole + block.forward_transients()};
  out.backward_workspace = {
      all_again + whole +
      larger((s.cut ? whole : 0) + block.backward_transients(), again ? block.again_transients() : 0)};
  return out;
}

}  // namespace galvatron::cost::detail
