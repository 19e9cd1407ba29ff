// The readers of Hugging Face configurations of Llama and the decoders that differ from it in their attention, and of
// their rotary positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/detail/huggingface_fields.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::detail {

/// YaRN's numbers, as transformers reads them: the amplitude is that of the file, or follows from the factor.
inline RotaryScaling yarn_from(JsonObject& rope) {
  RotaryScaling out;
  out.factor = rope.required<double>("factor", 1.0, 1e6);
  out.positions = rope.required<std::int64_t>("original_max_position_embeddings", 1, model_limits::positions);
  out.fast = rope.optional<double>("beta_fast", 32.0, 1e-6, 1e6);
  out.slow = rope.optional<double>("beta_slow", 1.0, 1e-6, 1e6);
  const auto grown = [&](double rate) { return 0.1 * rate * std::log(std::max(out.factor, 1.0)) + 1; };
  const double rate = rope.optional<double>("mscale", 0.0, 0.0, 1e3);
  const double rate_of_all = rope.optional<double>("mscale_all_dim", 0.0, 0.0, 1e3);
  const double usual = rate > 0 && rate_of_all > 0 ? grown(rate) / grown(rate_of_all) : grown(1);
  out.amplitude = rope.optional<double>("attention_factor", usual, 1e-3, 1e3);
  refuse_if(rope, "truncate", false);
  return out;
}

/// The scaling of Llama 3.1 and its successors.
inline RotaryScaling llama3_from(JsonObject& rope) {
  RotaryScaling out{.ramp = RotaryRamp::turns};
  out.factor = rope.required<double>("factor", 1.0, 1e6);
  out.positions = rope.required<std::int64_t>("original_max_position_embeddings", 1, model_limits::positions);
  out.fast = rope.required<double>("high_freq_factor", 1e-6, 1e6);
  out.slow = rope.required<double>("low_freq_factor", 1e-6, 1e6);
  return out;
}

/// The base of the rotary positions. Older files have `rope_theta`, and `rope_scaling` beside it; files of transformers
/// 5 have both in `rope_parameters`, which counts where `rope_scaling` is empty. Dynamic scaling begins behind the
/// model's positions. Other positions are refused: weights that were trained with them give other results without.
/// @param scaling  if the file has one
inline double rope_theta_from(JsonObject& fields, double otherwise, RotaryScaling& scaling) {
  const double theta = fields.optional<double>("rope_theta", otherwise);
  const auto refuse = [&fields](const std::string& key, const std::string& what) {
    fields.fail(key + ": " + what +
                " are not supported; choose a model with plain ones (rope_type \"default\"), linear, dynamic, yarn or "
                "llama3");
  };
  if (fields.optional<double>("partial_rotary_factor", 1.0) != 1.0)
    refuse(fields.name("partial_rotary_factor"), "rotary positions of a part of a head");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = fields.any(key);
    if (value == nullptr || value->is_null() || (value->is_object() && value->empty())) continue;
    JsonObject rope(*value, fields.name(key));
    const auto old_name = rope.optional<std::string>("type", "default");
    const auto type = rope.optional<std::string>("rope_type", old_name);
    const double own_theta = rope.optional<double>("rope_theta", theta);
    const double part = rope.optional<double>("partial_rotary_factor", 1.0);
    if (type == "yarn") scaling = yarn_from(rope);
    if (type == "llama3") scaling = llama3_from(rope);
    if (type == "linear") scaling = {.ramp = RotaryRamp::none, .factor = rope.required<double>("factor", 1.0, 1e6)};
    if (const auto done = rope.finish_allowing_unknown_keys(); !done)
      fields.fail(done.error().message);
    else if (std::any_of(value->begin(), value->end(), [](const nlohmann::json& item) { return item.is_object(); }))
      refuse(fields.name(key), "rotary positions that differ from layer to layer");
    else if (type != "default" && type != "yarn" && type != "llama3" && type != "linear" && type != "dynamic")
      refuse(fields.name(key), "scaled rotary positions (\"" + one_line(type, 40) + "\")");
    else if (part != 1.0)
      refuse(fields.name(key), "rotary positions of a part of a head");
    return own_theta;
  }
  return theta;
}

