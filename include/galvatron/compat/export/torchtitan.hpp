// A plan as a configuration of torchtitan: in Python, as releases from 0.3 on read it, or a job file of 0.2, in TOML.
//
// Source: torchtitan/config/configs.py, torchtitan/config/README.md, torchtitan/trainer.py, torchtitan/distributed/ and
// torchtitan/models/llama3/ of torchtitan 0.3.0; torchtitan/config/job_config.py and
// torchtitan/models/llama3/infra/parallelize.py of 0.2.2 (February 2026), the last release whose job files are TOML.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/one_for_all.hpp>

namespace galvatron {

/// Whose configurations are written.
enum class TorchtitanRelease : std::uint8_t {
  v0_3,  ///< a Python function that gives a configuration of the model what the plan decides
  v0_2,  ///< tables in TOML
};
constexpr const char* name_of(TorchtitanRelease release) { return release == TorchtitanRelease::v0_3 ? "0.3" : "0.2"; }

namespace detail {

/// Tables of a configuration. Values (strings, numbers, lists of them) have one form in TOML and in Python.
class TorchtitanTables {
 public:
  explicit TorchtitanTables(TorchtitanRelease release) : is_toml_(release == TorchtitanRelease::v0_2) {}
  [[nodiscard]] bool is_toml() const { return is_toml_; }

