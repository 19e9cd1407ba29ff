// A plan as a plan file of Hetu-Galvatron.
//
//   pp_deg, pp_division    stages and their layers            tp_sizes_enc, use_sp  TP degree, or Ulysses' if use_sp is
//   1 dp_types_enc           1: ZeRO 3; 0: default_dp_type      cp_sizes_enc          ring attention, where there is
//   some checkpoint             1: full recomputation              ep_sizes_enc          experts, where there are some
//                                                                  tp_of_ep_sizes_enc    ranks that share each
//   vtp, vsp, vcp          the same of embedding and head     embed_sdp, vocab_sdp  1: ZeRO 3 of embedding and head
//
// Its search writes the last as embed_sdp, its trainer reads vocab_sdp: both are written.
// Source: galvatron/utils/{config_utils,strategy_utils}.py and galvatron/core/runtime/hybrid_parallel_config.py of
// PKU-DAIR/Hetu-Galvatron, state of June 2026.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

namespace detail {

/// The degree in tp_sizes_enc: tensor ranks, Ulysses ranks, or both as tensor ranks, because a layer has one of them.
inline int hetu_width(const StrategySpec& spec) { return spec.tensor * (spec.exchanges_heads() ? spec.context : 1); }
inline bool hetu_uses_ulysses(const StrategySpec& spec) { return spec.exchanges_heads() && spec.tensor == 1; }
inline int hetu_ring(const StrategySpec& spec) { return spec.uses_ring() ? spec.context : 1; }

/// The strategies that the file has.
inline std::vector<StrategySpec> hetu_strategies(const Plan& plan) {
  std::vector<StrategySpec> out = plan.layers;
  out.push_back(plan.embedding);
  return out;
}

/// A sentence for the layers and the embedding that have a property.
template <class Has>
void tell_hetu(const Plan& plan, Has has, const std::string& what, Exported& out) {
  const std::vector<int> layers = layers_where(plan, has);
  StrategySpec embedding = plan.embedding;
  embedding.recompute = RecomputeKind::cheap;  // of which nothing is computed again
  std::string who = layers.empty() ? "" : layers_text(layers);
  if (has(embedding)) who += who.empty() ? "the embedding" : " and the embedding";
  if (!who.empty()) out.lacks(who, ": ", what);
}

/// What is data parallel without ZeRO 3 has one kind for the whole plan: `ddp` when nothing of it is sharded.
inline std::string hetu_default_data(const Plan& plan, Exported& out) {
  const auto any = [&](int zero) {
    return std::ranges::any_of(hetu_strategies(plan), [zero](const StrategySpec& s) {
      return (zero == 0 ? s.data : s.shards()) > 1 && s.zero == zero;
    });
  };
  const bool sharded = any(1) || any(2);
  if (sharded)
    tell_hetu(
        plan, [](const StrategySpec& s) { return s.data > 1 && s.zero == 0; },
        "no ZeRO, while others shard: what is not ZeRO 3 has one kind there, and zero2 is written", out);
  tell_hetu(
      plan, [](const StrategySpec& s) { return s.zero == 1; },
      "ZeRO 1: Hetu-Galvatron has 0, 2 and 3, and zero2 is written", out);
  return any(0) && !sharded ? "ddp" : "zero2";
}

/// Megatron's sequence parallelism is one switch of the trainer.
inline void hetu_sequence_parallel(const Plan& plan, Exported& out) {
  bool with = false;
  bool without = false;
  for (const StrategySpec& s : hetu_strategies(plan))
    if (s.tensor > 1) (s.cuts_over_tensor() ? with : without) = true;
  if (with && without)
    out.lacks("Megatron sequence parallelism in some tensor-parallel layers and not in others: it is one switch there");
  if (with || without) out.elsewhere("the trainer's sequence_parallel is ", with ? "true" : "false");
}

/// The trainer has as many data ranks as the smallest tensor and context degrees leave, perhaps of different layers.
inline void tell_hetu_data_ranks(const Plan& plan, Exported& out) {
  const std::vector<StrategySpec> all = hetu_strategies(plan);
  const int width = hetu_width(std::ranges::min(all, {}, hetu_width));
  const int ring = hetu_ring(std::ranges::min(all, {}, hetu_ring));
  const int most = std::ranges::max(all, {}, &StrategySpec::data).data;
  const int taken = plan.stages.front().rank_count / (width * ring);
  if (taken <= most) return;
  const std::int64_t run = hetu_batches(plan.global_batch, taken, plan.microbatches).microbatches;
  out.lacks(
      "tensor ranks in some layers and context ranks in others: Hetu-Galvatron counts data ranks with the smallest of "
      "both degrees, ",
      width, " and ", ring, ", as ", taken, " where the plan has ", most, ", ",
      plan.global_batch % taken != 0
          ? text_of("and refuses a batch of ", plan.global_batch, ", which is no multiple of it")
          : text_of("and a loader that deals the batch to so many runs ", run, " micro-batches, not ",
                    plan.microbatches));
}

/// The plan with whole layers recomputed where it recomputes the attention core, which is told apart.
inline Plan hetu_kept(Plan plan) {
  for (StrategySpec& layer : plan.layers)
    if (layer.recompute == RecomputeKind::selective) layer.recompute = RecomputeKind::full;
  return plan;
}

/// What Hetu-Galvatron runs of a plan when it reads `default_dp_type` and the lists of the file.
inline Plan hetu_job(const Plan& plan, bool sharded) {
  Plan job = hetu_kept(plan);
  job.predicted = {};
  job.predicted.budget = plan.predicted.budget;
  job.precision = element_format(plan.precision);
  if (plan.stages.size() > 1 && plan.schedule != ScheduleKind::gpipe) {
    job.schedule = ScheduleKind::one_f_one_b;
    job.virtual_stages = 1;
  }
  std::vector<StrategySpec*> all{&job.embedding};
  for (StrategySpec& layer : job.layers) all.push_back(&layer);
  const bool cut =
      std::ranges::any_of(all, [](const StrategySpec* s) { return s->tensor > 1 && s->cuts_over_tensor(); });
  for (StrategySpec* spec : all) {
    spec->recompute = kept_but(plan, spec->recompute);
    spec->dispatch = DispatchKind::plain;
    spec->expert_nodes = 1;
    if (spec->zero == 1 || (spec->zero == 0 && spec->data > 1 && sharded)) spec->zero = 2;
    if (spec->tensor > 1 && spec->exchanges_heads()) {
      spec->tensor *= spec->context;
      spec->context = 1;
      spec->sequence = SequenceKind::none;
      if (spec->shards() == 1) spec->zero = 0;
    }
    if (spec->tensor > 1 && cut) *spec = spec->with_cut(true);
  }
  job.embedding.strided = false;
  job.embedding.recompute = kept_outputs(plan);
  job.head = job.embedding;
  return job;
}

}  // namespace detail

