// In what two models differ, field by field and by name.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <galvatron/core/quantity.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// A field in which two models differ, and its values.
struct ModelDifference {
  std::string field;   ///< "attention heads"; with the block's number from 0 where it is not the first one's
  std::string first;   ///< of the first model
  std::string second;  ///< of the second model
};

namespace detail {

inline std::string field_text(bool value) { return value ? "true" : "false"; }
inline std::string field_text(std::integral auto value) { return std::to_string(value); }
/// 1e-05 and 1.00001e-05 differ.
inline std::string field_text(double value) { return shortest_text(value); }
inline std::string field_text(const TokenRatio& value) {
  return std::to_string(value.part) + "/" + std::to_string(value.whole);
}
/// Which parts of the bundles at its borders a layer reads and makes, with their shares of the sequence.
inline std::string field_text(const BundlePlace& value) {
  if (value == BundlePlace{}) return "of a chain";
  const auto parts = [](const std::array<std::int16_t, 2>& indices, const Bundle& bundle) {
    std::string out;
    for (const std::int16_t i : indices)
      if (i >= 0)
        out += (out.empty() ? "" : "+") + std::to_string(i) + " (" +
               field_text(bundle[static_cast<std::size_t>(i)].tokens) + ")";
    return out.empty() ? std::string("none") : out;
  };
  return "parts " + parts(value.inputs, value.before) + " to " + parts(value.outputs, value.after);
}
inline std::string field_text(ForwardPass value) { return value == nullptr ? "the library's" : "one of its own"; }
template <class E>
  requires std::is_enum_v<E>
std::string field_text(E value) {
  constexpr auto name = [](auto... names) { return std::array<const char*, sizeof...(names)>{names...}; };
  const auto at = static_cast<std::size_t>(value);
  if constexpr (std::same_as<E, LayerKind>) return name("embedding", "block", "head").at(at);
  if constexpr (std::same_as<E, NormKind>) return name("layer_norm", "rms_norm", "rms_norm_from_one").at(at);
  if constexpr (std::same_as<E, ActivationKind>)
    return name("gelu", "swiglu", "relu", "quick_gelu", "exact_gelu", "squared_relu", "geglu").at(at);
  if constexpr (std::same_as<E, PositionKind>) return name("learned", "rotary", "relative").at(at);
  if constexpr (std::same_as<E, RotaryRamp>) return name("pairs", "turns", "none").at(at);
  if constexpr (std::same_as<E, NormOrder>) return name("before", "after", "around").at(at);
  if constexpr (std::same_as<E, QueryKeyNorm>) return name("none", "heads", "all").at(at);
  if constexpr (std::same_as<E, RouterKind>) return name("softmax", "sigmoid").at(at);
  if constexpr (std::same_as<E, BalanceScope>) return name("sequence", "micro_batch", "data_ranks").at(at);
  if constexpr (std::same_as<E, DropOrder>) return name("position", "weight").at(at);
  if constexpr (std::same_as<E, HeadKind>)
    return name("language", "masked_language", "classifier", "contrastive").at(at);
}

/// Calls f(name, a's value, b's value) for every field of a layer, those that people choose models by first.
template <class F>
constexpr void for_each_field(const LayerSpec& a, const LayerSpec& b, const F& f) {
  // A field that LayerSpec gains has to be named here, or this does not compile.
  const auto& [kind, hidden, heads, kv_heads, head_dim, ffn, vocabulary, positions, norm, activation, position, bias,
               causal, tied, rope_theta, rotary_scaling, rotary_dim, score_width, sliding_window, score_cap,
               norm_epsilon, layers, tokens, memory, target, norm_order, closing_norm, window, shift, bias_rows, merges,
               parallel, qkv_bias, query_key_norm, latent, experts, active_experts, router, shared_ffn, shared_gate,
               patch_width, class_token, end_token, token_types, embedding_scale, logits_bias, logits_cap, head,
               loss_weight, frozen, adapters, place, forward_pass] = b;
  f("number of layers", a.layers, layers);
  f("hidden size", a.hidden, hidden);
  f("attention heads", a.heads, heads);
  f("key/value heads", a.kv_heads, kv_heads);
  f("width of a head", a.head_dim, head_dim);
  f("width of the MLP", a.ffn, ffn);
  f("vocabulary", a.vocabulary, vocabulary);
  f("positions", a.positions, positions);
  f("kind of norm", a.norm, norm);
  f("epsilon of the norms", a.norm_epsilon, norm_epsilon);
  f("activation", a.activation, activation);
  f("kind of positions", a.position, position);
  f("base of the rotary positions", a.rope_theta, rope_theta);
  f("ramp of the rotary positions", a.rotary_scaling.ramp, rotary_scaling.ramp);
  f("scaling of the rotary positions", a.rotary_scaling.factor, rotary_scaling.factor);
  f("positions that are scaled", a.rotary_scaling.positions, rotary_scaling.positions);
  f("turns of pairs that are not scaled", a.rotary_scaling.fast, rotary_scaling.fast);
  f("turns of pairs that are scaled", a.rotary_scaling.slow, rotary_scaling.slow);
  f("amplitude of the rotary positions", a.rotary_scaling.amplitude, rotary_scaling.amplitude);
  f("scaling of scores", a.rotary_scaling.score_rate, rotary_scaling.score_rate);
  f("elements of a head that positions turn", a.rotary_dim, rotary_dim);
  f("width whose root divides scores", a.score_width, score_width);
  f("sliding window of attention", a.sliding_window, sliding_window);
  f("soft cap of scores", a.score_cap, score_cap);
  f("biases", a.bias, bias);
  f("biases of queries, keys and values", a.qkv_bias, qkv_bias);
  f("norms of queries and keys", a.query_key_norm, query_key_norm);
  f("rank of keys and values", a.latent.rank, latent.rank);
  f("rank of queries", a.latent.query_rank, latent.query_rank);
  f("rotary part of a head", a.latent.rotary_dim, latent.rotary_dim);
  f("width of a head of values", a.latent.value_dim, latent.value_dim);
  f("epsilon of the norms of latent vectors", a.latent.norm_epsilon, latent.norm_epsilon);
  f("tied embeddings", a.tied, tied);
  f("scale of the embedding", a.embedding_scale, embedding_scale);
  f("biases of logits", a.logits_bias, logits_bias);
  f("soft cap of logits", a.logits_cap, logits_cap);
  f("attention and MLP side by side", a.parallel, parallel);
  f("causal attention", a.causal, causal);
  f("experts", a.experts, experts);
  f("experts of a token", a.active_experts, active_experts);
  f("scores of the router", a.router.kind, router.kind);
  f("weights that are renormalised", a.router.renormalise, router.renormalise);
  f("scale of the weights of experts", a.router.scale, router.scale);
  f("groups of experts", a.router.groups, router.groups);
  f("groups of a token", a.router.top_groups, router.top_groups);
  f("width of the shared experts", a.shared_ffn, shared_ffn);
  f("gate of the shared experts", a.shared_gate, shared_gate);
  f("coefficient of the balance loss", a.router.balance_loss, router.balance_loss);
  f("scope of the balance loss", a.router.balance_scope, router.balance_scope);
  f("coefficient of the z-loss", a.router.z_loss, router.z_loss);
  f("rate of the experts' biases", a.router.bias_rate, router.bias_rate);
  f("capacity of experts", a.router.capacity, router.capacity);
  f("choices that are dropped", a.router.drops, router.drops);
  f("noise in the router's input", a.router.jitter, router.jitter);
  f("gains of the experts' residuals", a.router.residual_gain, router.residual_gain);
  f("kind of layer", a.kind, kind);
  f("share of the sequence", a.tokens, tokens);
  f("share of the encoder's output", a.memory, memory);
  f("share of the target", a.target, target);
  f("place of the norms", a.norm_order, norm_order);
  f("closing norm", a.closing_norm, closing_norm);
  f("side of the windows", a.window, window);
  f("shift of the windows", a.shift, shift);
  f("rows of the table of relative positions", a.bias_rows, bias_rows);
  f("merging of tokens", a.merges, merges);
  f("numbers of a patch", a.patch_width, patch_width);
  f("class token", a.class_token, class_token);
  f("end-of-text token", a.end_token, end_token);
  f("token types", a.token_types, token_types);
  f("kind of head", a.head, head);
  f("weight of the loss", a.loss_weight, loss_weight);
  f("frozen parameters", a.frozen, frozen);
  f("rank of adapters", a.adapters.rank, adapters.rank);
  f("alpha of adapters", a.adapters.alpha, adapters.alpha);
  f("adapter of queries", a.adapters.query, adapters.query);
  f("adapter of keys", a.adapters.key, adapters.key);
  f("adapter of values", a.adapters.value, adapters.value);
  f("adapter of queries, keys and values together", a.adapters.fused_qkv, adapters.fused_qkv);
  f("adapter of attention's output", a.adapters.attention_out, adapters.attention_out);
  f("adapter of the MLP's gate", a.adapters.gate, adapters.gate);
  f("adapter of the MLP's input", a.adapters.up, adapters.up);
  f("adapter of the MLP's output", a.adapters.down, adapters.down);
  f("place in the graph", a.place, place);
  f("forward pass", a.forward_pass, forward_pass);
}

}  // namespace detail

