// A job file of torchtitan as a TrainerJob.
//
// Source: torchtitan/config/job_config.py and torchtitan/models/*/__init__.py of pytorch/torchtitan v0.2.2, and the
// names of earlier releases (training.batch_size, experimental.*_degree).
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
#include <galvatron/model/zoo.hpp>

namespace galvatron {

namespace detail {

inline constexpr std::string_view torchtitan_ignored[] = {
    "job.",
    "profiling.",
    "metrics.",
    "optimizer.",
    "lr_scheduler.",
    "checkpoint.",
    "comm.",
    "validation.",
    "fault_tolerance.",
    "debug.",
    "experimental.custom_import",
    "experimental.custom_args_module",
    "training.dataset",
    "training.dataset_path",
    "training.max_norm",
    "training.steps",
    "training.warmup_steps",
    "training.gc_freq",
    "training.gc_debug",
    "training.seed",
    "training.deterministic",
    "training.debug_moe_force_load_balance",
    "training.data_parallel_degree_check",
    "model.hf_assets_path",
    "model.tokenizer_path",
    "model.norm_type",
    "model.converters_args",
    "model.print_after_conversion",
    "compile.components",
    "compile.backend",
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "activation_checkpoint.early_stop",
    "activation_checkpoint.preserve_rng_state",
    "activation_checkpoint.determinism_check",
    "activation_checkpoint.debug",
    "memory_estimation.",
    "parallelism.disable_loss_parallel",
    "parallelism.module_fqns_per_model_part",
    "parallelism.pipeline_parallel_split_points",
    "parallelism.pipeline_parallel_schedule_csv",
    "parallelism.context_parallel_rotate_method",
    "training.gc_collect",
    "parallelism.enable_compiled_autograd",
    "quantize.linear.float8.recipe_check",
    "float8.precompute_float8_dynamic_scale_for_fsdp"};

/// The preset of a model's flavor; empty where no preset has it.
inline std::string torchtitan_preset(const std::string& name, const std::string& flavor) {
  struct Flavor {
    std::string_view name, flavor, preset;
  };
  constexpr Flavor flavors[] = {{"llama3", "8B", "llama3-8b"},     {"llama3", "70B", "llama3-70b"},
                                {"llama3", "405B", "llama3-405b"}, {"llama2", "7B", "llama2-7b"},
                                {"llama2", "13B", "llama2-13b"},   {"llama2", "70B", "llama2-70b"}};
  for (const Flavor& each : flavors)
    if (each.name == name && each.flavor == flavor) return std::string(each.preset);
  return {};
}

}  // namespace detail

/// The job of a torchtitan file, from its value. Errors (usage): values of a wrong kind.
/// @param devices  of the cluster, if it is known: torchtitan shards over what other degrees leave; 0: not
inline Result<TrainerJob> torchtitan_job(const nlohmann::json& value, std::int64_t devices) {
  Settings s(value);
  TrainerJob job;
  job.kind = ConfigKind::torchtitan;
  job.trainer = *cost::find_trainer("torchtitan");
  const auto either = [&s](const char* now, const char* before, std::int64_t otherwise, std::int64_t least = 0) {
    return s.number(now, s.number(before, otherwise, least), least);
  };
  const bool compiles = s.flag("compile.enable", s.flag("training.compile", false));
  if (!compiles) {  // then it is eager as FSDP is
    const cost::RuntimeTraits eager = cost::find_trainer("pytorch-fsdp")->traits;
    job.trainer.traits.norm_passes = 1;  // torch.nn.RMSNorm is one kernel
    job.trainer.traits.activation_passes = eager.activation_passes;
    job.trainer.traits.rotary_passes = eager.rotary_passes;
    job.trainer.traits.logit_bytes = eager.logit_bytes;
    job.trainer.traits.host = eager.host;
  }
  const std::string name = s.text("model.name");
  const std::string flavor = s.text("model.flavor");
  if (const std::string preset = detail::torchtitan_preset(name, flavor); !preset.empty())
    job.model = value_or_throw(find_model(preset));
  job.tensor = either("parallelism.tensor_parallel_degree", "training.tensor_parallel_degree", 1, 1);
  job.pipeline = either("parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree", 1, 1);
  job.context = either("parallelism.context_parallel_degree", "experimental.context_parallel_degree", 1, 1);
  job.expert = s.number("parallelism.expert_parallel_degree", 1, 1);
  if (const std::int64_t etp = s.number("parallelism.expert_tensor_parallel_degree", 0); etp > 0)
    job.expert_tensor = etp;
  const std::int64_t replicas =
      either("parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree", 1, 1);
  const std::int64_t shards =
      either("parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree", -1, -1);
  job.sequence_parallel = job.tensor > 1;
  const std::string reshard = s.text("parallelism.fsdp_reshard_after_forward", "default");
  // By default FSDP keeps gathered parameters in pipelines, where every micro-batch would gather them again.
  job.zero = reshard == "never" || (reshard == "default" && job.pipeline > 1) ? 2 : 3;
  if (shards == 1 && replicas > 1) job.zero = 0;
  if (shards > 1 && replicas > 1)
    job.assume("hybrid sharding over ", shards, " of ", shards * replicas, " data ranks is priced as over all of them");
  if (const std::int64_t all = job.tensor * job.pipeline * job.context;
      shards > 0 && all <= (1 << 24) && shards <= (1 << 24) && replicas <= (1 << 24))
    job.devices = all * shards * replicas;
  else
    job.devices = devices;
  job.samples = either("training.local_batch_size", "training.batch_size", 1, 1);
  job.global_batch = std::max<std::int64_t>(s.number("training.global_batch_size", -1, -1), 0);
  if (job.pipeline > 1) {
    const std::int64_t part = std::max<std::int64_t>(
        either("parallelism.pipeline_parallel_microbatch_size", "experimental.pipeline_parallel_microbatch_size", 1, 1),
        1);
    const std::int64_t micro = std::max<std::int64_t>(
        either("parallelism.pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches", 0), 0);
    const std::int64_t size = micro > 0 ? std::max<std::int64_t>(job.samples / micro, 1) : part;
    if (job.global_batch == 0) job.accumulation = std::max<std::int64_t>(job.samples / size, 1);
    job.samples = size;
    const std::string schedule =
        s.text("parallelism.pipeline_parallel_schedule", s.text("experimental.pipeline_parallel_schedule", "1F1B"));
    if (schedule == "Interleaved1F1B" || schedule == "interleaved_1f1b") {
      job.schedule = ScheduleKind::interleaved;
      job.virtual_stages = 2;
    } else if (schedule == "ZBVZeroBubble") {
      job.schedule = ScheduleKind::zb_v;
      job.virtual_stages = 2;
    } else if (schedule == "GPipe" || schedule == "gpipe") {
      job.schedule = ScheduleKind::gpipe;
    } else if (schedule != "1F1B" && schedule != "1f1b") {
      job.assume("the schedule ", detail::one_line(schedule, 40), " is priced as 1f1b");
    }
    if (const std::int64_t each = s.number("parallelism.pipeline_parallel_layers_per_stage", 0);
        each > 0 && job.model && job.schedule == ScheduleKind::interleaved)
      job.virtual_stages =
          std::max<std::int64_t>(static_cast<std::int64_t>(job.model->blocks.size()) / (each * job.pipeline), 1);
    (void)s.number("parallelism.pipeline_parallel_first_stage_less_layers", 1);
    (void)s.number("parallelism.pipeline_parallel_last_stage_less_layers", 1);
  }
  job.sequence = s.number("training.seq_len", 2048, 1);
  const std::string mode = s.text("activation_checkpoint.mode", "selective");
  const std::string option = s.text("activation_checkpoint.selective_ac_option", "2");
  if (mode == "full" || mode == "memory_budget") {
    job.recompute = RecomputeKind::full;
    if (mode == "memory_budget") job.assume("activation_checkpoint.mode memory_budget is priced as full");
  } else if (mode == "selective") {
    job.recompute = RecomputeKind::full;
    std::int64_t every = 2;
    if (option != "op") every = s.number("activation_checkpoint.selective_ac_option", 2, 1);
    job.recompute_every = std::clamp<std::int64_t>(every, 1, 4096);
    if (option == "op")
      job.assume(
          "selective recomputation by operations is priced as that of every second layer, which keeps and repeats as "
          "much");
  }
  const std::string param = s.text("training.mixed_precision_param", "bfloat16");
  if (param == "float32" && s.text("training.dtype", "float32") == "float32") job.precision = Precision::fp32;
  if (const std::string reduce = s.text("training.mixed_precision_reduce", "float32"); reduce == "bfloat16")
    job.trainer.traits.message_bytes = 2;
  const std::string converters = s.text("model.converters", "[]");
  const std::string mx = s.text("mx.recipe_name", s.text("quantize.linear.mx.recipe_name", "mxfp8_cublas"));
  if (converters.find("linear.mx") != std::string::npos || converters.find("\"mx\"") != std::string::npos) {
    job.precision = Precision::fp8;
    job.trainer.traits.fp8_recipe = Fp8Recipe::mxfp8;
    if (!mx.starts_with("mxfp8_cublas")) job.assume("the recipe ", detail::one_line(mx, 40), " is priced as mxfp8");
    (void)s.has("mx.filter_fqns");
    (void)s.has("quantize.linear.mx.filter_fqns");
  }
  if (converters.find("float8") != std::string::npos) {
    job.precision = Precision::fp8;
    const std::string recipe = s.text("float8.recipe_name", s.text("quantize.linear.float8.recipe_name"));
    if (recipe.starts_with("rowwise")) job.trainer.traits.fp8_recipe = Fp8Recipe::rowwise;
    if (recipe == "rowwise_with_gw_hp")
      job.assume("the float8 recipe rowwise_with_gw_hp is priced as rowwise: its gradients of weights have 16 bits");
    else if (!recipe.empty() && recipe != "null" && recipe != "rowwise" && recipe != "tensorwise")
      job.assume("the float8 recipe ", detail::one_line(recipe, 40), " is priced as tensorwise");
    for (const char* const key :
         {"float8.enable_fsdp_float8_all_gather", "quantize.linear.float8.enable_fsdp_float8_all_gather"})
      if (s.flag(key)) job.assume("gathers of 8-bit parameters are priced as of 16 bits");
    (void)s.has("float8.filter_fqns");
    (void)s.has("quantize.linear.float8.filter_fqns");
  }
  if (s.flag("parallelism.enable_async_tensor_parallel", s.flag("experimental.enable_async_tensor_parallel")))
    job.trainer.traits.tensor_pieces = 4;
  if (s.flag("training.enable_cpu_offload"))
    job.unknown.emplace_back("training.enable_cpu_offload (what is offloaded is priced as on the device)");
  if (!s.bad().empty()) return usage_error(s.bad());
  s.sort_rest(job, detail::torchtitan_ignored);
  return job;
}

}  // namespace galvatron
