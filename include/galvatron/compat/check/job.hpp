// TrainerJob: what a configuration of another trainer says, as the numbers that a plan needs, and what it says besides.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/compat/export/megatron_stages.hpp>
#include <galvatron/compat/export/torchtitan.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/schedule_kind.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

/// Whose configuration it is: the words of its settings.
enum class ConfigKind : std::uint8_t { megatron, torchtitan, deepspeed, accelerate };
constexpr const char* name_of(ConfigKind kind) {
  return std::array{"megatron", "torchtitan", "deepspeed", "accelerate"}[static_cast<std::size_t>(kind)];
}

struct TrainerJob {
  ConfigKind kind = ConfigKind::megatron;
  cost::Trainer trainer{};           ///< with the facts that the configuration changes
  std::optional<ModelSpec> model{};  ///< where the configuration has it
  std::int64_t devices = 0;          ///< 0: not said
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t context = 1;
  std::int64_t expert = 1;
  std::int64_t expert_tensor = 0;  ///< 0: as tensor
  std::int64_t virtual_stages = 1;
  std::int64_t first_layers = 0;  ///< of the first stage; 0: as many as the others
  std::int64_t last_layers = 0;   ///< of the last stage
  bool counts_embedding = false;  ///< as a layer of the first stage
  bool counts_head = false;       ///< as a layer of the last stage
  bool sequence_parallel = false;
  SequenceKind context_kind = SequenceKind::ring;
  int zero = 0;
  RecomputeKind recompute = RecomputeKind::none;
  std::int64_t recompute_every = 1;    ///< of layers, with full recomputation
  std::int64_t recompute_layers = -1;  ///< the first ones of a stage, with full recomputation; -1: all
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t samples = 1;       ///< of a micro-batch on a data rank
  std::int64_t accumulation = 0;  ///< micro-batches of a step; 0: global_batch says it
  std::int64_t global_batch = 0;  ///< 0: accumulation says it
  std::int64_t sequence = 0;      ///< 0: the model's
  Precision precision = Precision::bf16;
  std::vector<std::string> unknown;  ///< settings that are not understood
  std::vector<std::string> ignored;  ///< settings that change neither time nor memory here
  std::vector<std::string> assumed;  ///< sentences: what was taken where the configuration says nothing, or not exactly

  template <class... Parts>
  void assume(const Parts&... sentence) {
    assumed.push_back(text_of(sentence...));
  }
};

namespace detail {

/// Stages that count the embedding or the head as a layer: these are equally many on all virtual stages.
inline Result<std::vector<PlanStage>> stages_with_ends(const TrainerJob& job, int layers, int virtual_stages,
                                                       int ranks) {
  const auto stages = static_cast<int>(job.pipeline);
  const int all = layers + (job.counts_embedding ? 1 : 0) + (job.counts_head ? 1 : 0);
  const std::int64_t chunks = std::int64_t{stages} * virtual_stages;
  if (all % chunks != 0)
    return usage_error(text_of("with the embedding or the head as layers there are ", all, ", which ", stages,
                               " stages x ", virtual_stages, " virtual stages do not share"));
  const std::vector<int> sizes =
      chunks_with_ends(layers, static_cast<int>(chunks), job.counts_embedding, job.counts_head);
  if (virtual_stages > 1) return stages_of_chunks(sizes, stages, virtual_stages, ranks);
  if (sizes.front() < 1 || sizes.back() < 1)
    return usage_error(
        "a stage has the embedding or the head and no layer, which is priced beside virtual stages only");
  std::vector<PlanStage> out = stages_of_chunks(sizes, stages, 1, ranks);
  for (PlanStage& stage : out) stage.chunk_layers.clear();
  return out;
}

/// The layers of each stage of a job: all have equally many, but for the first and the last where the job says so.
/// Errors (usage): the others cannot share what is left, or virtual stages what a stage has.
inline Result<std::vector<PlanStage>> stages_of_job(const TrainerJob& job, int layers, int ranks) {
  const auto stages = static_cast<int>(job.pipeline);
  const int virtual_stages =
      job.pipeline > 1 && usual_virtual_stages(job.schedule) > 1 ? static_cast<int>(job.virtual_stages) : 1;
  if (stages > 1 && (job.counts_embedding || job.counts_head))
    return stages_with_ends(job, layers, virtual_stages, ranks);
  if ((job.first_layers == 0 && job.last_layers == 0) || stages == 1)
    return even_stages(layers, stages, virtual_stages, ranks, job.schedule);
  const std::int64_t others = stages - (job.first_layers > 0 ? 1 : 0) - (job.last_layers > 0 ? 1 : 0);
  const std::int64_t left = layers - job.first_layers - job.last_layers;
  if (left < others || left % std::max<std::int64_t>(others, 1) != 0 || (others == 0 && left != 0))
    return usage_error(text_of("first and last stages of ", job.first_layers, " and ", job.last_layers,
                               " layers (0: not said) leave ", left, " of ", layers, " layers to ", others,
                               " other stages, which cannot share them"));
  // Each stage's layers are shared by its virtual stages.
  std::vector<int> sizes;
  for (int i = 0; i < stages * virtual_stages; ++i) {
    const std::int64_t size = i % stages == 0 && job.first_layers > 0        ? job.first_layers
                              : (i + 1) % stages == 0 && job.last_layers > 0 ? job.last_layers
                                                                             : left / std::max<std::int64_t>(others, 1);
    if (size % virtual_stages != 0)
      return usage_error(text_of(virtual_stages, " virtual stages do not share a stage of ", size, " layers"));
    sizes.push_back(static_cast<int>(size) / virtual_stages);
  }
  std::vector<PlanStage> out = stages_of_chunks(sizes, stages, virtual_stages, ranks);
  if (virtual_stages > 1) return out;
  for (PlanStage& stage : out) stage.chunk_layers.clear();
  return out;
}

}  // namespace detail

