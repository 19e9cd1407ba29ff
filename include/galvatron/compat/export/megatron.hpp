// A plan as arguments of Megatron-LM.
//
// Source: megatron/training/arguments.py, megatron/core/model_parallel_config.py,
// megatron/core/transformer/{transformer_config,transformer_layer}.py and megatron/core/models/gpt/gpt_layer_specs.py
// of NVIDIA/Megatron-LM, state of August 2026; releases 0.16.1 and 0.19.0 of megatron-core have what is written here.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/compat/export/megatron_experts.hpp>
#include <galvatron/compat/export/megatron_stages.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

inline void megatron_stages(const Plan& plan, MegatronArguments& arguments) {
  for (const auto& [name, value] : megatron_stage_settings(plan))
    value.empty() ? arguments.add(name) : arguments.add(name, " ", value);
}

/// Recomputation: of all layers, of modules of all layers, or of the first layers of every stage. Of norms and
/// activations Megatron-LM has the module `layernorm`, norms that are modules of their own; those in front of a linear
/// layer of Transformer Engine, both of a block without experts, are parts of that. Products of 8 bits refuse it with
/// versions of Transformer Engine before 2.6.
inline void megatron_recompute(const Plan& plan, MegatronArguments& arguments, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  const auto any = [&](RecomputeKind kind) {
    return std::ranges::any_of(plan.layers, [kind](const StrategySpec& s) { return s.recompute == kind; });
  };
  const auto job = [&](std::size_t layer) -> StrategySpec& { return out.job->layers[layer]; };
  const std::string differs = "recomputation differs from layer to layer, " + by_layer_text(kinds) + ": ";
  if (!any(RecomputeKind::full)) {
    const bool core = any(RecomputeKind::selective);
    const bool norms = !layers_without_outputs(plan).empty() && plan.precision != Precision::fp8;
    for (std::size_t i = 0; i < plan.layers.size(); ++i)
      job(i).recompute = kept_but(plan, core ? RecomputeKind::selective : RecomputeKind::none);
    if (core || norms) {
      arguments.add("--recompute-granularity selective");
      arguments.add("--recompute-modules", core ? " core_attn" : "", norms ? " layernorm" : "");
    }
    if (kinds.size() > 1)
      out.lacks(differs + "Megatron-LM recomputes the attention core of all layers or of none, and all is written");
    tell_outputs(plan, "Megatron-LM", out,
                 norms ? "; `--recompute-modules layernorm` recomputes norms that are modules of their own, and those "
                         "of dense blocks with Transformer Engine are not"
                       : "");
    return;
  }
  tell_outputs(plan, "Megatron-LM", out);
  arguments.add("--recompute-granularity full");
  if (kinds.size() == 1) {
    arguments.add("--recompute-method uniform");
    arguments.add("--recompute-num-layers 1");
    return;
  }
  const std::vector<LayerRange> stages = chunks_of(plan);
  const auto kind_of = [&](int layer) { return recomputed(plan.layers[static_cast<std::size_t>(layer)]); };
  int each = 0;  // layers of a stage, or virtual stage, that recompute something
  for (const LayerRange& stage : stages) {
    int count = 0;
    for (int i = stage.first; i <= stage.last; ++i) count += kind_of(i) != RecomputeKind::none ? 1 : 0;
    each = std::max(each, count);
  }
  bool exact = true;
  for (const LayerRange& stage : stages)
    for (int i = stage.first; i <= stage.last; ++i) {
      const RecomputeKind kind = i - stage.first < each ? RecomputeKind::full : RecomputeKind::none;
      exact = exact && kind_of(i) == kind;
      job(static_cast<std::size_t>(i)).recompute = kept_but(plan, kind);
    }
  arguments.add("--recompute-method block");
  arguments.add("--recompute-num-layers ", each);
  if (!exact)
    out.lacks(differs + "Megatron-LM recomputes the first layers of every stage, as many in each, and " +
              std::to_string(each) + " is written");
}

/// How the context ranks of every layer exchange, ` p2p` (ring) or ` a2a` (Ulysses); one word when all do it alike.
inline std::string megatron_exchanges(const Plan& plan, const StrategySpec& spec, Plan& job) {
  std::string all;
  bool alike = true;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const StrategySpec& own = plan.layers[i].context > 1 ? plan.layers[i] : spec;
    const std::string word = own.uses_ring() ? " p2p" : " a2a";
    alike = alike && (all.empty() || all.ends_with(word));
    all += word;
    StrategySpec& of_job = job.layers[i];
    of_job.sequence = own.uses_ring() ? SequenceKind::ring : SequenceKind::ulysses;
    of_job = of_job.with_cut(spec.cuts_over_tensor());
  }
  return alike ? all.substr(0, 4) : all;
}

}  // namespace detail

