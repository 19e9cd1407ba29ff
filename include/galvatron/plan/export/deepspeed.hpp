// A plan as a DeepSpeed configuration, in JSON.
//
// Source: docs/_pages/config-json.md, docs/code-docs/source/training.rst (AutoTP), deepspeed/runtime/config.py and
// deepspeed/runtime/pipe/engine.py of deepspeedai/DeepSpeed, state of August 2026.
#pragma once

#include <algorithm>
#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/plan/export/exported.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

/// Stages are the program's; beside them ZeRO stays below 2.
inline void deepspeed_pipeline(const Plan& plan, StrategySpec& spec, Exported& out) {
  const auto stages = plan.stages.size();
  if (spec.zero >= 2) {
    out.not_expressed.push_back("ZeRO " + std::to_string(spec.zero) +
                                " with a pipeline: DeepSpeed refuses it, and stage 1 is written");
    spec.zero = 1;
  }
  if (plan.schedule != ScheduleKind::one_f_one_b)
    out.not_expressed.push_back(std::string("the schedule ") + name_of(plan.schedule) +
                                ": DeepSpeed's pipeline runs one forward, one backward (1f1b)");
  std::string sizes;
  const auto chunks = chunk_sizes(plan);
  for (const PlanStage& stage : plan.stages)
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(stage.last_layer - stage.first_layer + 1);
  out.set_elsewhere.push_back(
      "the pipeline is an argument of the program: PipelineModule(num_stages=" + std::to_string(stages) + ")");
  if (std::any_of(chunks.begin(), chunks.end(), [&](int n) { return n != chunks.front(); }))
    out.not_expressed.push_back("stages of " + sizes +
                                " layers: PipelineModule cuts evenly, by parameters or by the names of layers");
  if (spec.tensor > 1)
    out.set_elsewhere.push_back(
        "tensor parallelism beside a pipeline is the program's: PipeModelDataParallelTopology(num_pp=" +
        std::to_string(stages) + ", num_mp=" + std::to_string(spec.tensor) + ", num_dp=" + std::to_string(spec.data) +
        ") with layers that are cut");
}

inline void deepspeed_recompute(const Plan& plan, nlohmann::ordered_json& config, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  const bool nothing = kinds.size() == 1 && recomputed(plan.layers.front()) == RecomputeKind::none;
  if (nothing) return;
  if (plan.stages.size() > 1) {
    config["pipeline"]["activation_checkpoint_interval"] = 1;
    if (kinds.size() > 1 || plan.layers.front().recompute == RecomputeKind::selective)
      out.not_expressed.push_back("recomputation " + by_layer_text(kinds) +
                                  ": a DeepSpeed pipeline recomputes every layer or none, and every layer is written");
    return;
  }
  out.set_elsewhere.push_back(
      "recomputation is the model's, which calls a checkpoint function around what is computed "
      "again: " +
      by_layer_text(kinds));
}

}  // namespace detail

/// The keys of a configuration that a plan decides. JSON has no comments: what they leave out is in the result alone.
inline Exported export_deepspeed(const Plan& plan) {
  Exported out;
  const std::string target = "DeepSpeed";
  StrategySpec spec = detail::one_for_all(plan, target, out);
  nlohmann::ordered_json config;
  config["train_batch_size"] = plan.global_batch;
  config["train_micro_batch_size_per_gpu"] = plan.microbatch() / spec.data;
  config["gradient_accumulation_steps"] = plan.microbatches;
  config["bf16"] = {{"enabled", plan.precision != Precision::fp32}};
  if (plan.precision == Precision::fp8)
    out.not_expressed.push_back(
        "8-bit products: DeepSpeed's configuration has none, and bf16 is written; the model can bring them, as layers "
        "of "
        "Transformer Engine do");
  const bool pipeline = plan.stages.size() > 1;
  if (pipeline) detail::deepspeed_pipeline(plan, spec, out);
  config["zero_optimization"] = {{"stage", spec.zero}};
  if (spec.tensor > 1 && !pipeline) config["tensor_parallel"] = {{"autotp_size", spec.tensor}};
  if (spec.sequence == SequenceKind::megatron)
    out.not_expressed.push_back("Megatron sequence parallelism: DeepSpeed's tensor parallelism keeps whole sequences");
  if (spec.context > 1) {
    config["sequence_parallel_size"] = spec.context;
    if (spec.uses_ring())
      out.not_expressed.push_back("ring attention: DeepSpeed splits sequences as Ulysses does, which is written");
    if (pipeline)
      out.not_expressed.push_back("sequences split beside a pipeline: DeepSpeed's pipeline has data and tensor ranks");
  }
  detail::tell_wider_sharding(spec, target, out);
  detail::tell_moments(plan, target, out);
  if (spec.expert > 1)
    out.set_elsewhere.push_back(
        "expert parallelism is the model's: deepspeed.moe.layer.MoE(ep_size=" + std::to_string(spec.expert) + ")");
  detail::deepspeed_recompute(plan, config, out);
  out.set_elsewhere.push_back("a sequence of " + std::to_string(plan.sequence_length) + " tokens is the program's");
  out.text = config.dump(2) + "\n";
  return out;
}

}  // namespace galvatron