/// The plan that a job is, of this model on this many devices. Errors (usage): degrees that do not divide the devices,
/// batches that do not divide, layers that do not divide the stages.
inline Result<Plan> plan_of_job(const TrainerJob& job, const ModelSpec& model, std::int64_t devices) {
  const auto refused = [](const auto&... parts) { return usage_error(text_of(parts...)); };
  for (const std::int64_t degree : {job.tensor, job.pipeline, job.context, job.samples, job.virtual_stages, job.expert})
    if (degree < 1 || degree > (1 << 20))
      return refused("a degree or a batch of the configuration is ", degree, ": all are at least 1");
  const std::int64_t ranks = job.tensor * job.pipeline * job.context;
  if (devices < 1 || devices % ranks != 0)
    return refused("tensor, pipeline and context degrees of ", job.tensor, ", ", job.pipeline, " and ", job.context,
                   " do not divide ", devices,
                   " devices: name the cluster that the configuration is for with --cluster");
  const std::int64_t data = devices / ranks;
  const std::int64_t step = job.samples * data;
  if (step > (1 << 30) || job.accumulation > (1 << 20) || job.global_batch > (1 << 30))
    return refused("a step has more than 2^30 samples");
  Plan plan;
  plan.model = model.name;
  plan.trainer = job.trainer;
  plan.global_batch = job.global_batch > 0 ? job.global_batch : step * std::max<std::int64_t>(job.accumulation, 1);
  if (plan.global_batch > (1 << 30)) return refused("a step has more than 2^30 samples");
  if (plan.global_batch % step != 0)
    return refused("the global batch of ", plan.global_batch, " is no multiple of ", job.samples, " samples on ", data,
                   " data ranks");
  plan.microbatches = static_cast<int>(plan.global_batch / step);
  plan.sequence_length = job.sequence > 0 ? job.sequence : model.positions();
  plan.precision = job.precision;
  plan.schedule = job.pipeline > 1 ? job.schedule : ScheduleKind::one_f_one_b;
  plan.virtual_stages = usual_virtual_stages(plan.schedule) > 1 ? static_cast<int>(job.virtual_stages) : 1;
  const auto layers = static_cast<int>(model.blocks.size());
  if (job.pipeline * plan.virtual_stages > layers && !job.counts_embedding && !job.counts_head)
    return refused(job.pipeline, " stages x ", plan.virtual_stages, " virtual stages are more than the ", layers,
                   " layers of ", model.name);
  auto stages = detail::stages_of_job(job, layers, static_cast<int>(devices / job.pipeline));
  if (!stages) return tl::unexpected<Error>(std::move(stages.error()));
  plan.stages = std::move(*stages);
  StrategySpec spec{.tensor = static_cast<int>(job.tensor),
                    .context = static_cast<int>(job.context),
                    .data = static_cast<int>(data),
                    .zero = data * job.context > 1 ? job.zero : 0,
                    .expert = static_cast<int>(job.expert),
                    .recompute = job.recompute};
  if (spec.expert > 1 || job.expert_tensor > 0)
    spec.expert_tensor =
        job.expert_tensor > 0 && job.expert_tensor != job.tensor ? static_cast<int>(job.expert_tensor) : 0;
  spec.sequence = job.context > 1 ? job.context_kind : SequenceKind::none;
  spec = spec.with_cut(job.tensor > 1 && job.sequence_parallel);
  plan.layers.assign(model.blocks.size(), spec);
  for (std::size_t i = 0; i < plan.layers.size(); ++i) {
    if (model.blocks[i].experts == 0) plan.layers[i] = plan.layers[i].without_experts();
    if (job.recompute != RecomputeKind::full) continue;
    const auto stage = std::ranges::find_if(plan.stages, [&](const PlanStage& s) {
      return s.first_layer <= static_cast<int>(i) && static_cast<int>(i) <= s.last_layer;
    });
    const std::int64_t in_stage = static_cast<std::int64_t>(i) - stage->first_layer;
    if ((in_stage + 1) % job.recompute_every != 0 ||
        (job.recompute_layers >= 0 && in_stage >= job.recompute_layers * plan.virtual_stages))
      plan.layers[i].recompute = RecomputeKind::none;
  }
  StrategySpec end = spec.without_experts();
  end.recompute = RecomputeKind::none;
  plan.embedding = plan.head = end;
  return plan;
}