  void begin(std::string_view table) {
    table_ = table;
    if (is_toml_) text_ += text_of(text_.empty() ? "" : "\n", "[", table, "]\n");
  }
  template <class Value>
  void set(std::string_view key, const Value& value, std::string_view comment = "") {
    text_ += is_toml_ ? text_of(key, " = ", value) : text_of("    config.", table_, ".", key, " = ", value);
    text_ += text_of(comment.empty() ? "" : "  # ", comment, "\n");
  }
  /// A line of Python as it is.
  void statement(std::string_view line) { text_ += text_of("    ", line, "\n"); }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  bool is_toml_;
  std::string_view table_;
  std::string text_;
};
inline std::string in_quotes(std::string_view word) { return text_of("\"", word, "\""); }

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

/// How torchtitan recomputes.
struct TorchtitanRecompute {
  bool layers = false;  ///< whole ones
  int every = 1;        ///< of them those with such a distance in a stage
};

/// @param by_distance  whether the release has recomputation of every n-th layer
inline TorchtitanRecompute torchtitan_recompute(const Plan& plan, bool by_distance, Exported& out) {
  const auto kinds = layers_by(plan, [](const StrategySpec& s) { return std::string(name_of(recomputed(s))); });
  const bool selective =
      std::ranges::any_of(plan.layers, [](const StrategySpec& s) { return s.recompute == RecomputeKind::selective; });
  const int n = selective ? 0 : kinds.size() == 1 ? 1 : by_distance ? torchtitan_every_nth(plan) : 0;
  if (n > 0) {
    for (StrategySpec& layer : out.job->layers) layer.recompute = kept_but(plan, layer.recompute);
    tell_outputs(plan, "torchtitan", out);
    return {n > 1 || recomputed(plan.layers.front()) == RecomputeKind::full, n};
  }
  for (StrategySpec& layer : out.job->layers) layer.recompute = RecomputeKind::full;
  out.lacks(kinds.size() > 1 ? "recomputation differs from layer to layer, " + by_layer_text(kinds)
                             : "recomputation of the attention core alone, in all layers",
            ": torchtitan recomputes all layers", by_distance ? " or every n-th" : "",
            ", as a whole or keeping what products and attention give, and all as a whole is written, so that no rank "
            "keeps more than planned");
  return {.layers = true};
}

inline void write_recompute(const TorchtitanRecompute& recompute, TorchtitanTables& tables) {
  if (!tables.is_toml())
    return tables.statement(text_of("config.activation_checkpoint = ", recompute.layers ? "FullAC.Config()" : "None"));
  tables.begin("activation_checkpoint");
  tables.set("mode", in_quotes(recompute.every > 1 ? "selective" : recompute.layers ? "full" : "none"));
  if (recompute.every > 1)
    tables.set("selective_ac_option", in_quotes(std::to_string(recompute.every)), "every n-th layer");
}

/// Data parallelism: replicas are DDP, which stands alone; shards are FSDP.
inline void torchtitan_data(const Plan& plan, const StrategySpec& spec, TorchtitanTables& tables, Exported& out) {
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
  tables.set("data_parallel_replicate_degree", replicas ? spec.data : 1);
  tables.set("data_parallel_shard_degree", replicas ? 1 : spec.data);
  if (replicas || spec.shards() == 1) return;
  for (StrategySpec& layer : out.job->layers) layer.zero = spec.zero == 3 ? 3 : 2;
  out.job->embedding.zero = out.job->head.zero = spec.zero == 3 ? 3 : 2;
  tables.set("fsdp_reshard_after_forward", in_quotes(spec.zero == 3 ? "always" : "never"));
}

/// The class of torch.distributed.pipelining, without `Schedule`, for a schedule that torchtitan has.
constexpr const char* torchtitan_schedule(ScheduleKind kind) {
  switch (kind) {
    case ScheduleKind::gpipe:
      return "GPipe";
    case ScheduleKind::interleaved:
      return "Interleaved1F1B";
    case ScheduleKind::zb_v:
      return "ZBVZeroBubble";
    default:
      return "1F1B";
  }
}

inline void torchtitan_pipeline(const Plan& plan, std::int64_t samples, TorchtitanTables& tables, Exported& out) {
  tables.set("pipeline_parallel_degree", plan.stages.size());
  if (plan.stages.size() == 1) return;
  if (!has_schedule(OneForAll::torchtitan, plan.schedule))
    out.lacks("the schedule ", name_of(plan.schedule),
              ": the zero-bubble schedules of torchtitan have two stages or more on a rank, and 1F1B is written");
  const bool interleaved = plan.schedule == ScheduleKind::interleaved && plan.virtual_stages > 1;
  if (plan.schedule == ScheduleKind::interleaved && !interleaved)
    out.lacks(
        "the schedule interleaved with one virtual stage: torchtitan interleaves two or more, and 1F1B, which is the "
        "same here, is written");
  const bool kept = plan.schedule == ScheduleKind::gpipe || plan.schedule == ScheduleKind::zb_v || interleaved;
  if (!kept) out.job->schedule = ScheduleKind::one_f_one_b;
  tables.set("pipeline_parallel_schedule", in_quotes(torchtitan_schedule(out.job->schedule)));
  tables.set("pipeline_parallel_microbatch_size", samples);
  const std::string indent = tables.is_toml() ? "" : "    ";
  std::string modules = "[\n";
  const std::vector<LayerRange> parts = chunks_of(plan);
  for (const LayerRange& part : parts) {
    std::vector<std::string> names;
    if (&part == &parts.front()) names.emplace_back("tok_embeddings");
    for (int layer = part.first; layer <= part.last; ++layer) names.push_back(text_of("layers.", layer));
    if (&part == &parts.back()) names.insert(names.end(), {"norm", tables.is_toml() ? "output" : "lm_head"});
    modules += text_of(indent, "  [\"", joined(names, "\", \""), "\"],\n");
  }
  tables.set("module_fqns_per_model_part", modules + indent + "]");
}

/// What torchtitan's layers of experts lack: they balance by a bias alone, and take all choices.
inline void tell_torchtitan_experts(const ModelSpec& model, Exported& out) {
  const auto layer = std::ranges::find_if(model.blocks, [](const LayerSpec& block) { return block.experts > 0; });
  if (layer == model.blocks.end()) return;
  if (layer->router.has_losses())
    out.lacks("losses of the routers: torchtitan balances experts by their biases alone (load_balance_coeff)");
  if (layer->router.capacity > 0) out.lacks("a capacity of experts: torchtitan drops no choice");
  if (layer->shared_gate) out.lacks("a gate of the shared expert: torchtitan adds it as it is");
  out.elsewhere("the model has a flavor with num_experts = ", layer->experts, ", top_k = ", layer->active_experts);
}

/// The function of torchtitan's registries that makes the configuration of a model.
struct TorchtitanRegistry {
  std::string_view model;
  std::string_view module;
  std::string_view function;
};
inline constexpr TorchtitanRegistry torchtitan_registries[] = {{"llama3-8b", "llama3", "llama3_8b"},
                                                               {"llama3-70b", "llama3", "llama3_70b"},
                                                               {"llama3-405b", "llama3", "llama3_405b"},
                                                               {"deepseek-v3", "deepseek_v3", "deepseek_v3_671b"},
                                                               {"qwen3-30b-a3b", "qwen3", "qwen3_30b_a3b"}};

/// A Python module around the statements of `tables`, with `comments` at its top.
inline std::string torchtitan_module(const Plan& plan, const TorchtitanTables& tables, const std::string& comments,
                                     bool recomputes) {
  const auto* const known = std::ranges::find(torchtitan_registries, plan.model, &TorchtitanRegistry::model);
  const bool is_known = known != std::end(torchtitan_registries);
  std::string text =
      text_of("# torchtitan 0.3 configuration of ", export_title(plan), ". Made by `galvatron export`.\n", comments);
  if (recomputes) text += "from torchtitan.distributed.activation_checkpoint import FullAC\n";
  if (is_known)
    text += text_of("from torchtitan.models.", known->module, ".config_registry import ", known->function, "\n");
  text += text_of(
      "from torchtitan.trainer import Trainer\n\n\ndef planned(config: Trainer.Config) -> Trainer.Config:\n    "
      "\"\"\"Gives a configuration of the model what the plan decides.\"\"\"\n",
      tables.text(), "    return config\n");
  if (is_known) text += text_of("\n\ndef run() -> Trainer.Config:\n    return planned(", known->function, "())\n");
  return text;
}

/// 8-bit products are of a converter of the model: one for scales of tensors or rows, one for MXFP8
/// (torchtitan/components/quantization/float8.py and mx.py).
inline void torchtitan_fp8(TorchtitanTables& tables, Exported& out) {
  Fp8Recipe& recipe = out.job->trainer.traits.fp8_recipe;
  if (recipe == Fp8Recipe::delayed || recipe == Fp8Recipe::blockwise) {
    out.lacks("the FP8 recipe ", name_of(recipe),
              ": torchtitan has scales of tensors, of rows and of MXFP8, and those ", "of tensors are written");
    recipe = Fp8Recipe::tensorwise;
  }
  const bool toml = tables.is_toml();
  const bool mx = recipe == Fp8Recipe::mxfp8;
  const std::string table = mx ? "quantize.linear.mx" : "quantize.linear.float8";
  const std::string name = mx ? "mxfp8_cublas" : recipe == Fp8Recipe::rowwise ? "rowwise" : "";
  if (toml)
    out.elsewhere("the table [model] has converters = [", in_quotes(table), "], for the 8-bit products of blocks");
  else
    out.elsewhere("the model has converters=[", mx ? "MXLinearConverter" : "Float8LinearConverter", ".Config(",
                  name.empty() ? "..." : "recipe_name=" + in_quotes(name), ")], for the 8-bit products of blocks");
  if (!toml) return;
  tables.begin(table);
  if (!name.empty()) tables.set("recipe_name", in_quotes(name));
  tables.set("filter_fqns", "[\n  \"output\",\n]");
}

}  // namespace detail

/// What a plan decides of a configuration; comments say what it leaves out. Model parts have the module names of
/// torchtitan's Llama. The Python module has a function planned(config), and for models of torchtitan's registries
/// run(), for `--module FILE --config run`.
/// @param model  what the plan is for, if known
inline Exported export_torchtitan(const Plan& plan, const ModelSpec* model = nullptr,
                                  TorchtitanRelease release = TorchtitanRelease::v0_3) {
  Exported out;
  const std::string target = "torchtitan";
  detail::TorchtitanTables tables(release);
  const bool toml = tables.is_toml();
  StrategySpec spec = detail::one_for_all(plan, target, out, model);
  const bool whole_sequences = spec.tensor > 1 && !spec.cuts_over_tensor();
  if (whole_sequences && toml)
    out.lacks(
        "tensor parallelism with whole sequences between its regions: torchtitan 0.2 always splits the sequence there");
  if (spec.exchanges_heads()) out.lacks("Ulysses: torchtitan passes keys and values around, as ring attention does");
  spec.sequence = spec.tensor > 1 && (toml || !whole_sequences) ? SequenceKind::megatron
                  : spec.context > 1                            ? SequenceKind::ring
                                                                : SequenceKind::none;
  if (spec.exchanges_tokens() && !torchtitan_has_experts(spec) &&
      (!toml || spec.expert == 1 || spec.etp() != spec.tensor)) {
    out.lacks("experts whose degrees are ", detail::expert_text(spec),
              spec.expert == 1
                  ? ": torchtitan has experts that are not cut as other matrices only where they are spread, and no "
                    "spread is written"
              : toml
                  ? ": torchtitan 0.2 has whole experts or those that all tensor ranks cut, and whole ones are written"
                  : ": torchtitan has whole experts, which are written");
    spec.expert_tensor = spec.expert > 1 ? 1 : 0;
  }
  if (model != nullptr) detail::tell_torchtitan_experts(*model, out);
  detail::give_all(*out.job, spec, model);
  const std::int64_t samples = plan.microbatch() / spec.data;  // of a rank in a micro-batch
  const bool pipeline = plan.stages.size() > 1;
  tables.begin("training");
  // Without a pipeline a step accumulates over micro-batches; with one the local batch is what the pipeline cuts.
  tables.set("local_batch_size", pipeline ? plan.global_batch / spec.data : samples);
  tables.set("global_batch_size", plan.global_batch);
  tables.set("seq_len", plan.sequence_length);
  tables.set("dtype", detail::in_quotes("float32"));
  tables.set("mixed_precision_param", detail::in_quotes(plan.precision != Precision::fp32 ? "bfloat16" : "float32"));
  if (!toml && (pipeline || spec.expert > 1)) tables.set("disable_cuda_graphs", "True");
  tables.begin("parallelism");
  detail::torchtitan_data(plan, spec, tables, out);
  tables.set("tensor_parallel_degree", spec.tensor);
  if (!toml && spec.tensor > 1) tables.set("enable_sequence_parallel", whole_sequences ? "False" : "True");
  tables.set("context_parallel_degree", spec.context);
  if (spec.context > 1 && toml) tables.set("context_parallel_rotate_method", detail::in_quotes("alltoall"));
  if (spec.context > 1 && !toml)
    out.elsewhere(
        "keys and values go around where the model has attn_backend=\"sdpa\"; with \"flex\" every rank gathers all of "
        "them at once");
  if (spec.expert > 1) tables.set("expert_parallel_degree", spec.expert);
  if (spec.expert > 1 && toml) tables.set("expert_tensor_parallel_degree", spec.etp());
  detail::torchtitan_pipeline(plan, samples, tables, out);
  if (spec.context > 1 && plan.sequence_length % (std::int64_t{2} * spec.tensor * spec.context) != 0)
    out.lacks("a sequence of ", plan.sequence_length,
              " tokens: torchtitan needs a multiple of twice the context times the tensor degree");
  detail::tell_moments(plan, target, out);
  const detail::TorchtitanRecompute recompute = detail::torchtitan_recompute(plan, toml, out);
  detail::write_recompute(recompute, tables);
  if (plan.precision == Precision::fp8) detail::torchtitan_fp8(tables, out);
  if (!toml && std::ranges::find(detail::torchtitan_registries, plan.model, &detail::TorchtitanRegistry::model) ==
                   std::end(detail::torchtitan_registries))
    out.elsewhere("a function without arguments makes the configuration of the model and returns planned of it");
  const std::string comments = detail::export_comments(out);
  out.text = toml ? text_of("# torchtitan 0.2 job file of ", detail::export_title(plan),
                            ". Made by `galvatron export`.\n# The tables [model], [optimizer], [lr_scheduler] and the "
                            "data are to be added.\n",
                            comments, "\n", tables.text())
                  : detail::torchtitan_module(plan, tables, comments, recompute.layers);
  return out;
}

}  // namespace galvatron