/// The model without what only its training reads: the losses and the noise of routers, the rate of the experts'
/// biases, capacities.
inline ModelSpec without_training_settings(ModelSpec model) {
  const auto reset = [](LayerSpec& layer) {
    const RouterSpec& router = layer.router;
    layer.router = {.kind = router.kind,
                    .renormalise = router.renormalise,
                    .scale = router.scale,
                    .groups = router.groups,
                    .top_groups = router.top_groups,
                    .residual_gain = router.residual_gain};
  };
  for (LayerSpec& block : model.blocks) reset(block);
  reset(model.embedding);
  reset(model.head);
  return model;
}

/// The first field in which the layers of two models differ; nothing when they are the same model, whatever the names.
inline std::optional<ModelDifference> first_difference(const ModelSpec& a, const ModelSpec& b) {
  if (a.blocks.size() != b.blocks.size())
    return ModelDifference{"number of layers", std::to_string(a.blocks.size()), std::to_string(b.blocks.size())};
  std::optional<ModelDifference> out;
  const auto compare = [&out](const LayerSpec& x, const LayerSpec& y, const std::string& where) {
    if (!out)
      detail::for_each_field(x, y, [&](std::string_view name, const auto& first, const auto& second) {
        if (!out && !(first == second))
          out = {std::string(name) + where, detail::field_text(first), detail::field_text(second)};
      });
  };
  for (std::size_t i = 0; i < a.blocks.size(); ++i)
    compare(a.blocks[i], b.blocks[i], i == 0 ? "" : " of layer " + std::to_string(i));
  compare(a.embedding, b.embedding, " of the embedding");
  compare(a.head, b.head, " of the head");
  return out;
}

}  // namespace galvatron
