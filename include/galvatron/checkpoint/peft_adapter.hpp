// An adapter of Hugging Face's peft as parameters of a model with adapters. What peft keeps of one: peft.hpp.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/checkpoint/peft.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/adapters.hpp>
#include <galvatron/model/detail/huggingface_fields.hpp>

namespace galvatron::train {

namespace detail {

/// Rank and alpha of an adapter_config.json, without targets, whose names the tensors tell. Errors (usage): another
/// method than LoRA; what changes the result and is not here.
inline Result<AdapterSpec> read_peft_config(const nlohmann::json& config, const std::string& name) {
  using galvatron::detail::refuse_if;
  using galvatron::detail::refuse_unless;
  JsonObject fields(config, name);
  AdapterSpec out;
  refuse_unless(fields, "peft_type", {"LORA"});
  refuse_unless(fields, "bias", {"none"});
  for (const char* key : {"use_dora", "use_qalora", "lora_bias"}) refuse_if(fields, key, true);
  const auto refuse_any = [&fields](std::string_view key, const char* what) {
    const nlohmann::json* value = fields.any(key);
    if (value != nullptr && !value->is_null() && !(value->is_structured() && value->empty()) && *value != false)
      fields.fail(fields.name(key) + ": " + what + " are not supported; merge this adapter with peft");
  };
  refuse_any("rank_pattern", "ranks that differ from layer to layer");
  refuse_any("alpha_pattern", "factors that differ from layer to layer");
  refuse_any("modules_to_save", "whole modules beside adapters");
  refuse_any("trainable_token_indices", "trained tokens beside adapters");
  refuse_any("target_parameters", "adapters of parameters");
  refuse_any("layer_replication", "repeated layers");
  for (const char* key :
       {"use_bdlora", "kasa_config", "monteclora_config", "velora_config", "arrow_config", "alora_invocation_tokens"})
    refuse_any(key, "kinds of adapters other than plain LoRA");
  // These begin with factors of the base's weights, which they take from it.
  if (const nlohmann::json* begins = fields.any("init_lora_weights"); begins != nullptr && begins->is_string()) {
    const auto word = begins->get<std::string>();
    fields.check("init_lora_weights", word == "gaussian" || word == "orthogonal" || word == "eva",
                 "\"" + galvatron::detail::one_line(word, 40) +
                     "\" changes the base, and adapters of a changed base are not supported; let peft write it as a "
                     "plain LoRA (save_pretrained's path_initial_model_for_weight_conversion)");
  }
  fields.field("r", out.rank, 1, most_adapter_rank);
  fields.field("lora_alpha", out.alpha, 1e-9, 1e9);
  if (fields.optional<bool>("use_rslora", false)) out.alpha *= std::sqrt(static_cast<double>(out.rank));
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return out;
}

/// The factors of the modules, as tensors of a file.
inline std::vector<HuggingFaceTensor> peft_tensors(const std::vector<PeftModule>& modules) {
  std::vector<HuggingFaceTensor> out;
  for (const PeftModule& module : modules) {
    const AdaptedLinear& linear = module.linear;
    out.push_back({.name = module.tensor("lora_A"),
                   .layer = module.layer,
                   .parameter = linear.a,
                   .row = module.first_rank,
                   .shape = {linear.rank, linear.inputs}});
    for (const PeftModule::Piece& piece : module.pieces)
      out.push_back({.name = module.tensor("lora_B"),
                     .layer = module.layer,
                     .parameter = linear.b,
                     .row = piece.first_row,
                     .shape = {piece.count, linear.rank},
                     .rows = piece.rows});
  }
  return out;
}

}  // namespace detail

/// Immutable after open(): ranks may share one.
class PeftAdapter {
 public:
  /// Reads adapter_config.json and adapter_model.safetensors of a folder. Errors (usage): files that are missing,
  /// damaged or of an adapter of another kind; tensors that do not fit the model, or of layers that have no adapters
  /// here.
  static Result<PeftAdapter> open(const std::filesystem::path& folder, const ModelSpec& base) {
    const std::filesystem::path config = folder / "adapter_config.json";
    const std::filesystem::path file = folder / "adapter_model.safetensors";
    const auto value = read_json_file(config);
    if (!value) return tl::unexpected<Error>(value.error());
    auto adapters = detail::read_peft_config(*value, config.string());
    if (!adapters) return tl::unexpected<Error>(std::move(adapters.error()));
    const auto mapped = MappedFile::open(file);
    if (!mapped) return tl::unexpected<Error>(mapped.error());
    const auto parsed = parse_safetensors(mapped->bytes(), file.string());
    if (!parsed) return tl::unexpected<Error>(parsed.error());
    std::set<std::string> names;
    for (const SafetensorsEntry& entry : parsed->entries) names.insert(entry.name);
    for (const AdapterTarget& target : adapter_targets) {
      AdapterSpec alone{.rank = adapters->rank, .alpha = adapters->alpha};
      alone.*target.has = true;
      const auto modules =
          with_adapters(base, alone).and_then([](const ModelSpec& model) { return peft_modules(model); });
      if (!modules) continue;  // a target that the model has not, or peft has not of it
      (*adapters).*target.has = std::ranges::any_of(
          *modules, [&](const PeftModule& module) { return names.contains(module.tensor("lora_A")); });
    }
    // Modules of queries, keys and values apart are those of one adapter for all of them, too.
    if (adapters->query || adapters->key || adapters->value) adapters->fused_qkv = false;
    if (adapter_target_names(*adapters).empty())
      return usage_error(file.string() + " has no adapter of a linear layer of the model " + base.name +
                         "; name the base that it was trained on");
    PeftAdapter out;
    auto model = with_adapters(base, *adapters);
    if (!model) return tl::unexpected<Error>(std::move(model.error()));
    const auto modules = peft_modules(*model);
    if (!modules) return tl::unexpected<Error>(modules.error());
    auto weights = HuggingFaceWeights::open(file, "with adapters of " + adapter_target_names(*adapters),
                                            detail::peft_tensors(*modules));
    if (!weights) return tl::unexpected<Error>(std::move(weights.error()));
    out.model_ = std::move(*model);
    out.weights_ = std::move(*weights);
    return out;
  }

  /// The base with these adapters.
  [[nodiscard]] const ModelSpec& model() const { return model_; }
  /// The adapters as parameters of model(). This must outlive it. It throws as HuggingFaceWeights::weights() does.
  [[nodiscard]] runtime::ParameterSource weights() const { return weights_.weights(); }

 private:
  PeftAdapter() = default;

  ModelSpec model_;
  HuggingFaceWeights weights_;
};

}  // namespace galvatron::train
