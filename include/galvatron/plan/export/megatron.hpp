// A plan as arguments of Megatron-LM.
//
// Source: megatron/training/arguments.py, megatron/core/model_parallel_config.py and
// megatron/core/transformer/transformer_config.py of NVIDIA/Megatron-LM, state of August 2026.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <galvatron/plan/export/exported.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

/// Where the stages begin, if they are not equally long: the first and last stage, or a drawing of all of them,
/// `'Et*4|t*3|t*3|t*2L'`.
inline void megatron_stages(const Plan& plan, std::vector<std::string>& arguments) {
  const std::vector<int> sizes = chunk_sizes(plan);
  const auto stages = plan.stages.size();
  const bool even = std::all_of(sizes.begin(), sizes.end(), [&](int n) { return n == sizes.front(); });
  if (plan.virtual_stages > 1 && even)
    arguments.push_back("--num-layers-per-virtual-pipeline-stage " + std::to_string(sizes.front()));
  if (even) return;
  const auto equal = [&](std::size_t first, std::size_t last) {
    return first >= last ||
           std::all_of(sizes.begin() + static_cast<std::ptrdiff_t>(first),
                       sizes.begin() + static_cast<std::ptrdiff_t>(last), [&](int n) { return n == sizes[first]; });
  };
  const std::string first = "--decoder-first-pipeline-num-layers " + std::to_string(sizes.front());
  const std::string last = "--decoder-last-pipeline-num-layers " + std::to_string(sizes.back());
  if (plan.virtual_stages == 1 && equal(1, stages)) {
    arguments.push_back(first);
  } else if (plan.virtual_stages == 1 && equal(0, stages - 1)) {
    arguments.push_back(last);
  } else if (plan.virtual_stages == 1 && equal(1, stages - 1)) {
    arguments.push_back(first);
    arguments.push_back(last);
  } else {
    std::string drawing = "E";
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0) drawing += "|";
      if (sizes[i] > 0) drawing += sizes[i] == 1 ? "t" : "t*" + std::to_string(sizes[i]);
    }
    arguments.push_back("--pipeline-model-parallel-layout '" + drawing + "L'");
  }
}

/// Recomputation: of all layers, of the attention core of all layers, or of the first layers of every stage.
inline void megatron_recompute(const Plan& plan, std::vector<std::string>& arguments, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  if (kinds.size() == 1) {
    const RecomputeKind kind = recomputed(plan.layers.front());
    if (kind == RecomputeKind::none) return;
    arguments.push_back(std::string("--recompute-granularity ") + name_of(kind));
    if (kind == RecomputeKind::full) {
      arguments.push_back("--recompute-method uniform");
      arguments.push_back("--recompute-num-layers 1");
    }
    return;
  }
  const bool any_full = std::any_of(plan.layers.begin(), plan.layers.end(),
                                    [](const StrategySpec& s) { return s.recompute == RecomputeKind::full; });
  const std::string differs = "recomputation differs from layer to layer, " + by_layer_text(kinds) + ": ";
  if (!any_full) {
    arguments.push_back("--recompute-granularity selective");
    out.not_expressed.push_back(differs +
                                "Megatron-LM recomputes the attention core of all layers or of none, and all "
                                "is written");
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
    for (int i = stage.first; i <= stage.last; ++i)
      if (kind_of(i) != (i - stage.first < each ? RecomputeKind::full : RecomputeKind::none)) exact = false;
  arguments.push_back("--recompute-granularity full");
  arguments.push_back("--recompute-method block");
  arguments.push_back("--recompute-num-layers " + std::to_string(each));
  if (!exact)
    out.not_expressed.push_back(differs +
                                "Megatron-LM recomputes the first layers of every stage, as many in each, and " +
                                std::to_string(each) + " is written, so that no stage keeps more than planned");
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

  // Megatron-LM chooses between Ulysses and ring in each layer: for the degrees they are one kind.
  Plan same = plan;
  std::string exchanges;
  bool mixed = false;
  for (StrategySpec& layer : same.layers) {
    exchanges += layer.uses_ring() ? " p2p" : " a2a";
    if (layer.context > 1 && layer.uses_ring() != plan.layers.front().uses_ring()) mixed = true;
    if (layer.sequence == SequenceKind::ring) layer.sequence = SequenceKind::ulysses;
  }
  for (StrategySpec* end : {&same.embedding, &same.head})
    if (end->sequence == SequenceKind::ring) end->sequence = SequenceKind::ulysses;
  const StrategySpec spec = detail::one_for_all(same, target, out);

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
    arguments.push_back("--cp-comm-type" + (mixed ? exchanges : exchanges.substr(0, 4)));
  }
  if (spec.expert > 1) add("--expert-model-parallel-size", spec.expert);
  add("--pipeline-model-parallel-size", plan.stages.size());
  if (plan.stages.size() > 1) {
    detail::megatron_stages(plan, arguments);
    if (plan.schedule == ScheduleKind::gpipe || plan.schedule == ScheduleKind::zb_h1)
      out.not_expressed.push_back(std::string("the schedule ") + name_of(plan.schedule) +
                                  ": Megatron-LM runs 1f1b, or interleaved with virtual stages");
  }
  detail::megatron_zero(spec, arguments);
  if (plan.moments != Precision::fp32 && spec.zero >= 1) {
    arguments.push_back("--use-precision-aware-optimizer");
    arguments.push_back(std::string("--exp-avg-dtype ") + name_of(plan.moments));
    arguments.push_back(std::string("--exp-avg-sq-dtype ") + name_of(plan.moments));
  } else {
    detail::tell_moments(plan, target + " without its distributed optimizer", out);
  }
  detail::tell_wider_sharding(spec, target, out);
  detail::megatron_recompute(plan, arguments, out);
  if ((spec.tensor > 1 || spec.context > 1) && spec.zero < 2)
    out.set_elsewhere.push_back("the environment has CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell");

  out.text = "# Megatron-LM arguments of " + detail::export_title(plan) + ". Made by `galvatron export`.\n" +
             "#   . ./FILE && torchrun ... pretrain_gpt.py \"${PLAN_ARGS[@]}\" ...   (with the model's shape, data and "
             "optimizer)\n" +
             detail::export_comments(out, "#") + "PLAN_ARGS=(\n";
  for (const std::string& argument : arguments) out.text += "  " + argument + "\n";
  out.text += ")\n";
  return out;
}

}  // namespace galvatron
