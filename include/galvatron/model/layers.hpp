// The forward passes of the library's layers. Shape letters as in model/spec.hpp; T tokens of a rank, q = A * head_dim,
// kv = A_kv * head_dim, F the width of the MLP. Widths that tensor-parallel ranks share are split.
#pragma once

#include <array>
#include <cstdint>

#include <galvatron/model/forward.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

namespace detail {

/// 1 / sqrt(2 L) of GPT-2's residual projections, by Newton's iteration: std::sqrt is not constexpr.
constexpr double residual_scale(int layers) {
  double scale = 1;
  for (int i = 0; i < 64; ++i) {
    const double next = 0.5 * (scale + 1.0 / (2.0 * layers * scale));
    if (next == scale) break;
    scale = next;
  }
  return scale;
}

constexpr forward::Tensor layer_norm(forward::Builder& b, const LayerSpec& l, forward::Tensor x, ParameterName gamma,
                                     ParameterName beta) {
  const forward::Width h = forward::Builder::whole(l.hidden);
  const forward::Weight g = b.vector(gamma, h, ParameterInit::one);
  return b.norm(x, g, l.norm == NormKind::layer_norm ? b.vector(beta, h) : forward::Weight{});
}

/// A linear layer with its bias, where the layer has some.
constexpr forward::Tensor projection(forward::Builder& b, const LayerSpec& l, forward::Tensor x, ParameterName weight,
                                     ParameterName bias, forward::Width outputs, forward::Width inputs,
                                     double deviation = 0.02) {
  const forward::Weight w = b.weight(weight, outputs, inputs, deviation);
  return b.linear(x, w, l.bias ? b.vector(bias, outputs) : forward::Weight{});
}

}  // namespace detail

/// Self-attention of a block, from its norm to its output projection: x (T, H) -> (T, H).
constexpr forward::Tensor self_attention(forward::Builder& b, const LayerSpec& l, forward::Tensor x) {
  const forward::Width h = forward::Builder::whole(l.hidden);
  const std::int64_t q = l.heads * l.head_dim;
  const std::int64_t kv = l.kv_heads * l.head_dim;
  const forward::Tensor n =
      detail::layer_norm(b, l, x, ParameterName::norm1_gamma, ParameterName::norm1_beta);                // (T, H)
  forward::Tensor qkv = detail::projection(b, l, n, ParameterName::qkv_weight, ParameterName::qkv_bias,  //
                                           forward::Builder::split(q + 2 * kv, {q, kv, kv}), h);  // (T, q + 2 kv)
  if (l.position == PositionKind::rotary) qkv = b.rotate(qkv);
  const forward::Tensor o = b.attend(qkv, forward::Builder::split(q));  // (T, q)
  return detail::projection(b, l, o, ParameterName::attention_out_weight, ParameterName::attention_out_bias, h,
                            forward::Builder::split(q), 0.02 * detail::residual_scale(l.layers));  // (T, H)
}

/// The MLP of a block, from its norm to its output projection: x (T, H) -> (T, H).
constexpr forward::Tensor feed_forward(forward::Builder& b, const LayerSpec& l, forward::Tensor x) {
  const forward::Width h = forward::Builder::whole(l.hidden);
  const forward::Width f = forward::Builder::split(l.ffn);
  const forward::Width in =
      l.activation == ActivationKind::swiglu ? forward::Builder::split(2 * l.ffn, {l.ffn, l.ffn, 0}) : f;
  const forward::Tensor n =
      detail::layer_norm(b, l, x, ParameterName::norm2_gamma, ParameterName::norm2_beta);  // (T, H)
  const forward::Tensor u =
      detail::projection(b, l, n, ParameterName::mlp_in_weight, ParameterName::mlp_in_bias, in, h);
  const forward::Tensor g = b.activation(l.activation, u, f);  // (T, F)
  return detail::projection(b, l, g, ParameterName::mlp_out_weight, ParameterName::mlp_out_bias, h, f,
                            0.02 * detail::residual_scale(l.layers));  // (T, H)
}

/// A block of GPT and Llama: attention and MLP, each behind a norm and a residual.
constexpr forward::Graph block_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Tensor x = b.input(forward::Builder::whole(l.hidden));
  const forward::Tensor middle = b.add(x, self_attention(b, l, x));
  b.output(b.add(middle, feed_forward(b, l, middle)));
  return b.graph();
}

/// Tokens to rows, with learned positions where the model has them.
constexpr forward::Graph embedding_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  forward::Tensor x = b.look_up(b.table(l.vocabulary, h));
  if (l.position == PositionKind::learned)
    x = b.add_positions(x, b.weight(ParameterName::positions, forward::Builder::whole(l.positions), h));
  b.output(x);
  return b.graph();
}

/// Norm, logits and loss of a language model.
constexpr forward::Graph head_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  const forward::Tensor x = b.input(h);
  const forward::Tensor n = detail::layer_norm(b, l, x, ParameterName::norm1_gamma, ParameterName::norm1_beta);
  b.cross_entropy(n, b.table(l.vocabulary, h));
  return b.graph();
}

/// True for layers whose forward pass is written here.
constexpr bool has_forward(const LayerSpec& l) {
  const bool plain = !l.closing_norm && l.patch_width == 0 && l.token_types == 0 && !l.class_token && !l.memory.any() &&
                     !l.passing.any() && l.tokens == all_tokens;
  if (!plain || l.position == PositionKind::relative) return false;
  if (l.kind == LayerKind::embedding) return true;
  if (l.kind == LayerKind::head) return l.head == HeadKind::language;
  return l.is_plain_block();
}

/// The forward pass of a layer; has_forward(l).
constexpr forward::Graph forward_of(const LayerSpec& l) {
  if (l.kind == LayerKind::embedding) return embedding_forward(l);
  if (l.kind == LayerKind::head) return head_forward(l);
  return block_forward(l);
}

}  // namespace galvatron
