// The forward passes of the library's layers, and how many parameters they have. Shape letters as in model/spec.hpp; T
// tokens, M tokens of the encoder's output, q = A * head_dim, kv = A_kv * head_dim, F the width of the MLP. Widths that
// are divided over tensor-parallel ranks are split.
#pragma once

#include <cstdint>
#include <type_traits>

#include <galvatron/core/compiled.hpp>
#include <galvatron/model/forward.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

namespace detail {

/// The deviation of GPT-2's residual projections, 0.02 / sqrt(2 L), by Newton's iteration: std::sqrt is not constexpr.
constexpr double residual_deviation(const LayerSpec& l) {
  double scale = 1;
  for (int i = 0; i < 64; ++i) {
    const double next = 0.5 * (scale + 1.0 / (2.0 * l.layers * scale));
    if (next == scale) break;
    scale = next;
  }
  return 0.02 * scale;
}

/// The width of what goes into the activation of an MLP of width `ffn`: gate and up behind each other, or one of them.
constexpr forward::Width mlp_inputs(const LayerSpec& l, std::int64_t ffn) {
  return inputs_of(l.activation) == 2 ? forward::Builder::split(2 * ffn, {ffn, ffn, 0}) : forward::Builder::split(ffn);
}

}  // namespace detail

/// Self-attention of a block, between its norm and its residual: n (T, H) -> (T, H). With relative positions scores
/// have a bias by distance from a table (rows, A) of the block.
constexpr forward::Tensor self_attention(forward::Builder& b, const LayerSpec& l, forward::Tensor n) {
  const std::int64_t q = l.heads * l.head_dim;
  const std::int64_t kv = l.kv_heads * l.head_dim;
  const forward::Width width = b.heads(q + 2 * kv, {q, kv, kv});
  const forward::Weight w = b.weight(ParameterName::qkv_weight, width, forward::Builder::whole(l.hidden));
  forward::Tensor qkv = b.linear(
      n, w, l.bias || l.qkv_bias ? b.vector(ParameterName::qkv_bias, width) : forward::Weight{});  // (T, q + 2 kv)
  if (const AdapterSpec& a = l.adapters; a.fused_qkv || a.query || a.key || a.value)
    b.adapt(a.rank, {a.query, a.key, a.value}, ParameterName::qkv_adapter_a, ParameterName::qkv_adapter_b);
  if (l.query_key_norm != QueryKeyNorm::none) {
    const bool heads = l.query_key_norm == QueryKeyNorm::heads;
    const auto gamma = [&](ParameterName name, std::int64_t all) {
      return b.norm_scale(name, forward::Builder::whole(heads ? l.head_dim : all));
    };
    const forward::Weight of_queries = gamma(ParameterName::query_gamma, q);
    qkv = b.norm_heads(qkv, of_queries, gamma(ParameterName::key_gamma, kv));
  }
  if (l.position == PositionKind::rotary) qkv = b.rotate(qkv);
  const forward::Weight biases =
      l.position == PositionKind::relative
          ? b.weight(ParameterName::relative_positions, forward::Builder::whole(l.bias_rows), b.heads(l.heads))
          : forward::Weight{};
  const forward::Tensor o = b.attend(qkv, b.heads(q), biases);  // (T, q)
  const forward::Tensor y = b.linear(o, ParameterName::attention_out_weight, ParameterName::attention_out_bias,
                                     forward::Builder::whole(l.hidden), detail::residual_deviation(l));  // (T, H)
  if (l.adapters.attention_out)
    b.adapt(l.adapters.rank, {}, ParameterName::attention_out_adapter_a, ParameterName::attention_out_adapter_b);
  return y;
}

