// Plans in the words of other trainers, and what they cost there: what the trainer runs, priced as all plans are.
//
//     const auto exported = value_or_throw(galvatron::export_plan(plan, galvatron::ExportTarget::megatron));
//     std::cout << exported.text;
//     for (const std::string& what : exported.not_expressed) std::cerr << what << "\n";
//
// Which models those have a program for: pretrain_gpt.py of NVIDIA/Megatron-LM, torchtitan/models/ of
// pytorch/torchtitan v0.2.2 and galvatron/core/runtime/models/builder.py of PKU-DAIR/Hetu-Galvatron (June 2026):
// decoders that predict the next token.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/compat/export/accelerate.hpp>
#include <galvatron/compat/export/deepspeed.hpp>
#include <galvatron/compat/export/exported.hpp>
#include <galvatron/compat/export/hetu.hpp>
#include <galvatron/compat/export/megatron.hpp>
#include <galvatron/compat/export/torchtitan.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

namespace detail {

/// The family of a model that is no decoder of a text with its article; empty for one that is.
inline std::string other_family(const ModelSpec& model) {
  const auto any = [&](auto has) { return std::ranges::any_of(model.blocks, has); };
  if (any([](const LayerSpec& b) { return b.window > 0; })) return "a Swin Transformer";
  if (model.takes_images()) return "a vision Transformer (ViT)";
  if (any([](const LayerSpec& b) { return b.memory.any(); })) return "an encoder with a decoder (T5)";
  if (model.head.head == HeadKind::masked_language) return "an encoder with a masked-language head (BERT)";
  if (model.head.head == HeadKind::classifier) return "a classifier";
  if (any([](const LayerSpec& b) { return !b.causal; })) return "an encoder";
  return {};
}

/// A word of a shell command, quoted where it has to be.
inline std::string shell_word(const std::string& text) {
  constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!text.empty() && text.find_first_not_of(plain) == std::string::npos) return text;
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Bytes as --memory takes them: `50GiB`, or a number of bytes.
inline std::string size_word(Bytes bytes) {
  for (const auto& [unit, shift] : {std::pair{"GiB", 30}, std::pair{"MiB", 20}})
    if (bytes.count > 0 && bytes.count % (std::int64_t{1} << shift) == 0) return text_of(bytes.count >> shift, unit);
  return std::to_string(bytes.count);
}

}  // namespace detail

/// Why `target` cannot train `model`, a sentence; empty where it can. DeepSpeed and Accelerate train any model that a
/// program brings.
inline std::string why_not_trained(const ModelSpec& model, ExportTarget target) {
  const std::string family = detail::other_family(model);
  if (family.empty() || target == ExportTarget::deepspeed || target == ExportTarget::accelerate) return {};
  const std::string trains = target == ExportTarget::megatron
                                 ? "the arguments are those of Megatron-LM's pretrain_gpt.py, which trains"
                             : target == ExportTarget::torchtitan ? "torchtitan's configurations name the modules of"
                                                                  : "Hetu-Galvatron's trainer builds";
  return model.name + " is " + family + ", and " + trains +
         " decoders such as GPT, Llama and Mixtral alone; export it as a header, or to deepspeed or accelerate, whose "
         "programs bring the model";
}

/// Why `target` cannot run an exported job for `model`, a sentence; empty where nothing is known against it.
inline std::string why_not_run(const Exported& exported, const ModelSpec& model, ExportTarget target) {
  if (!exported.job || target != ExportTarget::megatron || exported.job->layers.size() != model.blocks.size())
    return {};
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const StrategySpec& spec = exported.job->layers[i];
    if (can_split_layer(OneForAll::megatron, model.blocks[i], spec)) continue;
    return "Megatron-LM cannot run this plan: Ulysses over " + std::to_string(spec.context) + " context and " +
           std::to_string(spec.tensor) + " tensor ranks exchanges copies of the " +
           std::to_string(model.blocks[i].kv_heads) +
           " key/value heads, which Transformer Engine's attention does not; plan with --space uniform,megatron";
  }
  return {};
}

