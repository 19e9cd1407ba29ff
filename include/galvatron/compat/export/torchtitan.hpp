// A plan as a torchtitan job file, in TOML.
//
// Source: torchtitan/config/job_config.py, torchtitan/distributed/ and torchtitan/models/llama3/infra/parallelize.py of
// pytorch/torchtitan v0.2.2 (February 2026), the last release whose job files are TOML. Later ones configure the same
// fields in Python.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>

namespace galvatron {

namespace detail {

/// The n for which every n-th layer of each stage, and no other, is recomputed; 0 when there is none.
inline int torchtitan_every_nth(const Plan& plan) {
  std::vector<std::vector<bool>> recomputes(plan.stages.size());  // by stage, over its parts one after the other
  const std::vector<LayerRange> parts = chunks_of(plan);
  for (std::size_t part = 0; part < parts.size(); ++part)
    for (int layer = parts[part].first; layer <= parts[part].last; ++layer)
      recomputes[part % recomputes.size()].push_back(plan.layers[static_cast<std::size_t>(layer)].recompute ==
                                                     RecomputeKind::full);
  const auto every = [&](std::size_t n) {
    for (const std::vector<bool>& stage : recomputes)
      for (std::size_t i = 0; i < stage.size(); ++i)
        if (stage[i] != ((i + 1) % n == 0)) return false;
    return true;
  };
  for (int n = 2; n <= static_cast<int>(plan.layers.size()); ++n)
    if (every(static_cast<std::size_t>(n))) return n;
  return 0;
}

inline std::string torchtitan_recompute(const Plan& plan, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  const bool selective =
      std::ranges::any_of(plan.layers, [](const StrategySpec& s) { return s.recompute == RecomputeKind::selective; });
  const int n = selective ? 0 : kinds.size() == 1 ? 1 : torchtitan_every_nth(plan);
  if (n > 0) {
    for (StrategySpec& layer : out.job->layers) layer.recompute = kept_but(plan, layer.recompute);
    tell_outputs(plan, "torchtitan", out);
    if (n == 1) return text_of("mode = \"", kinds.front().first, "\"\n");
    return text_of("mode = \"selective\"\nselective_ac_option = \"", n, "\"  # every n-th layer\n");
  }
  for (StrategySpec& layer : out.job->layers) layer.recompute = RecomputeKind::full;
  out.lacks(kinds.size() > 1 ? "recomputation differs from layer to layer, " + by_layer_text(kinds)
                             : "recomputation of the attention core alone, in all layers",
            ": torchtitan recomputes all layers or every n-th, as a whole or keeping attention, and all as a whole is "
            "written, so that no rank keeps more than planned");
  return "mode = \"full\"\n";
}

/// Data parallelism: replicas are DDP, which stands alone; shards are FSDP.
inline std::string torchtitan_data(const Plan& plan, const StrategySpec& spec, Exported& out) {
  const bool others = spec.tensor > 1 || plan.stages.size() > 1;
  const bool replicas = spec.zero == 0 && !others && spec.context == 1 && !spec.exchanges_tokens();
  if (spec.shards() > 1 && spec.zero == 0 && !replicas)
    out.lacks(
        spec.context > 1 ? "context parallelism without ZeRO"
        : others         ? "data parallelism without ZeRO beside tensor or pipeline parallelism"
                         : "data parallelism without ZeRO beside expert parallelism",
        ": torchtitan then shards with FSDP, over data and context ranks, and what is nearest to ZeRO 2 is written");
  if (spec.zero == 1) out.lacks("ZeRO 1: FSDP shards gradients too, and what is nearest to ZeRO 2 is written");
  if (plan.precision != Precision::fp32 && others && spec.data == 1 && spec.context == 1)
    out.lacks(
        "bf16 arithmetic with fp32 master weights: torchtitan casts with FSDP, or with DDP alone, and this plan has no "
        "data parallelism");
  std::string text = text_of("data_parallel_replicate_degree = ", replicas ? spec.data : 1,
                             "\ndata_parallel_shard_degree = ", replicas ? 1 : spec.data, "\n");
  if (!replicas && spec.shards() > 1) {
    for (StrategySpec& layer : out.job->layers) layer.zero = spec.zero == 3 ? 3 : 2;
    out.job->embedding.zero = out.job->head.zero = spec.zero == 3 ? 3 : 2;
    text += text_of("fsdp_reshard_after_forward = \"", spec.zero == 3 ? "always" : "never", "\"\n");
  }
  return text;
}

inline std::string torchtitan_pipeline(const Plan& plan, std::int64_t samples, Exported& out) {
  std::string text = "pipeline_parallel_degree = " + std::to_string(plan.stages.size()) + "\n";
  if (plan.stages.size() == 1) return text;
  if (plan.schedule == ScheduleKind::zb_h1)
    out.lacks(
        "the schedule zb-h1: the zero-bubble schedules of torchtitan have two stages or more on a rank, and 1F1B is "
        "written");
  const bool interleaved = plan.schedule == ScheduleKind::interleaved && plan.virtual_stages > 1;
  if (plan.schedule == ScheduleKind::interleaved && !interleaved)
    out.lacks(
        "the schedule interleaved with one virtual stage: torchtitan interleaves two or more, and 1F1B, which is the "
        "same here, is written");
  const bool gpipe = plan.schedule == ScheduleKind::gpipe;
  if (!gpipe && !interleaved) out.job->schedule = ScheduleKind::one_f_one_b;
  text += text_of("pipeline_parallel_schedule = \"",
                  gpipe         ? "GPipe"
                  : interleaved ? "Interleaved1F1B"
                                : "1F1B",
                  "\"\npipeline_parallel_microbatch_size = ", samples, "\nmodule_fqns_per_model_part = [\n");
  const std::vector<LayerRange> parts = chunks_of(plan);
  for (const LayerRange& part : parts) {
    std::vector<std::string> names;
    if (&part == &parts.front()) names.emplace_back("tok_embeddings");
    for (int layer = part.first; layer <= part.last; ++layer) names.push_back(text_of("layers.", layer));
    if (&part == &parts.back()) names.insert(names.end(), {"norm", "output"});
    text += text_of("  [\"", joined(names, "\", \""), "\"],\n");
  }
  return text + "]\n";
}

/// What torchtitan's layers of experts lack: they balance by a bias alone, and take all choices.
inline void tell_torchtitan_experts(const ModelSpec& model, Exported& out) {
  const auto layer = std::ranges::find_if(model.blocks, [](const LayerSpec& block) { return block.experts > 0; });
  if (layer == model.blocks.end()) return;
  if (layer->router.has_losses())
    out.lacks("losses of the routers: torchtitan balances experts by their biases alone (load_balance_coeff)");
  if (layer->router.capacity > 0) out.lacks("a capacity of experts: torchtitan drops no choice");
  if (layer->shared_gate) out.lacks("a gate of the shared expert: torchtitan adds it as it is");
  out.elsewhere("the table [model] has a flavor with num_experts = ", layer->experts,
                ", top_k = ", layer->active_experts);
}

}  // namespace detail

/// The tables of a job file that a plan decides; comments say what they leave out. Model parts have the module names of
/// torchtitan's Llama.
/// @param model  what the plan is for, if known
inline Exported export_torchtitan(const Plan& plan, const ModelSpec* model = nullptr) {
  Exported out;
  const std::string target = "torchtitan";
  StrategySpec spec = detail::one_for_all(plan, target, out, model);
  if (spec.tensor > 1 && spec.sequence != SequenceKind::megatron)
    out.lacks(
        "tensor parallelism with whole sequences between its regions: torchtitan always splits the sequence there");
  if (spec.sequence == SequenceKind::ulysses)
    out.lacks("Ulysses: torchtitan passes keys and values around, as ring attention does");
  spec.sequence = spec.tensor > 1 ? SequenceKind::megatron : spec.context > 1 ? SequenceKind::ring : SequenceKind::none;
  if (spec.exchanges_tokens() && !torchtitan_has_experts(spec)) {
    out.lacks("experts whose degrees are ", detail::expert_text(spec),
              spec.expert == 1
                  ? ": torchtitan has experts that are not cut as other matrices only where they are spread, and no "
                    "spread is written"
                  : ": torchtitan has whole experts or those that all tensor ranks cut, and whole ones are written");
    spec.expert_tensor = spec.expert > 1 ? 1 : 0;
  }
  if (model != nullptr) detail::tell_torchtitan_experts(*model, out);
  detail::give_all(*out.job, spec, model);
  const std::int64_t samples = plan.microbatch() / spec.data;  // of a rank in a micro-batch
  // Without a pipeline a step accumulates over micro-batches; with one the local batch is what the pipeline cuts.
  const std::string training =
      text_of("[training]\nlocal_batch_size = ", plan.stages.size() > 1 ? plan.global_batch / spec.data : samples,
              "\nglobal_batch_size = ", plan.global_batch, "\nseq_len = ", plan.sequence_length,
              "\ndtype = \"float32\"\nmixed_precision_param = \"",
              plan.precision != Precision::fp32 ? "bfloat16" : "float32", "\"\n");
  const std::string data = detail::torchtitan_data(plan, spec, out);
  const std::string parallelism = text_of(
      "[parallelism]\n", data, "tensor_parallel_degree = ", spec.tensor, "\ncontext_parallel_degree = ", spec.context,
      "\n", spec.context > 1 ? "context_parallel_rotate_method = \"alltoall\"\n" : "",
      spec.expert > 1
          ? text_of("expert_parallel_degree = ", spec.expert, "\nexpert_tensor_parallel_degree = ", spec.etp(), "\n")
          : "",
      detail::torchtitan_pipeline(plan, samples, out));
  if (spec.context > 1 && plan.sequence_length % (std::int64_t{2} * spec.tensor * spec.context) != 0)
    out.lacks("a sequence of ", plan.sequence_length,
              " tokens: torchtitan needs a multiple of twice the context times the tensor degree");
  detail::tell_moments(plan, target, out);
  const std::string checkpoint = detail::torchtitan_recompute(plan, out);
  const bool fp8 = plan.precision == Precision::fp8;
  if (fp8)
    out.elsewhere("the table [model] has converters = [\"quantize.linear.float8\"], for the 8-bit products of blocks");
  out.text =
      text_of("# torchtitan 0.2 job file of ", detail::export_title(plan),
              ". Made by `galvatron export`.\n# The tables [model], [optimizer], [lr_scheduler] and the data are "
              "to be added.\n",
              detail::export_comments(out), "\n", training, "\n", parallelism, "\n[activation_checkpoint]\n",
              checkpoint, fp8 ? "\n[quantize.linear.float8]\nfilter_fqns = [\n  \"output\",\n]\n" : "");
  return out;
}

}  // namespace galvatron
