// A plan as a file of Hugging Face Accelerate, in YAML, with FSDP2 and its ParallelismConfig.
//
// Source: accelerate/commands/config/{cluster,config_args}.py, accelerate/parallelism_config.py and the FSDP plugin of
// accelerate/utils/dataclasses.py of accelerate 1.15.0.
#pragma once

#include <algorithm>
#include <string>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>

namespace galvatron {

namespace detail {

/// FSDP shards over data and context ranks; without ZeRO replicas stand alone, as DDP.
inline void accelerate_sharding(StrategySpec& spec, Exported& out) {
  if (spec.shards() > 1 && spec.zero == 0 && (spec.tensor > 1 || spec.context > 1)) {
    out.lacks("data parallelism without ZeRO beside ", spec.tensor > 1 ? "tensor" : "context",
              " parallelism: Accelerate then shards with FSDP, over data and "
              "context ranks, and what is nearest to ZeRO 2 is written");
    spec.zero = 2;
  }
  if (spec.zero == 1) {
    out.lacks("ZeRO 1: FSDP shards gradients too, and what is nearest to ZeRO 2 is written");
    spec.zero = 2;
  }
}

/// Whether blocks are recomputed as a whole.
inline bool accelerate_recompute(const Plan& plan, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  const RecomputeKind kind = recomputed(plan.layers.front());
  if (kinds.size() == 1 && kind != RecomputeKind::selective) {
    for (StrategySpec& layer : out.job->layers) layer.recompute = kept_but(plan, layer.recompute);
    tell_outputs(plan, "a model in PyTorch", out);
    return kind == RecomputeKind::full;
  }
  for (StrategySpec& layer : out.job->layers) layer.recompute = RecomputeKind::full;
  out.lacks("recomputation ", by_layer_text(kinds),
            ": Accelerate recomputes every block or none, and every block is written, so that no rank keeps more than "
            "planned");
  return true;
}

}  // namespace detail

/// The file; comments say what it leaves out. Errors (usage): a pipeline, which Accelerate does not train.
/// @param model  what the plan is for, if known
inline Result<Exported> export_accelerate(const Plan& plan, const ModelSpec* model = nullptr) {
  if (plan.stages.size() > 1)
    return usage_error(text_of("Accelerate cannot run this plan: it has a pipeline of ", plan.stages.size(),
                               " stages, and FSDP trains without one; plan with --space uniform,accelerate"));
  Exported out;
  const std::string target = "Accelerate";
  StrategySpec spec = detail::one_for_all(plan, target, out, model);
  if (spec.exchanges_tokens()) {
    out.lacks("experts whose degrees are ", detail::expert_text(spec), ": Accelerate spreads no experts");
    spec = spec.without_experts();
  }
  if (spec.cuts_over_tensor())
    out.lacks("Megatron sequence parallelism: the tensor parallelism of transformers keeps whole sequences");
  if (spec.context > 1 && spec.exchanges_heads())
    out.lacks("Ulysses: FSDP's context parallelism passes keys and values around, as ring attention does");
  spec.sequence = spec.context > 1 ? SequenceKind::ring : SequenceKind::none;
  detail::accelerate_sharding(spec, out);
  detail::give_all(*out.job, spec, model);
  const bool shards = spec.zero >= 2 && spec.shards() > 1;
  if (!shards && spec.tensor > 1)
    out.lacks("tensor parallelism without data ranks: Accelerate shards with FSDP beside tensor ranks");
  const bool recomputes = detail::accelerate_recompute(plan, out);
  detail::tell_moments(plan, target, out);
  out.elsewhere("the batch is the program's: ", plan.microbatch() / spec.data, " samples of ", plan.sequence_length,
                " tokens on a data rank and gradients of ", plan.microbatches,
                plan.microbatches == 1 ? " micro-batch" : " micro-batches",
                " in a step, as per_device_train_batch_size and gradient_accumulation_steps of transformers' Trainer");
  out.elsewhere("num_machines, machine_rank and the address of the first machine are the launch's");
  if (recomputes && !shards) out.elsewhere("recomputation is the model's: gradient_checkpointing_enable()");
  if (spec.tensor > 1) out.elsewhere("the model is loaded with tp_plan=\"auto\", for its tensor ranks");
  if (plan.precision == Precision::fp8) out.elsewhere("fp8_config names the library of 8-bit products");
  const char* const precision = plan.precision == Precision::fp8    ? "fp8"
                                : plan.precision == Precision::bf16 ? "bf16"
                                                                    : "'no'";
  const auto word = [](bool value) { return value ? "true" : "false"; };
  out.text = text_of("# Accelerate 1.15 file of ", detail::export_title(plan), ". Made by `galvatron export`.\n",
                     detail::export_comments(out), "compute_environment: LOCAL_MACHINE\ndistributed_type: ",
                     shards             ? "FSDP"
                     : plan.ranks() > 1 ? "MULTI_GPU"
                                        : "'NO'",
                     "\nmixed_precision: ", precision, "\nnum_processes: ", plan.ranks(), "\n");
  if (shards)
    out.text += text_of(
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: ", word(spec.zero == 3),
        "\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  fsdp_activation_checkpointing: ", word(recomputes),
        "\n  fsdp_offload_params: false\n  fsdp_state_dict_type: SHARDED_STATE_DICT\nparallelism_config:\n  "
        "parallelism_config_dp_replicate_size: 1\n  parallelism_config_dp_shard_size: ",
        spec.data, "\n  parallelism_config_tp_size: ", spec.tensor, "\n  parallelism_config_cp_size: ", spec.context,
        spec.context > 1 ? "\n  parallelism_config_cp_comm_strategy: alltoall\n" : "\n");
  return out;
}

}  // namespace galvatron
