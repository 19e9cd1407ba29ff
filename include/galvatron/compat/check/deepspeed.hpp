// A configuration of DeepSpeed as a TrainerJob. It has no model: that comes beside it.
//
// Source: www.deepspeed.ai/docs/config-json and deepspeed/runtime/config.py of release 0.18.
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

inline constexpr std::string_view deepspeed_ignored[] = {"optimizer.",
                                                         "scheduler.",
                                                         "steps_per_print",
                                                         "wall_clock_breakdown",
                                                         "dump_state",
                                                         "gradient_clipping",
                                                         "prescale_gradients",
                                                         "gradient_predivide_factor",
                                                         "tensorboard.",
                                                         "wandb.",
                                                         "csv_monitor.",
                                                         "comet.",
                                                         "comms_logger.",
                                                         "flops_profiler.",
                                                         "fp16.loss_scale",
                                                         "fp16.initial_scale_power",
                                                         "fp16.loss_scale_window",
                                                         "fp16.hysteresis",
                                                         "fp16.min_loss_scale",
                                                         "fp16.auto_cast",
                                                         "fp16.consecutive_hysteresis",
                                                         "zero_optimization.allgather_bucket_size",
                                                         "zero_optimization.reduce_bucket_size",
                                                         "zero_optimization.allgather_partitions",
                                                         "zero_optimization.reduce_scatter",
                                                         "zero_optimization.contiguous_gradients",
                                                         "zero_optimization.sub_group_size",
                                                         "zero_optimization.stage3_prefetch_bucket_size",
                                                         "zero_optimization.stage3_param_persistence_threshold",
                                                         "zero_optimization.stage3_max_live_parameters",
                                                         "zero_optimization.stage3_max_reuse_distance",
                                                         "zero_optimization.stage3_gather_16bit_weights_on_model_save",
                                                         "zero_optimization.round_robin_gradients",
                                                         "zero_optimization.ignore_unused_parameters",
                                                         "zero_optimization.load_from_fp32_weights",
                                                         "zero_force_ds_cpu_optimizer",
                                                         "zero_allow_untested_optimizer",
                                                         "checkpoint.",
                                                         "data_types.comment",
                                                         "aio.",
                                                         "seed",
                                                         "zero_optimization.stage3_gather_fp16_weights_on_model_save"};

}  // namespace detail

/// The job of a DeepSpeed configuration, from its value. Errors (usage): values of a wrong kind.
inline Result<TrainerJob> deepspeed_job(const nlohmann::json& value) {
  Settings s(value);
  TrainerJob job;
  job.kind = ConfigKind::deepspeed;
  job.trainer = *cost::find_trainer("deepspeed");
  cost::RuntimeTraits& traits = job.trainer.traits;
  job.zero = static_cast<int>(std::min<std::int64_t>(s.number("zero_optimization.stage", 0), 3));
  job.samples = s.number("train_micro_batch_size_per_gpu", 0);
  job.accumulation = s.number("gradient_accumulation_steps", 0);
  job.global_batch = s.number("train_batch_size", 0);
  if (job.samples == 0) {
    job.samples = 1;
    job.assume("train_micro_batch_size_per_gpu is not said: one sample");
  }
  if (job.global_batch == 0 && job.accumulation == 0) job.accumulation = 1;
  if (job.accumulation > 0 && job.global_batch > 0) job.accumulation = 0;
  job.tensor = s.number("tensor_parallel.autotp_size", s.number("tensor_parallel.tp_size", 1), 1);
  job.tensor = std::max<std::int64_t>(job.tensor, 1);
  job.context = s.number("sequence_parallel_size", 1, 1);
  job.context_kind = SequenceKind::ulysses;
  job.pipeline = s.number("pipeline.stages", 1, 1);
  const bool half = s.flag("fp16.enabled");
  const bool bf16 = s.flag("bf16.enabled", s.flag("bfloat16.enabled", s.text("bf16.enabled") == "auto"));
  if (!half && !bf16 && s.text("fp16.enabled") != "auto") job.precision = Precision::fp32;
  const std::string sums = s.text("data_types.grad_accum_dtype", "");
  if (sums == "fp32") traits.gradient_bytes = 4;
  const std::string messages = s.text("communication_data_type", "");
  if (messages == "fp32") traits.message_bytes = 4;
  const bool overlaps = s.flag("zero_optimization.overlap_comm", job.zero == 3);
  traits.overlaps_gradients = traits.prefetches = overlaps;
  for (const char* const what : {"offload_optimizer", "offload_param"}) {
    const std::string key = std::string("zero_optimization.") + what;
    if (s.text(key + ".device", "none") != "none") {
      job.unknown.push_back(key + ".device (what is offloaded is priced as on the device)");
    }
    for (const char* const detail : {".pin_memory", ".ratio", ".buffer_count", ".fast_init", ".nvme_path",
                                     ".buffer_size", ".max_in_cpu", ".pipeline_read", ".pipeline_write"})
      (void)s.has(key + detail);
  }
  for (const char* const key : {"zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size"})
    if (const std::int64_t size = s.number(key, 1, -1); size > 1)
      job.unknown.push_back(std::string(key) + " (shards are priced as over all data ranks)");
  if (s.has("activation_checkpointing")) {
    job.recompute = RecomputeKind::full;
    job.assume("activation_checkpointing is there: the model is taken to recompute whole layers");
    for (const char* const key : {"partition_activations", "cpu_checkpointing", "contiguous_memory_optimization",
                                  "number_checkpoints", "synchronize_checkpoint_boundary", "profile"})
      (void)s.has(std::string("activation_checkpointing.") + key);
  }
  if (!s.bad().empty()) return usage_error(s.bad());
  s.sort_rest(job, detail::deepspeed_ignored);
  return job;
}

}  // namespace galvatron
