// Which models a trainer that plans are exported to has a program for, and what of them it cannot split.
//
// Sources: pretrain_gpt.py of NVIDIA/Megatron-LM, torchtitan/models/ of pytorch/torchtitan v0.2.2 and
// galvatron/core/runtime/models/builder.py of PKU-DAIR/Hetu-Galvatron (June 2026): decoders that predict the next
// token.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/compat/export/target.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

namespace detail {

/// The family of a model that is no decoder of a text with its article; empty for one that is.
inline std::string other_family(const ModelSpec& model) {
  const auto any = [&](auto has) { return std::any_of(model.blocks.begin(), model.blocks.end(), has); };
  if (any([](const LayerSpec& b) { return b.window > 0; })) return "a Swin Transformer";
  if (model.takes_images()) return "a vision Transformer (ViT)";
  if (any([](const LayerSpec& b) { return b.memory.any(); })) return "an encoder with a decoder (T5)";
  if (model.head.head == HeadKind::masked_language) return "an encoder with a masked-language head (BERT)";
  if (model.head.head == HeadKind::classifier) return "a classifier";
  if (any([](const LayerSpec& b) { return !b.causal; })) return "an encoder";
  return {};
}

}  // namespace detail

/// Why `target` cannot train `model`, a sentence; empty where it can. DeepSpeed trains any model that a program brings.
inline std::string why_not_trained(const ModelSpec& model, ExportTarget target) {
  const std::string family = detail::other_family(model);
  if (family.empty() || target == ExportTarget::deepspeed) return {};
  std::string trains;
  switch (target) {
    case ExportTarget::megatron:
      trains = "the arguments are those of Megatron-LM's pretrain_gpt.py, which trains";
      break;
    case ExportTarget::torchtitan:
      trains = "torchtitan's job files name the modules of";
      break;
    default:
      trains = "Hetu-Galvatron's trainer builds";
  }
  return model.name + " is " + family + ", and " + trains +
         " decoders such as GPT, Llama and Mixtral alone; export it as a header, or to deepspeed, whose program brings "
         "the model";
}

/// Why `target` cannot run an exported job for `model`, a sentence; empty where nothing is known against it.
inline std::string why_not_run(const Exported& exported, const ModelSpec& model, ExportTarget target) {
  if (!exported.job || target != ExportTarget::megatron || exported.job->layers.size() != model.blocks.size())
    return {};
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const StrategySpec& spec = exported.job->layers[i];
    if (can_split_heads(OneForAll::megatron, model.blocks[i], spec)) continue;
    return "Megatron-LM cannot run this plan: Ulysses over " + std::to_string(spec.context) + " context and " +
           std::to_string(spec.tensor) + " tensor ranks exchanges copies of the " +
           std::to_string(model.blocks[i].kv_heads) +
           " key/value heads, which Transformer Engine's attention does not; plan with --space uniform,megatron";
  }
  return {};
}

}  // namespace galvatron