/// The same with latent attention. r of a head's d elements are turned by positions, c = query rank, k = rank, and v is
/// the width of a head of values.
constexpr forward::Tensor latent_attention(forward::Builder& b, const LayerSpec& l, forward::Tensor n) {
  const forward::Width h = forward::Builder::whole(l.hidden);
  const auto [rank, query_rank, r, v, epsilon] = l.latent;
  const std::int64_t turned = l.heads * r;
  const std::int64_t others = l.heads * (l.head_dim - r);
  const auto normed = [&](ParameterName down, ParameterName gamma, std::int64_t width) {
    const forward::Width w = forward::Builder::whole(width);
    const forward::Tensor x = b.linear(n, b.weight(down, w, h));
    return b.norm(x, b.vector(gamma, w, ParameterInit::one), {}, epsilon);
  };
  forward::Tensor x = n;
  if (query_rank > 0) x = normed(ParameterName::query_down_weight, ParameterName::query_gamma, query_rank);  // (T, c)
  const forward::Width of_queries = query_rank > 0 ? forward::Builder::whole(query_rank) : h;
  const forward::Weight wq =
      b.weight(ParameterName::query_up_weight, b.heads(turned + others, {turned, others, 0}), of_queries);
  const forward::Tensor q = b.rotate(b.linear(x, wq), l.heads, r);                                      // (T, A d)
  const forward::Tensor c = normed(ParameterName::latent_down_weight, ParameterName::key_gamma, rank);  // (T, k)
  const forward::Tensor kv =
      b.linear(c, b.weight(ParameterName::latent_up_weight, b.heads(others + l.heads * v, {others, l.heads * v, 0}),
                           forward::Builder::whole(rank)));  // (T, A (d - r) + A v)
  const forward::Weight wr = b.weight(ParameterName::key_rotary_weight, forward::Builder::whole(r), h);
  const forward::Tensor key = b.rotate(b.linear(n, wr), 1, r);                     // (T, r)
  forward::Tensor o = b.attend(b.assemble(q, kv, key), b.heads(turned + others));  // (T, A d)
  const forward::Width values = b.heads(l.heads * v);
  if (v < l.head_dim) o = b.narrow(o, values);  // (T, A v)
  return b.linear(o,
                  b.weight(ParameterName::attention_out_weight, h, values, detail::residual_deviation(l)));  // (T, H)
}

/// Attention of a decoder to the encoder's output: n (T, H), memory (M, H) -> (T, H).
constexpr forward::Tensor cross_attention(forward::Builder& b, const LayerSpec& l, forward::Tensor n,
                                          forward::Tensor memory) {
  const std::int64_t kv = l.kv_heads * l.head_dim;
  const forward::Tensor queries = b.linear(n, ParameterName::cross_query_weight, ParameterName::cross_query_bias,
                                           b.heads(l.heads * l.head_dim));  // (T, q)
  const forward::Tensor keys_and_values =
      b.linear(memory, ParameterName::cross_memory_weight, ParameterName::cross_memory_bias,
               b.heads(2 * kv, {kv, kv, 0}));                          // (M, 2 kv)
  const forward::Tensor o = b.cross_attend(queries, keys_and_values);  // (T, q)
  return b.linear(o, ParameterName::cross_out_weight, ParameterName::cross_out_bias, forward::Builder::whole(l.hidden),
                  detail::residual_deviation(l));  // (T, H)
}

/// The MLP of a block, between its norm and its residual: n (T, H) -> (T, H).
constexpr forward::Tensor feed_forward(forward::Builder& b, const LayerSpec& l, forward::Tensor n) {
  const AdapterSpec& a = l.adapters;
  const forward::Tensor u =
      b.linear(n, ParameterName::mlp_in_weight, ParameterName::mlp_in_bias, detail::mlp_inputs(l, l.ffn));
  if (a.gate || a.up) {
    const bool gated = inputs_of(l.activation) == 2;
    b.adapt(a.rank, {gated && a.gate, gated && a.up, false}, ParameterName::mlp_in_adapter_a,
            ParameterName::mlp_in_adapter_b);
  }
  const forward::Tensor g = b.activation(l.activation, u, forward::Builder::split(l.ffn));  // (T, F)
  const forward::Tensor y = b.linear(g, ParameterName::mlp_out_weight, ParameterName::mlp_out_bias,
                                     forward::Builder::whole(l.hidden), detail::residual_deviation(l));  // (T, H)
  if (a.down) b.adapt(a.rank, {}, ParameterName::mlp_out_adapter_a, ParameterName::mlp_out_adapter_b);
  return y;
}

/// MLPs of which a router chooses some for every token, and one for all of them: n (T, H) -> (T, H). They have no
/// biases, whatever other linear layers have.
constexpr forward::Tensor experts(forward::Builder& b, const LayerSpec& l, forward::Tensor n) {
  const forward::Width h = forward::Builder::whole(l.hidden);
  if (l.router.jitter > 0) n = b.jitter(n);
  const forward::Weight router = b.weight(ParameterName::router, forward::Builder::whole(l.experts), h);
  const forward::Weight in = b.expert_weight(ParameterName::mlp_in_weight, l.experts, detail::mlp_inputs(l, l.ffn), h);
  const forward::Weight out = b.expert_weight(ParameterName::mlp_out_weight, l.experts, h,
                                              forward::Builder::split(l.ffn), detail::residual_deviation(l));
  const bool has_bias = l.router.kind == RouterKind::sigmoid;
  const forward::Tensor y =
      b.experts(n, router, in, out, has_bias ? b.choice_bias(ParameterName::router_bias, l.experts) : forward::Weight{},
                l.router.residual_gain ? b.vector(ParameterName::residual_gain, forward::Builder::whole(l.experts))
                                       : forward::Weight{});
  if (l.shared_ffn == 0) return y;
  const forward::Width f = forward::Builder::split(l.shared_ffn);
  const forward::Tensor u =
      b.linear(n, b.weight(ParameterName::shared_in_weight, detail::mlp_inputs(l, l.shared_ffn), h));
  forward::Tensor shared = b.linear(b.activation(l.activation, u, f),
                                    b.weight(ParameterName::shared_out_weight, h, f, detail::residual_deviation(l)));
  if (l.shared_gate)
    shared = b.gate(shared, b.linear(n, b.weight(ParameterName::shared_gate_weight, forward::Builder::whole(1), h)));
  return b.add(y, shared);  // (T, H)
}