/// What transformers takes for keys that a file leaves out.
struct LlamaDefaults {
  double norm_epsilon = 1e-6;
  double rope_theta = 10000.0;
  std::int64_t kv_heads = 0;  ///< 0: all heads
  std::int64_t head_dim = 0;  ///< 0: the width of a layer over its heads
  bool biases = true;         ///< keys say whether there are any; false: there are none
};

inline LlamaShape llama_shape_from(JsonObject& fields, const LlamaDefaults& defaults) {
  LlamaShape shape;
  shape.hidden = fields.required<std::int64_t>("hidden_size", 1, model_limits::hidden);
  shape.layers = fields.required<int>("num_hidden_layers", 1, model_limits::layers);
  shape.heads = fields.required<std::int64_t>("num_attention_heads", 1, model_limits::heads);
  const std::int64_t kv_heads = fields.contains("num_key_value_heads") ? 0 : defaults.kv_heads;  // null: all heads
  shape.kv_heads = fields.optional<std::int64_t>("num_key_value_heads", kv_heads, 1, model_limits::heads);
  const std::int64_t head_dim = fields.contains("head_dim") ? 0 : defaults.head_dim;  // null: the usual one
  shape.head_dim = fields.optional<std::int64_t>("head_dim", head_dim, 1, model_limits::head_dim);
  shape.ffn = fields.required<std::int64_t>("intermediate_size", 1, model_limits::ffn);
  shape.positions = fields.required<std::int64_t>("max_position_embeddings", 1, model_limits::positions);
  shape.vocabulary = fields.required<std::int64_t>("vocab_size", 1, model_limits::vocabulary);
  shape.norm_epsilon = fields.optional<double>("rms_norm_eps", defaults.norm_epsilon, 0.0, 1.0);
  shape.rope_theta = rope_theta_from(fields, defaults.rope_theta, shape.rotary_scaling);
  shape.tied = fields.optional<bool>("tie_word_embeddings", false);
  shape.bias = defaults.biases && fields.optional<bool>("attention_bias", false);
  if (defaults.biases && fields.optional<bool>("mlp_bias", false) != shape.bias)
    fields.fail(fields.where() +
                ": \"attention_bias\" and \"mlp_bias\" differ, which is not supported; choose a model " +
                "with biases in both or in neither");
  refuse_unless(fields, "hidden_act", {"silu", "swish"});
  refuse_quantized(fields);
  if (shape.head_dim == 0)
    refuse_indivisible(fields, "num_attention_heads", shape.heads, "hidden_size", shape.hidden,
                       " and there is no \"head_dim\"");
  return shape;
}

inline Result<ModelSpec> llama_from(JsonObject& fields, std::string name) {
  return built(fields, llama, std::move(name), llama_shape_from(fields, {}));
}

/// Mistral: a Llama whose tokens attend to those within a window. Sequences no longer than it attend to all, so that
/// the model's positions are those of the window.
inline Result<ModelSpec> mistral_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.kv_heads = 8, .biases = false});
  const auto window = fields.optional<std::int64_t>("sliding_window", fields.contains("sliding_window") ? 0 : 4096, 1,
                                                    model_limits::positions);
  if (window > 0) shape.positions = std::min(shape.positions, window);
  return built(fields, llama, std::move(name), shape);
}

/// Qwen's decoders have no windows here.
inline void refuse_windows(JsonObject& fields) {
  refuse_if(fields, "use_sliding_window", true);
  const nlohmann::json* types = fields.any("layer_types");
  const bool full =
      types == nullptr || types->is_null() ||
      std::all_of(types->begin(), types->end(), [](const auto& type) { return type == "full_attention"; });
  fields.check("layer_types", full, "only \"full_attention\" is supported");
}

inline Result<ModelSpec> qwen2_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.kv_heads = 32, .biases = false});
  shape.qkv_bias = true;
  refuse_windows(fields);
  return built(fields, llama, std::move(name), shape);
}

inline Result<ModelSpec> qwen3_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.kv_heads = 32, .head_dim = 128, .biases = false});
  shape.query_key_norm = QueryKeyNorm::heads;
  refuse_if(fields, "attention_bias", true);
  refuse_windows(fields);
  return built(fields, llama, std::move(name), shape);
}

}  // namespace galvatron::detail
