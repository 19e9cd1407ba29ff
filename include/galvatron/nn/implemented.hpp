// Which layers have their arithmetic here: the planner knows more kinds of layers than the runtime trains.
#pragma once

#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::nn {

/// True for the layers of GPT and Llama models.
constexpr bool is_implemented(const LayerSpec& layer) {
  if (layer.tokens != all_tokens || layer.passing.any() || layer.position == PositionKind::relative) return false;
  if (layer.kind == LayerKind::block) return layer.is_plain_block() && layer.activation != ActivationKind::relu;
  return layer.patch_width == 0 && layer.token_types == 0 && !layer.closing_norm && layer.head == HeadKind::language;
}

inline constexpr std::string_view not_implemented =
    "can be planned, but not trained by this version: it trains GPT and Llama models, such as gpt2-124m and llama3-8b; "
    "choose one of them";

/// No error when every layer of the model is implemented. Errors (usage): the model, and what can be trained.
inline Result<void> check_implemented(const ModelSpec& model) {
  bool all = is_implemented(model.embedding) && is_implemented(model.head);
  for (const LayerSpec& block : model.blocks) all = all && is_implemented(block);
  if (all) return {};
  return usage_error("the model " + model.name + " " + std::string(not_implemented));
}

}  // namespace galvatron::nn