/// A block: attention, in decoders attention to the encoder's output, and an MLP or experts, each with a residual and
/// a norm before it (GPT, Llama, T5, Swin), behind the residual (BERT), or before and behind it (Gemma 2); or attention
/// and an MLP of one norm, side by side (Phi).
constexpr forward::Graph block_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  forward::Tensor x;
  forward::Tensor memory;
  if (l.merges) {  // 2 x 2 tokens of half the width become one (Swin)
    const forward::Tensor four = b.merge(b.input(forward::Builder::whole(l.hidden / 2), forward::Rows::squares));
    x = b.norm(four, ParameterName::merge_gamma, ParameterName::merge_beta);
    x = b.linear(x, b.weight(ParameterName::merge_weight, h, forward::Builder::whole(2 * l.hidden)));
  } else {
    x = b.input(h);
    if (l.memory.any()) memory = b.input(h, forward::Rows::memory);
  }

  struct Norm {
    ParameterName gamma, beta;
  };
  // @param behind  of what the part makes, where a block has one
  const auto residual = [&](Norm norm, Norm behind, const auto& part) {
    if (l.norm_order == NormOrder::after) {
      x = b.norm(b.add(x, part(x)), norm.gamma, norm.beta);
      return;
    }
    forward::Tensor y = part(b.norm(x, norm.gamma, norm.beta));
    if (l.norm_order == NormOrder::around) y = b.norm(y, behind.gamma, behind.beta);
    x = b.add(x, y);
  };
  constexpr Norm of_attention{ParameterName::norm1_gamma, ParameterName::norm1_beta};
  constexpr Norm behind_attention{ParameterName::attention_norm_gamma, ParameterName::attention_norm_beta};
  constexpr Norm of_mlp{ParameterName::norm2_gamma, ParameterName::norm2_beta};
  constexpr Norm behind_mlp{ParameterName::mlp_norm_gamma, ParameterName::mlp_norm_beta};
  if (l.parallel) {
    const forward::Tensor n = b.norm(x, of_attention.gamma, of_attention.beta);
    x = b.add(x, self_attention(b, l, n));
    x = b.add(x, feed_forward(b, l, n));
  } else {
    residual(of_attention, behind_attention, [&](forward::Tensor n) {
      return l.latent.rank > 0 ? latent_attention(b, l, n) : self_attention(b, l, n);
    });
    if (l.memory.any())
      residual({ParameterName::norm3_gamma, ParameterName::norm3_beta}, {},
               [&](forward::Tensor n) { return cross_attention(b, l, n, memory); });
    residual(of_mlp, behind_mlp,
             [&](forward::Tensor n) { return l.experts > 0 ? experts(b, l, n) : feed_forward(b, l, n); });
  }
  if (l.closing_norm) x = b.norm(x, ParameterName::closing_gamma, ParameterName::closing_beta);
  b.output(x);
  return b.graph();
}

/// Tokens or patches of images to rows, with what the model adds to them.
constexpr forward::Graph embedding_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  forward::Tensor x;
  forward::Weight table;
  if (l.patch_width > 0) {
    const forward::Tensor patches =
        b.data(forward::Builder::whole(l.patch_width), l.class_token ? forward::Rows::patches : forward::Rows::tokens);
    const forward::Weight w = b.weight(ParameterName::patch_weight, h, forward::Builder::whole(l.patch_width));
    x = b.linear(patches, w, l.bias ? b.vector(ParameterName::patch_bias, h) : forward::Weight{});
    if (l.class_token) x = b.prepend(b.weight(ParameterName::class_token, forward::Builder::whole(1), h), x);
  } else {
    table = b.table(l.vocabulary, h);
    x = b.look_up(table);
  }
  if (l.position == PositionKind::learned)
    x = b.add_positions(x, b.weight(ParameterName::positions, forward::Builder::whole(l.positions), h));
  if (l.token_types > 0)
    x = b.add_segment(x, b.weight(ParameterName::token_types, forward::Builder::whole(l.token_types), h));
  if (l.closing_norm) x = b.norm(x, ParameterName::closing_gamma, ParameterName::closing_beta);
  b.output(x);
  if (l.target.any()) b.output(b.look_up(table, forward::Rows::target));
  return b.graph();
}

