// A plan as a DeepSpeed configuration, in JSON.
//
// Source: docs/_pages/config-json.md, docs/code-docs/source/training.rst (AutoTP), deepspeed/__init__.py,
// deepspeed/runtime/{config,engine}.py, deepspeed/runtime/pipe/engine.py and deepspeed/utils/groups.py of
// deepspeedai/DeepSpeed 0.19.8; of experts deepspeed/moe/layer.py and
// deepspeed/module_inject/auto_ep_{config,folding}.py of August 2026.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>

namespace galvatron {

namespace detail {

/// Stages are the program's; beside them ZeRO stays below 2.
inline void deepspeed_pipeline(const Plan& plan, StrategySpec& spec, Exported& out) {
  const auto stages = plan.stages.size();
  if (spec.zero >= 2) {
    out.lacks("ZeRO ", spec.zero, " with a pipeline: DeepSpeed refuses it, and stage 1 is written");
    spec.zero = 1;
  }
  if (plan.schedule != ScheduleKind::one_f_one_b)
    out.lacks("the schedule ", name_of(plan.schedule), ": DeepSpeed's pipeline runs one forward, one backward (1f1b)");
  const std::vector<LayerRange> chunks = chunks_of(plan);
  out.elsewhere("the pipeline is an argument of the program: PipelineModule(num_stages=", stages, ")");
  out.job->schedule = ScheduleKind::one_f_one_b;
  out.job->virtual_stages = 1;
  if (std::ranges::any_of(chunks, [&](const LayerRange& chunk) { return size_of(chunk) != size_of(chunks.front()); })) {
    const auto layers = [](const PlanStage& stage) { return stage.last_layer - stage.first_layer + 1; };
    out.lacks("stages of ", joined(plan.stages, ", ", layers),
              " layers: PipelineModule cuts evenly, by parameters or by the names of layers");
    out.job->stages =
        even_stages(static_cast<int>(plan.layers.size()), static_cast<int>(stages), 1, plan.stages.front().rank_count);
  }
  if (spec.tensor > 1)
    out.elsewhere("tensor parallelism beside a pipeline is the program's: PipeModelDataParallelTopology(num_pp=",
                  stages, ", num_mp=", spec.tensor, ", num_dp=", spec.data, ") with layers that are cut");
}

/// Recomputation of layers and of attention cores is the model's; a pipeline has that of all layers.
inline void deepspeed_recompute(const Plan& plan, nlohmann::ordered_json& config, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  const bool nothing = kinds.size() == 1 && recomputed(plan.layers.front()) == RecomputeKind::none;
  for (StrategySpec& layer : out.job->layers) layer.recompute = kept_but(plan, layer.recompute);
  if (plan.stages.size() > 1 && !nothing) {
    config["pipeline"]["activation_checkpoint_interval"] = 1;
    for (StrategySpec& layer : out.job->layers) layer.recompute = RecomputeKind::full;
    if (kinds.size() > 1 || plan.layers.front().recompute == RecomputeKind::selective)
      out.lacks("recomputation ", by_layer_text(kinds),
                ": a DeepSpeed pipeline recomputes every layer or none, and every layer is written");
    return;
  }
  tell_outputs(plan, "a model in PyTorch", out);
  if (!nothing)
    out.elsewhere("recomputation is the model's, which calls a checkpoint function around what is computed again: " +
                  by_layer_text(kinds));
}

/// Experts are spread by AutoEP, which takes the place of the experts of a model of Hugging Face, or by layers of the
/// program. What DeepSpeed cannot spread stays whole on every rank, or cut over tensor ranks.
inline void deepspeed_spread_experts(const Plan& plan, StrategySpec& spec, nlohmann::ordered_json& config,
                                     Exported& out) {
  if (!spec.exchanges_tokens()) return;
  const int stages = static_cast<int>(plan.stages.size());
  switch (deepspeed_experts(spec, stages)) {
    case DeepspeedExperts::automatic:
      config["expert_parallel"] = {{"enabled", true}, {"autoep_size", spec.expert}};
      out.elsewhere(
          "expert_parallel is for models of Hugging Face, whose preset_model it may name; layers of the program are "
          "deepspeed.moe.layer.MoE(ep_size=",
          spec.expert, ") instead");
      return;
    case DeepspeedExperts::layers:
      out.elsewhere("expert parallelism is the model's: deepspeed.moe.layer.MoE(ep_size=", spec.expert,
                    ", enable_expert_tensor_parallelism=True)");
      return;
    case DeepspeedExperts::no:
      break;
  }
  out.lacks("experts whose degrees are ", expert_text(spec), spec.tensor > 1 ? text_of(" beside tp", spec.tensor) : "",
            spec.context > 1 ? text_of(" and cp", spec.context) : "", spec.zero == 3 ? " with ZeRO 3" : "",
            stages > 1 ? " in a pipeline" : "",
            ": DeepSpeed spreads whole experts over a stage (beside tensor ranks without a pipeline and ZeRO 3, beside "
            "context ranks without ZeRO 3), or with layers of its own over data ranks without ZeRO 3, and no spread is "
            "written");
  spec = spec.without_experts();
}

}  // namespace detail

/// The keys of a configuration that a plan decides. JSON has no comments: what they leave out is in the result alone.
/// Errors (usage): context ranks beside a pipeline or beside tensor ranks, which DeepSpeed cannot run.
/// @param model  what the plan is for, if known
inline Result<Exported> export_deepspeed(const Plan& plan, const ModelSpec* model = nullptr) {
  Exported out;
  const std::string target = "DeepSpeed";
  StrategySpec spec = detail::one_for_all(plan, target, out, model);
  const bool pipeline = plan.stages.size() > 1;
  if (spec.context > 1 && (pipeline || spec.tensor > 1))
    return usage_error(text_of("DeepSpeed cannot run this plan: it splits sequences over ", spec.context,
                               " ranks beside ",
                               pipeline ? "a pipeline, which has data and tensor ranks there"
                                        : "tensor ranks, and DeepSpeed has a mesh of data and sequence ranks",
                               "; plan with --space uniform,deepspeed"));
  nlohmann::ordered_json config;
  // Beside AutoTP the batch is checked as if all ranks were data ranks.
  const bool automatic_tensor = spec.tensor > 1 && !pipeline;
  if (!automatic_tensor) config["train_batch_size"] = plan.global_batch;
  config["train_micro_batch_size_per_gpu"] = plan.microbatch() / spec.data;
  config["gradient_accumulation_steps"] = plan.microbatches;
  config["bf16"] = {{"enabled", plan.precision != Precision::fp32}};
  if (plan.precision == Precision::fp8) {
    out.job->precision = Precision::bf16;
    out.lacks(
        "8-bit products: DeepSpeed's configuration has none, and bf16 is written; the model can bring them, as layers "
        "of Transformer Engine do");
  }
  if (pipeline) detail::deepspeed_pipeline(plan, spec, out);
  config["zero_optimization"] = {{"stage", spec.zero}};
  if (automatic_tensor) {
    config["tensor_parallel"] = {{"autotp_size", spec.tensor}};
    out.elsewhere(
        "train_batch_size is left out, because DeepSpeed checks it as if tensor ranks were data ranks: a step has ",
        plan.global_batch, " samples, and DeepSpeed reports ", plan.global_batch * spec.tensor);
  }
  if (spec.cuts_over_tensor())
    out.lacks("Megatron sequence parallelism: DeepSpeed's tensor parallelism keeps whole sequences");
  if (spec.context > 1) {
    // The one is ignored without the other.
    config["data_parallel_size"] = spec.data;
    config["sequence_parallel_size"] = spec.context;
    if (spec.uses_ring()) out.lacks("ring attention: DeepSpeed splits sequences as Ulysses does, which is written");
    out.elsewhere(
        "Ulysses is the model's and the program's: attention goes through UlyssesSPAttentionHF or "
        "DistributedAttention, and deepspeed.initialize gets "
        "mpu=deepspeed.runtime.sequence_parallel.parallel_state_sp, without which ZeRO shards and gradients are summed "
        "over the ",
        spec.data, " data ranks alone");
  }
  spec.sequence = spec.context > 1 ? SequenceKind::ulysses : SequenceKind::none;
  detail::deepspeed_spread_experts(plan, spec, config, out);
  detail::give_all(*out.job, spec, model);
  detail::tell_moments(plan, target, out);
  detail::deepspeed_recompute(plan, config, out);
  out.elsewhere("a sequence of ", plan.sequence_length, " tokens is the program's");
  out.text = config.dump(2) + "\n";
  return out;
}

}  // namespace galvatron
