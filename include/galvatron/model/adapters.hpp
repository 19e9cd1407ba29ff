// Low-rank adapters of a model (LoRA: Hu et al., arXiv 2106.09685): which linear layers have them, and the model with
// its other parameters frozen.
//
//   y = W x + alpha / rank * B (A x)      A (rank, inputs) begins at random, B (outputs, rank) with zeros
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

inline constexpr std::int64_t most_adapter_rank = 4096;

/// A linear layer that can have an adapter.
struct AdapterTarget {
  std::string_view name;
  bool AdapterSpec::* has;
};
inline constexpr auto adapter_targets = std::to_array<AdapterTarget>({
    {"q", &AdapterSpec::query},
    {"k", &AdapterSpec::key},
    {"v", &AdapterSpec::value},
    {"qkv", &AdapterSpec::fused_qkv},
    {"o", &AdapterSpec::attention_out},
    {"gate", &AdapterSpec::gate},
    {"up", &AdapterSpec::up},
    {"down", &AdapterSpec::down},
});

/// Those that have one, by their names, with commas.
inline std::string adapter_target_names(const AdapterSpec& adapters) {
  std::string out;
  for (const AdapterTarget& target : adapter_targets)
    if (adapters.*target.has) out += (out.empty() ? "" : ",") + std::string(target.name);
  return out;
}

/// Reads such names. Errors (usage): another word, none.
inline Result<AdapterSpec> with_adapter_targets(AdapterSpec adapters, std::string_view names) {
  std::string_view rest = names;
  for (bool more = true; more;) {
    const std::size_t end = rest.find(',');
    const std::string_view word = rest.substr(0, end);
    more = end != std::string_view::npos;
    rest = more ? rest.substr(end + 1) : "";
    bool found = false;
    for (const AdapterTarget& target : adapter_targets)
      if (target.name == word) found = adapters.*target.has = true;
    if (!found)
      return usage_error("no linear layer is named \"" + std::string(word) +
                         "\": adapters are of q, k, v, qkv (one for all three), o, gate, up, down");
  }
  return adapters;
}

/// The linear layers that peft adapts where nothing else is said: queries and values, and of a model whose projections
/// are one in Hugging Face's files (GPT-2) the fused one.
inline AdapterSpec with_usual_targets(AdapterSpec adapters, const ModelSpec& model) {
  const bool fused = !model.blocks.empty() && model.blocks.front().position == PositionKind::learned;
  adapters.fused_qkv = fused;
  adapters.query = adapters.value = !fused;
  return adapters;
}

namespace detail {
/// Why a model cannot have adapters; empty when it can.
inline std::string why_not_adapted(const ModelSpec& model, const AdapterSpec& a) {
  if (a.rank < 1 || a.rank > most_adapter_rank)
    return "the rank of adapters is from 1 to " + std::to_string(most_adapter_rank) + ", not " + std::to_string(a.rank);
  if (!std::isfinite(a.alpha) || a.alpha <= 0) return "alpha of adapters is above 0";
  if (adapter_target_names(a).empty()) return "adapters are of at least one linear layer";
  if (a.fused_qkv && (a.query || a.key || a.value))
    return "qkv is one adapter for queries, keys and values together: name it, or q, k and v";
  const auto plain = [](const LayerSpec& l) {
    return l.forward_pass == nullptr && l.experts == 0 && l.latent.rank == 0 && !l.memory.any() && !l.target.any() &&
           l.window == 0 && !l.merges && l.causal && l.position != PositionKind::relative && l.is_in_chain();
  };
  for (const LayerSpec& block : model.blocks)
    if (!plain(block))
      return model.name +
             " has experts, latent attention, an encoder or windows: adapters are of decoders as GPT-2 and "
             "Llama have them (Mistral, Qwen, Gemma and Phi too)";
  if (model.takes_images() || model.head.head != HeadKind::language)
    return model.name + " is no language model: adapters are of decoders of text";
  for (const LayerSpec& block : model.blocks)
    if (a.gate && inputs_of(block.activation) != 2) return model.name + " has no gate in its MLP: name up";
  return "";
}
}  // namespace detail

/// The model with these adapters in all blocks and its own parameters frozen. Errors (usage): it cannot have them.
inline Result<ModelSpec> with_adapters(ModelSpec model, const AdapterSpec& adapters) {
  if (const std::string why = detail::why_not_adapted(model, adapters); !why.empty()) return usage_error(why);
  model.embedding.frozen = model.head.frozen = true;
  for (LayerSpec& block : model.blocks) {
    block.frozen = true;
    block.adapters = adapters;
  }
  return model;
}

/// Those of a model; a rank of 0: none.
inline AdapterSpec adapters_of(const ModelSpec& model) {
  return model.blocks.empty() ? AdapterSpec{} : model.blocks.front().adapters;
}

/// The model without adapters, all of its parameters trained.
inline ModelSpec without_adapters(ModelSpec model) {
  for (LayerSpec* layer : {&model.embedding, &model.head}) layer->frozen = false;
  for (LayerSpec& block : model.blocks) {
    block.frozen = false;
    block.adapters = {};
  }
  return model;
}

}  // namespace galvatron
