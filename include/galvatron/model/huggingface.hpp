// Reading the config.json of a Hugging Face model.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/check.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/model/zoo.hpp>

namespace galvatron {

namespace detail {

inline Result<ModelSpec> finished(JsonObject& fields, ModelSpec model) {
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return checked(std::move(model));
}

/// Fails the reader when a switch that galvatron has no code for is on.
inline void refuse_if(JsonObject& fields, std::string_view key, bool refused_value, bool otherwise) {
  if (fields.optional<bool>(key, otherwise) == refused_value)
    fields.fail(fields.name(key) + ": " + (refused_value ? "true" : "false") + " is not supported; only " +
                (refused_value ? "false" : "true") + " is");
}

inline void refuse_present(JsonObject& fields, std::string_view key, std::string_view what) {
  const nlohmann::json* value = fields.any(key);
  if (value != nullptr && !value->is_null())
    fields.fail(fields.name(key) + ": " + std::string(what) + " is not supported; remove the key to go without");
}

inline Result<ModelSpec> gpt2_from(JsonObject& fields, std::string name) {
  GptShape shape;
  shape.hidden = fields.required<std::int64_t>("n_embd", 1, model_limits::hidden);
  shape.layers = fields.required<int>("n_layer", 1, model_limits::layers);
  shape.heads = fields.required<std::int64_t>("n_head", 1, model_limits::heads);
  shape.positions = fields.required<std::int64_t>("n_positions", 1, model_limits::positions);
  shape.vocabulary = fields.required<std::int64_t>("vocab_size", 1, model_limits::vocabulary);
  shape.ffn = fields.optional<std::int64_t>("n_inner", 0, 1, model_limits::ffn);
  shape.norm_epsilon = fields.optional<double>("layer_norm_epsilon", 1e-5, 0.0, 1.0);
  shape.tied = fields.optional<bool>("tie_word_embeddings", true);
  const auto activation = fields.optional<std::string>("activation_function", "gelu_new");
  if (activation != "gelu_new" && activation != "gelu_pytorch_tanh" && activation != "gelu_fast")
    fields.fail(fields.name("activation_function") + ": \"" + one_line(activation, 40) +
                "\" is not supported; only the tanh approximation of GELU is (gelu_new, gelu_pytorch_tanh, gelu_fast)");
  refuse_if(fields, "scale_attn_weights", false, true);
  refuse_if(fields, "scale_attn_by_inverse_layer_idx", true, false);
  refuse_if(fields, "add_cross_attention", true, false);
  refuse_present(fields, "quantization_config", "a quantized model");
  if (!fields.failed() && shape.hidden % shape.heads != 0)
    fields.fail(fields.where() + ": \"n_head\" " + std::to_string(shape.heads) + " does not divide \"n_embd\" " +
                std::to_string(shape.hidden));
  if (fields.failed()) shape = {};
  return finished(fields, gpt(std::move(name), shape));
}

/// The base of the rotary positions, from `rope_theta` or, in newer files, `rope_parameters`; scaled ones are refused.
inline double rope_theta_from(JsonObject& fields) {
  double theta = fields.optional<double>("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = fields.any(key);
    if (value == nullptr || value->is_null()) continue;
    JsonObject rope(*value, fields.name(key));
    const auto old_name = rope.optional<std::string>("type", "default");
    const auto type = rope.optional<std::string>("rope_type", old_name);
    theta = rope.optional<double>("rope_theta", theta);
    if (const auto done = rope.finish_allowing_unknown_keys(); !done)
      fields.fail(done.error().message);
    else if (type != "default")
      fields.fail(fields.name(key) + ": scaled rotary positions (\"" + one_line(type, 40) +
                  "\") are not supported; remove the key to train with plain ones");
  }
  return theta;
}

inline Result<ModelSpec> llama_from(JsonObject& fields, std::string name) {
  LlamaShape shape;
  shape.hidden = fields.required<std::int64_t>("hidden_size", 1, model_limits::hidden);
  shape.layers = fields.required<int>("num_hidden_layers", 1, model_limits::layers);
  shape.heads = fields.required<std::int64_t>("num_attention_heads", 1, model_limits::heads);
  shape.kv_heads = fields.optional<std::int64_t>("num_key_value_heads", 0, 1, model_limits::heads);
  shape.head_dim = fields.optional<std::int64_t>("head_dim", 0, 1, model_limits::head_dim);
  shape.ffn = fields.required<std::int64_t>("intermediate_size", 1, model_limits::ffn);
  shape.positions = fields.required<std::int64_t>("max_position_embeddings", 1, model_limits::positions);
  shape.vocabulary = fields.required<std::int64_t>("vocab_size", 1, model_limits::vocabulary);
  shape.norm_epsilon = fields.optional<double>("rms_norm_eps", 1e-6, 0.0, 1.0);
  shape.rope_theta = rope_theta_from(fields);
  shape.tied = fields.optional<bool>("tie_word_embeddings", false);
  shape.bias = fields.optional<bool>("attention_bias", false);
  if (fields.optional<bool>("mlp_bias", false) != shape.bias)
    fields.fail(fields.where() +
                ": \"attention_bias\" and \"mlp_bias\" differ, which is not supported; set both alike");
  const auto activation = fields.optional<std::string>("hidden_act", "silu");
  if (activation != "silu" && activation != "swish")
    fields.fail(fields.name("hidden_act") + ": \"" + one_line(activation, 40) + "\" is not supported; only silu is");
  if (fields.optional<double>("partial_rotary_factor", 1.0) != 1.0)
    fields.fail(fields.name("partial_rotary_factor") + ": rotary positions of a part of a head are not supported");
  refuse_present(fields, "quantization_config", "a quantized model");
  if (!fields.failed() && shape.head_dim == 0 && shape.hidden % shape.heads != 0)
    fields.fail(fields.where() + ": \"num_attention_heads\" " + std::to_string(shape.heads) +
                " does not divide \"hidden_size\" " + std::to_string(shape.hidden) + " and there is no \"head_dim\"");
  if (fields.failed()) shape = {};
  return finished(fields, llama(std::move(name), shape));
}

}  // namespace detail

/// The model that a Hugging Face config.json describes; model types `gpt2` and `llama`. `name` becomes its name and
/// opens the messages. Dropout rates and generation settings are not read. Errors (usage): malformed JSON, a missing or
/// impossible value, a model type or a feature that has no implementation here.
inline Result<ModelSpec> parse_huggingface_config(std::string_view text, const std::string& name) {
  const auto value = parse_json(text, name);
  if (!value) return tl::unexpected<Error>(value.error());
  JsonObject fields(*value, name);
  const auto type = fields.required<std::string>("model_type");
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  if (type == "gpt2") return detail::gpt2_from(fields, name);
  if (type == "llama") return detail::llama_from(fields, name);
  return usage_error(fields.name("model_type") + ": \"" + detail::one_line(type, 40) +
                     "\" is not supported; supported are gpt2 and llama");
}

/// A model by preset name, or by the path of a Hugging Face config.json or of a folder that has one; a model that was
/// read from a file has the path as its name. Errors (usage): an unknown name, with the nearest ones; an unreadable
/// file; those of parse_huggingface_config.
inline Result<ModelSpec> load_model(std::string_view name_or_path) {
  auto preset = find_model(name_or_path);
  if (preset) return preset;
  std::filesystem::path path(name_or_path);
  std::error_code ignored;
  const bool looks_like_path = name_or_path.find('/') != std::string_view::npos || path.extension() == ".json";
  if (name_or_path.empty() || (!looks_like_path && !std::filesystem::exists(path, ignored))) return preset;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  const auto text = read_text_file(path, std::int64_t{16} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  return parse_huggingface_config(*text, path.string());
}

}  // namespace galvatron