/// The arguments as a shell file that sets the array PLAN_ARGS; comments say what they leave out.
/// @param model  what the plan is for, if known: with arguments of its experts, its latent attention and sliding
/// windows
inline Exported export_megatron(const Plan& plan, const ModelSpec* model = nullptr) {
  Exported out;
  const std::string target = "Megatron-LM";
  detail::MegatronArguments arguments;
  StrategySpec spec = detail::one_for_all(plan, target, out, model, true);
  const bool has_experts = model != nullptr && std::ranges::any_of(model->blocks, &LayerSpec::experts);
  if ((has_experts || spec.exchanges_tokens()) && spec.tensor > 1 && !spec.cuts_over_tensor()) {
    out.lacks(
        "tensor parallelism with whole sequences between its regions: Megatron-LM splits the sequence there in models "
        "of experts");
    spec = spec.with_cut(true);
    for (StrategySpec& layer : out.job->layers) layer = layer.with_cut(true);
    out.job->embedding = out.job->embedding.with_cut(true);
    out.job->head = out.job->head.with_cut(true);
  }
  arguments.add("--num-layers ", plan.layers.size());
  arguments.add("--seq-length ", plan.sequence_length);
  arguments.add("--micro-batch-size ", plan.microbatch() / spec.data);
  arguments.add("--global-batch-size ", plan.global_batch);
  if (plan.precision != Precision::fp32) arguments.add("--bf16");
  if (plan.precision == Precision::fp8) {
    Fp8Recipe& recipe = out.job->trainer.traits.fp8_recipe;
    if (recipe == Fp8Recipe::rowwise) {
      out.lacks("a scale for each row of 8-bit operands: Megatron-LM has none, and one for each tensor is written");
      recipe = Fp8Recipe::tensorwise;
    }
    // Scales of blocks leave E4M3 enough range for gradients too (Float8BlockScaling, MXFP8BlockScaling).
    const bool blocks = recipe == Fp8Recipe::blockwise || recipe == Fp8Recipe::mxfp8;
    arguments.add("--fp8-format ", blocks ? "e4m3" : "hybrid");
    arguments.add("--fp8-recipe ", name_of(recipe));
  }
  arguments.add("--tensor-model-parallel-size ", spec.tensor);
  if (spec.cuts_over_tensor()) arguments.add("--sequence-parallel");
  if (spec.context > 1) {
    arguments.add("--context-parallel-size ", spec.context);
    arguments.add("--cp-comm-type", detail::megatron_exchanges(plan, spec, *out.job));
  }
  if (spec.expert > 1) arguments.add("--expert-model-parallel-size ", spec.expert);
  if (spec.exchanges_tokens()) arguments.add("--expert-tensor-parallel-size ", spec.etp());
  arguments.add("--pipeline-model-parallel-size ", plan.stages.size());
  if (plan.stages.size() > 1) {
    detail::megatron_stages(plan, arguments);
    if (!has_schedule(OneForAll::megatron, plan.schedule)) {
      out.lacks(std::string("the schedule ") + name_of(plan.schedule) +
                ": Megatron-LM runs 1f1b, or interleaved with virtual stages");
      out.job->schedule = ScheduleKind::one_f_one_b;
    }
  }
  if (spec.zero >= 1) arguments.add("--use-distributed-optimizer");
  if (spec.zero >= 2) {
    arguments.add("--use-megatron-fsdp");
    arguments.add("--data-parallel-sharding-strategy ", spec.zero == 2 ? "optim_grads" : "optim_grads_params");
    arguments.add("--ckpt-format fsdp_dtensor");
  }
  if (plan.moments != Precision::fp32 && spec.zero >= 1) {
    arguments.add("--use-precision-aware-optimizer");
    arguments.add("--exp-avg-dtype ", name_of(plan.moments));
    arguments.add("--exp-avg-sq-dtype ", name_of(plan.moments));
  } else {
    detail::tell_moments(plan, target + " without its distributed optimizer", out);
  }
  if (model != nullptr && !model->blocks.empty()) {
    detail::megatron_experts(*model, arguments, out);
    detail::megatron_latent_attention(*model, arguments);
    detail::megatron_sliding_window(*model, arguments, out);
    detail::megatron_soft_caps(*model, out);
  }
  detail::megatron_recompute(plan, arguments, out);
  if (spec.zero >= 2)
    out.elsewhere("the environment has CUDA_DEVICE_MAX_CONNECTIONS unset or above 1: FSDP refuses 1");
  else if (spec.tensor > 1 || spec.context > 1)
    out.elsewhere("the environment has CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell");

  out.text =
      text_of("# Megatron-LM arguments of ", detail::export_title(plan),
              ". Made by `galvatron export`.\n#   . ./FILE && torchrun ... pretrain_gpt.py \"${PLAN_ARGS[@]}\" ...   "
              "(with the model's shape, data and optimizer)\n",
              detail::export_comments(out), "PLAN_ARGS=(\n", arguments.lines, ")\n");
  return out;
}

}  // namespace galvatron