/// The plan file. JSON has no comments: what it leaves out is in the result alone.
/// @param model  what the plan is for, if known
inline Exported export_hetu(const Plan& plan, const ModelSpec* model = nullptr) {
  Exported out;
  const auto list = [&](auto of) { return joined(plan.layers, ",", of); };
  nlohmann::ordered_json file;
  file["pp_deg"] = plan.stages.size();
  file["tp_sizes_enc"] = list(detail::hetu_width);
  file["tp_consecutive_flags"] = list([](const StrategySpec& s) { return !s.strided; });
  if (std::ranges::any_of(plan.layers, [](const StrategySpec& s) { return detail::hetu_ring(s) > 1; }))
    file["cp_sizes_enc"] = list(detail::hetu_ring);
  file["dp_types_enc"] = list([](const StrategySpec& s) { return s.zero == 3; });
  file["use_sp"] = list(detail::hetu_uses_ulysses);
  const auto has_experts = [](const LayerSpec& block) { return block.experts > 0; };
  const bool any_experts = model != nullptr && std::ranges::any_of(model->blocks, has_experts);
  if (any_experts || std::ranges::any_of(plan.layers, &StrategySpec::exchanges_tokens)) {
    file["ep_sizes_enc"] = list([](const StrategySpec& s) { return s.expert; });
    file["tp_of_ep_sizes_enc"] = list([](const StrategySpec& s) { return s.etp(); });
  }
  file["checkpoint"] = list([](const StrategySpec& s) { return detail::recomputed(s) != RecomputeKind::none; });
  file["world_size"] = plan.ranks();
  file["global_bsz"] = plan.global_batch;
  file["chunks"] = plan.microbatches;
  file["pp_division"] =
      joined(plan.stages, ",", [](const PlanStage& stage) { return stage.last_layer - stage.first_layer + 1; });
  file["pipeline_type"] = plan.schedule == ScheduleKind::gpipe ? "gpipe" : "pipedream_flush";
  file["default_dp_type"] = detail::hetu_default_data(plan, out);
  file["vtp"] = detail::hetu_width(plan.embedding);
  file["vsp"] = detail::hetu_uses_ulysses(plan.embedding) ? 1 : 0;
  if (detail::hetu_ring(plan.embedding) > 1) file["vcp"] = detail::hetu_ring(plan.embedding);
  file["embed_sdp"] = plan.embedding.zero == 3 ? 1 : 0;
  file["vocab_sdp"] = file["embed_sdp"];

  if (plan.stages.size() > 1 && !has_schedule(OneForAll::hetu, plan.schedule))
    out.lacks("the schedule ", name_of(plan.schedule), ": Hetu-Galvatron has gpipe and 1f1b, and 1f1b is written");
  detail::tell_hetu(
      plan, [](const StrategySpec& s) { return s.exchanges_heads() && s.tensor > 1; },
      "tensor parallelism and Ulysses together: Hetu-Galvatron has one of them in a layer, and tensor parallelism over "
      "the ranks of both is written",
      out);
  detail::tell_hetu(
      plan, [](const StrategySpec& s) { return s.recompute == RecomputeKind::selective; },
      "recomputation of the attention core alone: Hetu-Galvatron recomputes whole layers, which is written", out);
  detail::tell_outputs(detail::hetu_kept(plan), "Hetu-Galvatron", out);
  if (plan.embedding.strided)
    out.lacks("the embedding: tensor-parallel ranks lie around data-parallel ones: they are neighbours there");
  StrategySpec head = plan.head;
  head.recompute = plan.embedding.recompute;  // neither computes anything again
  if (!(head == plan.embedding))
    out.lacks("the head has another strategy (", strategy_text(plan.head), ") than the embedding (",
              strategy_text(plan.embedding), "): they have one there, and that of the embedding is written");
  detail::tell_hetu_data_ranks(plan, out);
  detail::hetu_sequence_parallel(plan, out);
  if (any_experts)
    out.elsewhere("the trainer's is_moe_model is true, and its moe_* arguments are those of the model's experts");
  if (file.contains("cp_sizes_enc") || file.contains("vcp"))
    out.elsewhere(
        "the trainer is Hetu-Galvatron 3.0 or later: earlier ones do not read cp_sizes_enc and vcp, and would take "
        "context ranks for data ranks");
  out.job = detail::hetu_job(plan, file["default_dp_type"] != "ddp");
  detail::tell_moments(plan, "Hetu-Galvatron", out);
  if (plan.precision == Precision::fp8)
    out.lacks("8-bit products: Hetu-Galvatron has none, and its mixed_precision is bf16");
  out.elsewhere("the trainer's seq_length is ", plan.sequence_length, " and its mixed_precision ",
                name_of(element_format(plan.precision)));
  out.text = file.dump(4) + "\n";
  return out;
}

}  // namespace galvatron
