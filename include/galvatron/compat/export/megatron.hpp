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
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

/// Where the stages begin, if they are not equally long: the first and last stage, or a drawing of all of them,
/// `'Et*4|t*3|t*3|t*2L'`.
inline void megatron_stages(const Plan& plan, std::vector<std::string>& arguments) {
  const std::vector<int> sizes = chunk_sizes(plan);
  const auto stages = plan.stages.size();
  const bool even = std::ranges::all_of(sizes, [&](int n) { return n == sizes.front(); });
  if (plan.virtual_stages > 1 && even)
    arguments.push_back("--num-layers-per-virtual-pipeline-stage " + std::to_string(sizes.front()));
  if (even) return;
  const auto equal = [&](std::size_t first, std::size_t last) {
    return first >= last ||
           std::all_of(sizes.begin() + static_cast<std::ptrdiff_t>(first),
                       sizes.begin() + static_cast<std::ptrdiff_t>(last), [&](int n) { return n == sizes[first]; });
  };
  if (plan.virtual_stages == 1 && equal(1, stages - 1)) {
    const bool last = !equal(1, stages);
    if (!last || !equal(0, stages - 1))
      arguments.push_back("--decoder-first-pipeline-num-layers " + std::to_string(sizes.front()));
    if (last) arguments.push_back("--decoder-last-pipeline-num-layers " + std::to_string(sizes.back()));
  } else {
    std::string drawing = "E";
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0) drawing += "|";
      if (sizes[i] > 0) drawing += sizes[i] == 1 ? "t" : "t*" + std::to_string(sizes[i]);
    }
    arguments.push_back("--pipeline-model-parallel-layout '" + drawing + "L'");
  }
}

/// Recomputation: of all layers, of modules of all layers, or of the first layers of every stage. Of norms and
/// activations Megatron-LM has the module `layernorm`, norms that are modules of their own; those in front of a linear
/// layer of Transformer Engine, both of a block without experts, are parts of that. Products of 8 bits refuse it with
/// versions of Transformer Engine before 2.6.
inline void megatron_recompute(const Plan& plan, std::vector<std::string>& arguments, Exported& out) {
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
      arguments.push_back("--recompute-granularity selective");
      arguments.push_back(std::string("--recompute-modules") + (core ? " core_attn" : "") +
                          (norms ? " layernorm" : ""));
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
  arguments.push_back("--recompute-granularity full");
  if (kinds.size() == 1) {
    arguments.push_back("--recompute-method uniform");
    arguments.push_back("--recompute-num-layers 1");
    return;
  }
  const auto kind_of = [&](int layer) { return recomputed(plan.layers[static_cast<std::size_t>(layer)]); };
  std::vector<LayerRange> stages;
  for (int i = 0; i < static_cast<int>(plan.stages.size()) * plan.virtual_stages; ++i)
    stages.push_back(virtual_stage_layers(plan, i));
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
  arguments.push_back("--recompute-method block");
  arguments.push_back("--recompute-num-layers " + std::to_string(each));
  if (!exact)
    out.lacks(differs + "Megatron-LM recomputes the first layers of every stage, as many in each, and " +
              std::to_string(each) + " is written");
}

/// How the context ranks of every layer exchange what they need, ` p2p` (ring) or ` a2a` (Ulysses); one word when all
/// do it alike.
inline std::string megatron_exchanges(const Plan& plan, const StrategySpec& spec, Plan& job) {
  std::string all;
  bool alike = true;
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    const StrategySpec& own = plan.layers[i].context > 1 ? plan.layers[i] : spec;
    const std::string word = own.uses_ring() ? " p2p" : " a2a";
    alike = alike && (all.empty() || all.ends_with(word));
    all += word;
    if (spec.sequence != SequenceKind::megatron)
      job.layers[i].sequence = own.uses_ring() ? SequenceKind::ring : SequenceKind::ulysses;
  }
  return alike ? all.substr(0, 4) : all;
}

inline void megatron_zero(const StrategySpec& spec, std::vector<std::string>& arguments) {
  if (spec.zero >= 1) arguments.push_back("--use-distributed-optimizer");
  if (spec.zero < 2) return;
  arguments.push_back("--use-megatron-fsdp");
  arguments.push_back(std::string("--data-parallel-sharding-strategy ") +
                      (spec.zero == 2 ? "optim_grads" : "optim_grads_params"));
  arguments.push_back("--ckpt-format fsdp_dtensor");
}

}  // namespace detail

/// The arguments as a shell file that sets the array PLAN_ARGS; comments say what they leave out.
inline Exported export_megatron(const Plan& plan) {
  Exported out;
  const std::string target = "Megatron-LM";
  std::vector<std::string> arguments;
  const auto add = [&](const std::string& name, auto value) {
    arguments.push_back(name + " " + std::to_string(value));
  };

  const StrategySpec spec = detail::one_for_all(plan, target, out, true);

  add("--num-layers", plan.layers.size());
  add("--seq-length", plan.sequence_length);
  add("--micro-batch-size", plan.microbatch() / spec.data);
  add("--global-batch-size", plan.global_batch);
  if (plan.precision != Precision::fp32) arguments.push_back("--bf16");
  if (plan.precision == Precision::fp8) {
    arguments.push_back("--fp8-format hybrid");
    arguments.push_back("--fp8-recipe tensorwise");
  }
  add("--tensor-model-parallel-size", spec.tensor);
  if (spec.sequence == SequenceKind::megatron) arguments.push_back("--sequence-parallel");
  if (spec.context > 1) {
    add("--context-parallel-size", spec.context);
    arguments.push_back("--cp-comm-type" + detail::megatron_exchanges(plan, spec, *out.job));
  }
  if (spec.expert > 1) add("--expert-model-parallel-size", spec.expert);
  add("--pipeline-model-parallel-size", plan.stages.size());
  if (plan.stages.size() > 1) {
    detail::megatron_stages(plan, arguments);
    if (plan.schedule == ScheduleKind::gpipe || plan.schedule == ScheduleKind::zb_h1) {
      out.lacks(std::string("the schedule ") + name_of(plan.schedule) +
                ": Megatron-LM runs 1f1b, or interleaved with virtual stages");
      out.job->schedule = ScheduleKind::one_f_one_b;
    }
  }
  detail::megatron_zero(spec, arguments);
  if (plan.moments != Precision::fp32 && spec.zero >= 1) {
    arguments.push_back("--use-precision-aware-optimizer");
    arguments.push_back(std::string("--exp-avg-dtype ") + name_of(plan.moments));
    arguments.push_back(std::string("--exp-avg-sq-dtype ") + name_of(plan.moments));
  } else {
    detail::tell_moments(plan, target + " without its distributed optimizer", out);
  }
  detail::megatron_recompute(plan, arguments, out);
  if (spec.zero >= 2)
    out.elsewhere("the environment has CUDA_DEVICE_MAX_CONNECTIONS unset or above 1: FSDP refuses 1");
  else if (spec.tensor > 1 || spec.context > 1)
    out.elsewhere("the environment has CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell");

  out.text = "# Megatron-LM arguments of " + detail::export_title(plan) + ". Made by `galvatron export`.\n" +
             "#   . ./FILE && torchrun ... pretrain_gpt.py \"${PLAN_ARGS[@]}\" ...   (with the model's shape, data and "
             "optimizer)\n" +
             detail::export_comments(out, "#") + "PLAN_ARGS=(\n";
  for (const std::string& argument : arguments) out.text += "  " + argument + "\n";
  out.text += ")\n";
  return out;
}

}  // namespace galvatron
