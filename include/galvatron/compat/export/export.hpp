// Plans in the words of other trainers.
//
//     const auto exported = value_or_throw(galvatron::export_plan(plan, galvatron::ExportTarget::megatron));
//     std::cout << exported.text;
//     for (const std::string& what : exported.not_expressed) std::cerr << what << "\n";
//
// Which models those have a program for: pretrain_gpt.py of NVIDIA/Megatron-LM, torchtitan/models/ of
// pytorch/torchtitan v0.2.2 and galvatron/core/runtime/models/builder.py of PKU-DAIR/Hetu-Galvatron (June 2026):
// decoders that predict the next token.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

#include <galvatron/compat/export/deepspeed.hpp>
#include <galvatron/compat/export/exported.hpp>
#include <galvatron/compat/export/hetu.hpp>
#include <galvatron/compat/export/megatron.hpp>
#include <galvatron/compat/export/price.hpp>
#include <galvatron/compat/export/torchtitan.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

namespace detail {

/// The family of a model that is no decoder of a text with its article; empty for one that is.
inline std::string other_family(const ModelSpec& model) {
  const auto any = [&](auto has) { return std::ranges::any_of(model.blocks, has); };
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
  const std::string trains = target == ExportTarget::megatron
                                 ? "the arguments are those of Megatron-LM's pretrain_gpt.py, which trains"
                             : target == ExportTarget::torchtitan ? "torchtitan's job files name the modules of"
                                                                  : "Hetu-Galvatron's trainer builds";
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

/// A consistent plan (why_inconsistent) for `target`; what that cannot express is in the result. Errors (usage): a plan
/// whose stages have different numbers of ranks, or one that DeepSpeed cannot run at all.
inline Result<Exported> export_plan(const Plan& plan, ExportTarget target) {
  for (const PlanStage& stage : plan.stages)
    if (stage.rank_count != plan.stages.front().rank_count)
      return usage_error(text_of(
          "stages of ", plan.stages.front().rank_count, " and of ", stage.rank_count,
          " ranks: the trainers that plans are exported to have equally many in all stages; export it as a header"));
  if (target == ExportTarget::megatron) return export_megatron(plan);
  if (target == ExportTarget::torchtitan) return export_torchtitan(plan);
  if (target == ExportTarget::deepspeed) return export_deepspeed(plan);
  return export_hetu(plan);
}

}  // namespace galvatron
