// Which layers have their arithmetic here: the planner knows more kinds of layers than the runtime trains.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::runtime {

/// A block as BERT has it: plain but for its norms, which come after the residuals, and for experts.
constexpr bool is_post_norm_block(const LayerSpec& layer) {
  LayerSpec before = layer;
  before.norm_order = NormOrder::before;
  before.experts = 0;
  return layer.norm_order == NormOrder::after && before.is_plain_block();
}

/// A block as Swin has them: plain but for its windows and the biases in them; the first of a stage merges tokens.
constexpr bool is_window_block(const LayerSpec& layer) {
  LayerSpec plain = layer;
  plain.window = plain.shift = plain.bias_rows = 0;
  plain.position = PositionKind::learned;
  plain.merges = false;
  plain.experts = 0;
  return layer.window > 0 && layer.position == PositionKind::relative &&
         layer.bias_rows == (2 * layer.window - 1) * (2 * layer.window - 1) && layer.kv_heads == layer.heads &&
         !layer.causal && plain.is_plain_block();
}

/// A block as T5's encoder and decoder have it, with a table of relative positions of its own.
constexpr bool is_encoder_decoder_block(const LayerSpec& layer) {
  return layer.kind == LayerKind::block && layer.position == PositionKind::relative && layer.bias_rows > 0 &&
         !layer.bias && layer.norm_order == NormOrder::before && layer.window == 0 && !layer.merges;
}

/// A block as decoders of the Llama family and mixtures of experts have it: plain but for experts in place of its MLP,
/// for biases, norms or latent vectors of queries, keys and values, for norms behind its parts (Gemma), or for its
/// parts side by side (Phi).
constexpr bool is_decoder_block(const LayerSpec& layer) {
  LayerSpec plain = layer;
  plain.experts = 0;
  plain.qkv_bias = false;
  plain.query_key_norm = QueryKeyNorm::none;
  plain.latent = {};
  plain.parallel = false;
  if (plain.norm_order == NormOrder::around) plain.norm_order = NormOrder::before;
  return plain.is_plain_block();
}

/// True for the layers of GPT, Llama, Gemma, Phi, BERT, ViT, Swin, T5 and Mixtral models, and for those with a forward
/// pass of their own.
constexpr bool is_implemented(const LayerSpec& layer) {
  if (layer.forward_pass != nullptr) return true;
  const bool relative = layer.position == PositionKind::relative;
  if (layer.kind == LayerKind::block && relative) return is_window_block(layer) || is_encoder_decoder_block(layer);
  if (layer.kind == LayerKind::head && layer.head == HeadKind::classifier) return !layer.tied;
  if (layer.kind == LayerKind::embedding && layer.patch_width > 0)
    return layer.position != PositionKind::rotary && layer.token_types == 0 && !layer.target.any();
  if (relative) return layer.head == HeadKind::language && !layer.closing_norm && layer.token_types == 0;
  if (layer.tokens != all_tokens || layer.target.any()) return false;
  if (layer.kind == LayerKind::block) return is_decoder_block(layer) || is_post_norm_block(layer);
  return layer.kind == LayerKind::embedding || layer.head == HeadKind::language ||
         layer.activation == ActivationKind::gelu;
}

inline constexpr std::string_view not_implemented =
    "can be planned, but not trained by this version: it trains GPT, Llama, Gemma, Phi, BERT, ViT, Swin, T5 and "
    "Mixtral models, "
    "such as gpt2-124m, llama3-8b, bert-large, vit-huge-32, swin-huge-32, t5-large-32 and mixtral-8x7b; choose one of "
    "them";

/// No error when every layer of the model is implemented. Errors (usage): the model, and what can be trained.
inline Result<void> check_implemented(const ModelSpec& model) {
  if (is_implemented(model.embedding) && is_implemented(model.head) &&
      std::ranges::all_of(model.blocks, is_implemented))
    return {};
  return usage_error("the model " + model.name + " " + std::string(not_implemented));
}

}  // namespace galvatron::runtime