/// A setting of a trainer with its value, in the words of its configuration.
using Setting = std::pair<std::string, std::string>;

/// The settings that make a plan, of those that have one strategy for all layers.
inline std::vector<Setting> settings_of(const Plan& plan, ConfigKind kind) {
  const StrategySpec& spec = plan.layers.front();
  const auto text = [](std::int64_t n) { return std::to_string(n); };
  const std::int64_t samples = plan.microbatch() / spec.data;
  const auto stages = static_cast<std::int64_t>(plan.stages.size());
  const auto layers = static_cast<std::int64_t>(plan.layers.size());
  const auto full = std::ranges::count(plan.layers, RecomputeKind::full, &StrategySpec::recompute);
  const std::string recompute = full > 0 ? "full" : spec.recompute == RecomputeKind::selective ? "selective" : "none";
  std::vector<Setting> out;
  switch (kind) {
    case ConfigKind::megatron:
      out = {{"--tensor-model-parallel-size", text(spec.tensor)},
             {"--pipeline-model-parallel-size", text(stages)},
             {"--context-parallel-size", text(spec.context)},
             {"--micro-batch-size", text(samples)},
             {"--cp-comm-type", spec.context == 1        ? "off"
                                : spec.exchanges_heads() ? "a2a"
                                                         : "p2p"},
             {"--sequence-parallel", spec.cuts_over_tensor() ? "on" : "off"},
             {"--use-distributed-optimizer", spec.zero >= 1 ? "on" : "off"},
             {"--use-megatron-fsdp", spec.zero >= 2 ? "on" : "off"},
             {"--data-parallel-sharding-strategy", spec.zero == 2   ? "optim_grads"
                                                   : spec.zero == 3 ? "optim_grads_params"
                                                                    : "no_shard"},
             {"--recompute-granularity", recompute},
             {"--recompute-num-layers", full > 0 && full < layers ? text(full / stages)
                                        : full > 0                ? "1"
                                                                  : "off"}};
      std::ranges::move(detail::megatron_stage_settings(plan), std::back_inserter(out));
      break;
    case ConfigKind::torchtitan:
      out = {
          {"parallelism.data_parallel_replicate_degree", text(spec.zero == 0 ? spec.data : 1)},
          {"parallelism.data_parallel_shard_degree", text(spec.zero == 0 ? 1 : spec.data)},
          {"parallelism.fsdp_reshard_after_forward", spec.zero == 3 ? "always" : "never"},
          {"parallelism.tensor_parallel_degree", text(spec.tensor)},
          {"parallelism.pipeline_parallel_degree", text(stages)},
          {"parallelism.context_parallel_degree", text(spec.context)},
          {"parallelism.pipeline_parallel_schedule",
           stages == 1 ? "none" : galvatron::detail::torchtitan_schedule(plan.schedule)},
          {stages == 1 ? "training.local_batch_size" : "parallelism.pipeline_parallel_microbatch_size", text(samples)},
          {"activation_checkpoint.mode", full > 0 && full < layers ? "selective" : recompute}};
      break;
    case ConfigKind::deepspeed:
      out = {{"zero_optimization.stage", text(spec.zero)},
             {"train_micro_batch_size_per_gpu", text(samples)},
             {"gradient_accumulation_steps", text(plan.microbatches)},
             {"tensor_parallel.autotp_size", text(spec.tensor)},
             {"sequence_parallel_size", text(spec.context)},
             {"pipeline stages", text(stages)},
             {"activation checkpointing", recompute}};
      break;
    case ConfigKind::accelerate:
      out = {{"fsdp_sharding_strategy", spec.zero == 3   ? "FULL_SHARD"
                                        : spec.zero >= 1 ? "SHARD_GRAD_OP"
                                                         : "NO_SHARD"},
             {"per_device_train_batch_size", text(samples)},
             {"gradient_accumulation_steps", text(plan.microbatches)},
             {"fsdp_activation_checkpointing", full > 0 ? "true" : "false"}};
      break;
  }
  return out;
}

/// `--tensor-model-parallel-size: 8 -> 4`, of all settings in which two plans differ.
inline std::vector<std::string> changes_between(const Plan& from, const Plan& to, ConfigKind kind) {
  std::vector<std::string> out;
  const std::vector<Setting> old = settings_of(from, kind);
  for (const auto& [name, value] : settings_of(to, kind)) {
    const auto before = std::ranges::find(old, name, &Setting::first);
    if (before == old.end())
      out.push_back(name + ": " + value);
    else if (before->second != value)
      out.push_back(name + ": " + before->second + " -> " + value);
  }
  for (const auto& [name, value] : old) {
    const std::vector<Setting> now = settings_of(to, kind);
    if (std::ranges::find(now, name, &Setting::first) == now.end()) out.push_back(name + ": " + value + " -> none");
  }
  return out;
}

}  // namespace galvatron
