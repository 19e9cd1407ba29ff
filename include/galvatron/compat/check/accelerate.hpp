// A YAML file of Hugging Face Accelerate with FSDP, or of arguments of transformers' Trainer, as a TrainerJob.
//
// Source: accelerate's docs/source/usage_guides/fsdp.md of release 1.10, and transformers' training_args.py of 4.57.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include <galvatron/compat/check/job.hpp>
#include <galvatron/compat/check/settings.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/cost/trainer_json.hpp>

namespace galvatron {

namespace detail {

inline constexpr std::string_view accelerate_ignored[] = {"compute_environment",
                                                          "debug",
                                                          "distributed_type",
                                                          "downcast_bf16",
                                                          "machine_rank",
                                                          "main_training_function",
                                                          "main_process_ip",
                                                          "main_process_port",
                                                          "rdzv_backend",
                                                          "same_network",
                                                          "tpu_env",
                                                          "tpu_use_cluster",
                                                          "tpu_use_sudo",
                                                          "use_cpu",
                                                          "enable_cpu_affinity",
                                                          "fsdp_config.fsdp_auto_wrap_policy",
                                                          "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
                                                          "fsdp_config.fsdp_min_num_params",
                                                          "fsdp_config.fsdp_cpu_ram_efficient_loading",
                                                          "fsdp_config.fsdp_state_dict_type",
                                                          "fsdp_config.fsdp_sync_module_states",
                                                          "fsdp_config.fsdp_use_orig_params",
                                                          "fsdp_config.fsdp_version",
                                                          "fsdp_config.fsdp_backward_prefetch",
                                                          "fsdp_config.fsdp_backward_prefetch_policy",
                                                          "fsdp_config.limit_all_gathers",
                                                          "fsdp_config.min_num_params",
                                                          "fsdp_config.transformer_layer_cls_to_wrap",
                                                          "fsdp_config.backward_prefetch",
                                                          "fsdp_config.use_orig_params",
                                                          "fsdp_config.sync_module_states",
                                                          "fsdp_config.cpu_ram_efficient_loading",
                                                          "fsdp_config.xla",
                                                          "fsdp_config.fsdp_forward_prefetch",
                                                          "fsdp_config.forward_prefetch",
                                                          "fsdp_config.fsdp_state_dict_type_check",
                                                          "model_name_or_path",
                                                          "dataset_name",
                                                          "dataset_config",
                                                          "output_dir",
                                                          "overwrite_output_dir",
                                                          "num_train_epochs",
                                                          "max_steps",
                                                          "learning_rate",
                                                          "lr_scheduler_type",
                                                          "lr_scheduler_kwargs.",
                                                          "warmup_ratio",
                                                          "warmup_steps",
                                                          "weight_decay",
                                                          "adam_beta1",
                                                          "adam_beta2",
                                                          "adam_epsilon",
                                                          "max_grad_norm",
                                                          "logging_steps",
                                                          "logging_strategy",
                                                          "logging_dir",
                                                          "report_to",
                                                          "save_strategy",
                                                          "save_steps",
                                                          "save_total_limit",
                                                          "save_only_model",
                                                          "seed",
                                                          "data_seed",
                                                          "eval_strategy",
                                                          "evaluation_strategy",
                                                          "eval_steps",
                                                          "per_device_eval_batch_size",
                                                          "push_to_hub",
                                                          "hub_model_id",
                                                          "hub_strategy",
                                                          "dataloader_num_workers",
                                                          "ddp_timeout",
                                                          "run_name",
                                                          "remove_unused_columns",
                                                          "do_eval"};

}  // namespace detail

/// The job of an Accelerate file, from its value. Errors (usage): values of a wrong kind.
inline Result<TrainerJob> accelerate_job(const nlohmann::json& value) {
  Settings s(value);
  TrainerJob job;
  job.kind = ConfigKind::accelerate;
  const bool compiles = s.flag("torch_compile") || s.has("dynamo_config.dynamo_backend") || s.has("dynamo_backend");
  (void)s.has("dynamo_config.dynamo_mode");
  (void)s.has("dynamo_config.dynamo_use_dynamic");
  (void)s.has("dynamo_config.dynamo_use_fullgraph");
  job.trainer = *cost::find_trainer(compiles ? "pytorch-fsdp-compiled" : "pytorch-fsdp");
  job.devices = s.number("num_processes", 0);
  (void)s.number("num_machines", 1);
  const std::string fsdp = s.text("fsdp");
  std::string sharding = s.text("fsdp_config.fsdp_sharding_strategy", "");
  if (sharding.empty()) sharding = fsdp.empty() ? "FULL_SHARD" : fsdp;
  // Older releases number the strategies.
  const auto says = [&](const char* word, const char* lower, const char* number) {
    return sharding.find(word) != std::string::npos || sharding.find(lower) != std::string::npos || sharding == number;
  };
  job.zero = says("SHARD_GRAD_OP", "shard_grad_op", "2") ? 2 : says("NO_SHARD", "no_shard", "3") ? 0 : 3;
  if (says("HYBRID", "hybrid", "4"))
    job.unknown.emplace_back("fsdp_sharding_strategy HYBRID (shards are priced as over all data ranks)");
  const std::string reshard = s.text("fsdp_config.fsdp_reshard_after_forward", "");
  if (reshard == "false" || reshard == "SHARD_GRAD_OP") job.zero = 2;
  if (reshard == "NO_SHARD") job.zero = 0;
  if (s.flag("fsdp_config.fsdp_offload_params") || fsdp.find("offload") != std::string::npos)
    job.unknown.emplace_back("fsdp_offload_params (what is offloaded is priced as on the device)");
  const bool recomputes = s.flag("fsdp_config.fsdp_activation_checkpointing",
                                 s.flag("fsdp_config.activation_checkpointing", s.flag("gradient_checkpointing")));
  (void)s.has("gradient_checkpointing_kwargs.use_reentrant");
  if (recomputes) job.recompute = RecomputeKind::full;
  const std::string mixed = s.text("mixed_precision", "");
  const bool bf16 = mixed == "bf16" || s.flag("bf16");
  const bool fp16 = mixed == "fp16" || s.flag("fp16");
  if (mixed == "fp8")
    job.precision = Precision::fp8;
  else if (!bf16 && !fp16)
    job.precision = Precision::fp32;
  (void)s.flag("tf32");
  if (s.text("torch_dtype") == "bfloat16")
    job.assume("parameters that are loaded in bf16 are priced with an fp32 master, which FSDP then does not have");
  job.samples = s.number("per_device_train_batch_size", 0);
  if (job.samples == 0) {
    job.samples = 1;
    job.assume("per_device_train_batch_size is not said: one sample");
  }
  job.accumulation = std::max<std::int64_t>(s.number("gradient_accumulation_steps", 1), 1);
  job.sequence = s.number("max_seq_length", s.number("max_length", s.number("block_size", 0)));
  const std::string attention = s.text("attn_implementation", "sdpa");
  if (attention == "eager") {
    job.trainer.traits.attention = op::AttentionKernel::unfused;
    job.trainer.traits.passes.fused_attention = false;
  }
  const std::string optimizer = s.text("optim", "adamw_torch");
  if (optimizer.find("adamw_torch") == std::string::npos)
    job.unknown.push_back("optim " + detail::one_line(optimizer, 40) + " (priced as AdamW)");
  if (s.flag("use_liger_kernel")) {
    job.trainer.traits.norm_passes = job.trainer.traits.activation_passes = job.trainer.traits.rotary_passes = 1;
    job.trainer.traits.logit_bytes = 0;
    job.trainer.traits.passes.whole_logits = false;
  }
  if (s.flag("packing")) job.assume("packed documents are priced as samples of one document");
  if (!s.bad().empty()) return usage_error(s.bad());
  s.sort_rest(job, detail::accelerate_ignored);
  return job;
}

}  // namespace galvatron