/// A consistent plan (why_inconsistent) for `target`; what that cannot express is in the result. Errors (usage): a plan
/// whose stages have different numbers of ranks, or ratios, or one that DeepSpeed or Accelerate cannot run at all.
/// @param model  what the plan is for: arguments of experts and latent attention, and which layers have experts; null
///               where it is not known
/// @param torchtitan  the release that is written for
inline Result<Exported> export_plan(const Plan& plan, ExportTarget target, const ModelSpec* model = nullptr,
                                    TorchtitanRelease torchtitan = TorchtitanRelease::v0_3) {
  if (plan.mixes_groups())
    return usage_error(
        "stages on several groups of devices: plans of mixed clusters are not exported to other trainers "
        "yet; export it as a header");
  if (plan.has_ratios())
    return usage_error(
        "samples or states are cut over ranks by ratios: the trainers that plans are exported to cut them evenly; "
        "export "
        "it as a header");
  for (const PlanStage& stage : plan.stages)
    if (stage.rank_count != plan.stages.front().rank_count)
      return usage_error(text_of(
          "stages of ", plan.stages.front().rank_count, " and of ", stage.rank_count,
          " ranks: the trainers that plans are exported to have equally many in all stages; export it as a header"));
  if (target == ExportTarget::megatron) return export_megatron(plan, model);
  if (target == ExportTarget::torchtitan) return export_torchtitan(plan, model, torchtitan);
  if (target == ExportTarget::deepspeed) return export_deepspeed(plan, model);
  if (target == ExportTarget::accelerate) return export_accelerate(plan, model);
  return export_hetu(plan, model);
}

/// The figures of an exported job. Prices are those of the plan's own trainer, so that plan and job differ by what the
/// target cannot express and by nothing else.
struct JobCost {
  Bytes peak;         ///< of the fullest rank
  Seconds iteration;  ///< of one iteration
  Bytes budget;       ///< of each device: the plan's, at most what the device has
  [[nodiscard]] bool fits() const { return peak <= budget; }
};

/// What `exported`, made of `plan`, costs on a cluster. Errors: those of cost_of for the plan that the target runs.
inline Result<JobCost> job_cost(const Exported& exported, const Plan& plan, const ModelSpec& model,
                                const Cluster& cluster) {
  const Plan job = exported.job.value_or(plan);
  const auto cost = cost_of(job, model, cluster);
  if (!cost) return tl::unexpected<Error>(cost.error());
  return JobCost{cost->peak(), cost->iteration, budget_of(plan, cluster, job.stages.front().group)};
}

/// The command that searches a plan like `plan`, for the same job, which `target` can be told, and writes it to `out`.
/// @param model, cluster  as the command line names them
inline std::string search_command(const Plan& plan, ExportTarget target, const std::string& model,
                                  const std::string& cluster, const ModelSpec& spec, Bytes device_memory,
                                  const std::string& out) {
  const Bytes budget = plan.predicted.budget;
  const bool names_moments = plan.moments != Precision::fp32 && target == ExportTarget::megatron;
  const Fp8Recipe recipe = plan.trainer.traits.fp8_recipe;
  const bool names_recipe = plan.precision == Precision::fp8 && recipe != Fp8Recipe::tensorwise;
  const bool interleaved = plan.schedule == ScheduleKind::interleaved && has_schedule(target, plan.schedule);
  return text_of(
      "galvatron plan --model ", detail::shell_word(model), " --cluster ", detail::shell_word(cluster),
      " --global-batch ", plan.global_batch,
      plan.sequence_length != spec.positions() ? text_of(" --seq ", plan.sequence_length) : "", " --precision ",
      name_of(plan.precision), names_recipe ? text_of(" --fp8-recipe ", name_of(recipe)) : "",
      names_moments ? " --moments " : "", names_moments ? name_of(plan.moments) : "",
      plan.trainer.is_own() ? "" : text_of(" --trainer ", detail::shell_word(plan.trainer.name)),
      budget.count > 0 && budget < device_memory ? " --memory " + detail::size_word(budget) : "", " --space uniform,",
      name_of(target), interleaved ? " --schedule 1f1b,interleaved" : "", " --out ", detail::shell_word(out));
}

}  // namespace galvatron