/// The loss: of every token over the vocabulary, or of every sample over the classes, from its first token or the mean
/// of all. A masked language model has one more linear layer before it. A contrastive loss has no table.
constexpr forward::Graph head_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Width h = forward::Builder::whole(l.hidden);
  forward::Tensor x = b.input(h);
  if (l.head == HeadKind::contrastive) {
    b.contrast(x, b.vector(ParameterName::logit_scale, forward::Builder::whole(1), ParameterInit::logit_scale));
    return b.graph();
  }
  const bool classifies = l.head == HeadKind::classifier;
  if (l.head == HeadKind::masked_language) {
    const forward::Weight w = b.weight(ParameterName::transform_weight, h, h);
    x = b.activation(l.activation, b.linear(x, w, b.vector(ParameterName::transform_bias, h)), h);
  }
  if (classifies && l.class_token) x = b.first_token(x);
  x = b.norm(x, ParameterName::norm1_gamma, ParameterName::norm1_beta);
  if (classifies && !l.class_token) x = b.mean(x);
  const forward::Weight bias = l.has_logits_bias() ? b.logits_bias(l.vocabulary) : forward::Weight{};
  b.cross_entropy(x, b.table(l.vocabulary, h), bias);
  return b.graph();
}

/// One linear layer behind a norm, (T, H) -> (T, W): W is the width of what goes on (LayerSpec::after), with biases
/// where the layer has some. Between components of different widths.
constexpr forward::Graph adaptor_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Tensor x = b.input(forward::Builder::whole(l.hidden));
  const forward::Tensor n = b.norm(x, ParameterName::norm1_gamma, ParameterName::norm1_beta);
  b.output(b.linear(n, ParameterName::transform_weight, ParameterName::transform_bias,
                    forward::Builder::whole(l.after(0).width)));
  return b.graph();
}

/// The embedding of a sample, (T, H) -> (samples, W): its class token, the token that ends its text, or the mean of its
/// tokens, through a norm and a linear layer without biases (Radford et al., 2021).
constexpr forward::Graph projection_forward(const LayerSpec& l) {
  forward::Builder b(l);
  const forward::Tensor x = b.input(forward::Builder::whole(l.hidden));
  const forward::Tensor pooled = l.class_token             ? b.first_token(x)
                                 : l.end_token != no_token ? b.end_of_text(x)
                                                           : b.mean(x);
  const forward::Tensor n = b.norm(pooled, ParameterName::norm1_gamma, ParameterName::norm1_beta);
  b.output(b.linear(n, b.weight(ParameterName::transform_weight, forward::Builder::whole(l.after(0).width),
                                forward::Builder::whole(l.hidden))));
  return b.graph();
}

namespace detail {

constexpr forward::Graph forward_of_kind(const LayerSpec& l) {
  if (l.kind == LayerKind::embedding) return embedding_forward(l);
  if (l.kind == LayerKind::head) return head_forward(l);
  return block_forward(l);
}

template <class = void>
forward::Graph forward_at_run_time(const LayerSpec& l) {
  return forward_of_kind(l);
}
GALVATRON_IN_PLANNER(forward::Graph forward_at_run_time<>(const LayerSpec&))

}  // namespace detail

/// The forward pass of a layer: its own where it names one.
constexpr forward::Graph forward_of(const LayerSpec& l) {
  if (l.forward_pass != nullptr) return l.forward_pass(l);
  return std::is_constant_evaluated() ? detail::forward_of_kind(l) : detail::forward_at_run_time(l);
}

/// Parameters of a layer; a tied head has no table.
constexpr std::int64_t parameters(const LayerSpec& layer) {
  const forward::Graph graph = forward_of(layer);
  std::int64_t sum = 0;
  for (int i = 0; i < graph.weight_count; ++i)
    if (const forward::WeightSpec& w = graph.weight(i); !(w.is_table && layer.kind == LayerKind::head && layer.tied))
      sum += w.rows.extent * w.columns.extent;
  return sum;
}

/// Parameters of the whole model; a tied table counts once.
inline std::int64_t parameters(const ModelSpec& model) {
  std::int64_t sum = 0;
  for (int i = 0; i < model.layers(); ++i) sum += parameters(model.layer(i));
  return sum;
}

}  // namespace galvatron
