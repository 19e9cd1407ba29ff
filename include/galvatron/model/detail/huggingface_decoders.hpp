// The readers of Hugging Face configurations of Llama and the decoders that differ from it in their attention, norms or
// order of parts, and of their rotary positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

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

/// Rotary positions of a file.
struct RopeFields {
  double theta = 10000.0;
  RotaryScaling scaling{};
  double part = 1;  ///< of a head that they turn
};

/// Of an object of the file, `fields.name(key)`; `rope` is what it leaves out. Dynamic scaling begins behind the
/// model's positions. Other positions are refused: weights that were trained with them give other results without.
inline RopeFields rope_in(JsonObject& fields, const std::string& key, const nlohmann::json& value, RopeFields rope) {
  const auto refuse = [&](const std::string& what) {
    fields.fail(key + ": " + what +
                " are not supported; choose a model with plain ones (rope_type \"default\"), linear, dynamic, yarn or "
                "llama3");
  };
  JsonObject object(value, key);
  const auto old_name = object.optional<std::string>("type", "default");
  const auto type = object.optional<std::string>("rope_type", old_name);
  rope.theta = object.optional<double>("rope_theta", rope.theta);
  rope.part = object.optional<double>("partial_rotary_factor", rope.part);
  if (type == "yarn") rope.scaling = yarn_from(object);
  if (type == "llama3") rope.scaling = llama3_from(object);
  if (type == "linear")
    rope.scaling = {.ramp = RotaryRamp::none, .factor = object.required<double>("factor", 1.0, 1e6)};
  if (const auto done = object.finish_allowing_unknown_keys(); !done)
    fields.fail(done.error().message);
  else if (std::any_of(value.begin(), value.end(), [](const nlohmann::json& item) { return item.is_object(); }))
    refuse("rotary positions that differ from layer to layer");
  else if (type != "default" && type != "yarn" && type != "llama3" && type != "linear" && type != "dynamic")
    refuse("scaled rotary positions (\"" + one_line(type, 40) + "\")");
  return rope;
}

/// Older files have `rope_theta`, and `rope_scaling` beside it; files of transformers 5 have both in `rope_parameters`,
/// which counts where `rope_scaling` is empty.
/// @param rope  what transformers takes where the file says nothing
inline RopeFields rope_from(JsonObject& fields, RopeFields rope) {
  rope.theta = fields.optional<double>("rope_theta", rope.theta);
  rope.part = fields.optional<double>("partial_rotary_factor", rope.part);
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (const nlohmann::json* value = fields.any(key);
        value != nullptr && !value->is_null() && !(value->is_object() && value->empty()))
      return rope_in(fields, fields.name(key), *value, rope);
  return rope;
}

/// What transformers takes for keys that a file leaves out.
struct LlamaDefaults {
  double norm_epsilon = 1e-6;
  double rope_theta = 10000.0;
  std::int64_t kv_heads = 0;   ///< 0: all heads
  std::int64_t head_dim = 0;   ///< 0: the width of a layer over its heads
  bool biases = true;          ///< keys say whether there are any; false: there are none
  bool tied = false;           ///< the head uses the embedding's table
  bool silu = true;            ///< the activation is that of SwiGLU; false: the family's own reader reads it
  bool turns_a_part = false;   ///< positions may turn a part of each head
  bool own_positions = false;  ///< the family's own reader reads rotary positions
};

/// The elements of a head that positions turn; 0: all. transformers rounds down.
inline std::int64_t rotary_dim_of(JsonObject& fields, double part, std::int64_t head_dim) {
  const bool is_part = part > 0 && part <= 1;
  fields.check("partial_rotary_factor", is_part, "positions turn a part of a head, above 0 and at most 1");
  if (!is_part) return 0;
  const auto turned = static_cast<std::int64_t>(part * static_cast<double>(head_dim));
  return turned == head_dim ? 0 : turned;
}

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
  shape.tied = fields.optional<bool>("tie_word_embeddings", defaults.tied);
  shape.bias = defaults.biases && fields.optional<bool>("attention_bias", false);
  if (defaults.biases && fields.optional<bool>("mlp_bias", false) != shape.bias)
    fields.fail(fields.where() +
                ": \"attention_bias\" and \"mlp_bias\" differ, which is not supported; choose a model " +
                "with biases in both or in neither");
  if (defaults.silu) refuse_unless(fields, "hidden_act", {"silu", "swish"});
  refuse_quantized(fields);
  if (shape.head_dim == 0)
    refuse_indivisible(fields, "num_attention_heads", shape.heads, "hidden_size", shape.hidden,
                       " and there is no \"head_dim\"");
  if (defaults.own_positions || fields.failed()) return shape;
  const RopeFields rope = rope_from(fields, {.theta = defaults.rope_theta});
  shape.rope_theta = rope.theta;
  shape.rotary_scaling = rope.scaling;
  fields.check("partial_rotary_factor", defaults.turns_a_part || rope.part == 1,
               "rotary positions of a part of a head are not supported in this family; those of phi and phi3 are");
  if (defaults.turns_a_part)
    shape.rotary_dim =
        rotary_dim_of(fields, rope.part, shape.head_dim != 0 ? shape.head_dim : shape.hidden / shape.heads);
  return shape;
}

inline Result<ModelSpec> llama_from(JsonObject& fields, std::string name) {
  return built(fields, llama, std::move(name), llama_shape_from(fields, {}));
}

/// The sliding window of layers that have one; 0: none, or one that no sequence is longer than.
/// @param otherwise  where the file has no such key
inline std::int64_t sliding_window_from(JsonObject& fields, std::int64_t positions, std::int64_t otherwise) {
  const auto window = fields.optional<std::int64_t>("sliding_window", fields.contains("sliding_window") ? 0 : otherwise,
                                                    1, model_limits::positions);
  return window < positions ? window : 0;
}

/// Mistral: a Llama whose tokens attend to those within a window.
inline Result<ModelSpec> mistral_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.kv_heads = 8, .biases = false});
  shape.sliding_window = sliding_window_from(fields, shape.positions, 4096);
  return built(fields, llama, std::move(name), shape);
}

/// Phi-3: a Llama whose files have queries, keys and values in one tensor, and gate and up in another. Positions may
/// turn a part of each head (Phi-4-mini).
inline Result<ModelSpec> phi3_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.norm_epsilon = 1e-5, .biases = false, .turns_a_part = true});
  fields.check(fields.contains("rope_scaling") ? "rope_scaling" : "rope_parameters",
               shape.rotary_scaling == RotaryScaling{}, "transformers has no such positions in this family");
  shape.sliding_window = sliding_window_from(fields, shape.positions, 0);
  return built(fields, llama, std::move(name), shape);
}

/// Phi: GPT-2's activations, one norm for attention and MLP.
inline Result<ModelSpec> phi_from(JsonObject& fields, std::string name) {
  PhiShape shape;
  shape.hidden = fields.required<std::int64_t>("hidden_size", 1, model_limits::hidden);
  shape.layers = fields.required<int>("num_hidden_layers", 1, model_limits::layers);
  shape.heads = fields.required<std::int64_t>("num_attention_heads", 1, model_limits::heads);
  shape.kv_heads = fields.optional<std::int64_t>("num_key_value_heads", 0, 1, model_limits::heads);
  shape.ffn = fields.required<std::int64_t>("intermediate_size", 1, model_limits::ffn);
  shape.positions = fields.required<std::int64_t>("max_position_embeddings", 1, model_limits::positions);
  shape.vocabulary = fields.required<std::int64_t>("vocab_size", 1, model_limits::vocabulary);
  shape.norm_epsilon = fields.optional<double>("layer_norm_eps", 1e-5, 0.0, 1.0);
  shape.tied = fields.optional<bool>("tie_word_embeddings", false);
  shape.activation = activation_from(fields, "hidden_act", "gelu_new");
  refuse_if(fields, "qk_layernorm", true);
  refuse_quantized(fields);
  refuse_indivisible(fields, "num_attention_heads", shape.heads, "hidden_size", shape.hidden);
  if (!fields.failed()) {
    const RopeFields rope = rope_from(fields, {.part = 0.5});
    shape.rope_theta = rope.theta;
    shape.rotary_scaling = rope.scaling;
    shape.rotary_dim = rotary_dim_of(fields, rope.part, shape.hidden / shape.heads);
  }
  return built(fields, phi, std::move(name), shape);
}

/// Qwen's mixtures have no sliding windows here.
inline void refuse_windows(JsonObject& fields) {
  refuse_if(fields, "use_sliding_window", true);
  const nlohmann::json* types = fields.any("layer_types");
  const bool full =
      types == nullptr || types->is_null() ||
      std::all_of(types->begin(), types->end(), [](const auto& type) { return type == "full_attention"; });
  fields.check("layer_types", full, "only \"full_attention\" is supported");
}

/// Which layers have a sliding window: as the file lists them, or by `otherwise(layer)`.
template <class Otherwise>
std::vector<bool> sliding_layers(JsonObject& fields, int layers, const Otherwise& otherwise) {
  std::vector<bool> out;
  const nlohmann::json* types = fields.any("layer_types");
  if (types == nullptr || types->is_null()) {
    for (int i = 0; i < layers; ++i) out.push_back(otherwise(i));
    return out;
  }
  const bool is_list = types->is_array() && types->size() == static_cast<std::size_t>(layers);
  fields.check("layer_types", is_list, "expected a list of " + std::to_string(layers) + " words, one for each layer");
  if (!is_list) return std::vector<bool>(static_cast<std::size_t>(std::max(layers, 0)));
  for (const nlohmann::json& type : *types) {
    fields.check("layer_types", type == "sliding_attention" || type == "full_attention",
                 "only \"sliding_attention\" and \"full_attention\" are supported");
    out.push_back(type == "sliding_attention");
  }
  return out;
}

/// Gives the window to these layers of a model.
inline ModelSpec with_sliding_window(ModelSpec model, const std::vector<bool>& sliding, std::int64_t window) {
  for (std::size_t i = 0; i < model.blocks.size(); ++i) model.blocks[i].sliding_window = sliding[i] ? window : 0;
  return model;
}

/// A Qwen2 or Qwen3. Where a window is used, the layers from `max_window_layers` on have it.
inline Result<ModelSpec> qwen_from(JsonObject& fields, std::string name, const LlamaShape& shape) {
  const bool slides = fields.optional<bool>("use_sliding_window", false);
  const auto full = fields.optional<std::int64_t>("max_window_layers", 28, 0, model_limits::layers);
  const std::vector<bool> sliding =
      sliding_layers(fields, shape.layers, [&](std::int64_t layer) { return slides && layer >= full; });
  const std::int64_t window = slides ? sliding_window_from(fields, shape.positions, 4096) : 0;
  return built(
      fields,
      [&](std::string called, const LlamaShape& numbers) {
        return with_sliding_window(llama(std::move(called), numbers), sliding, window);
      },
      std::move(name), shape);
}

inline Result<ModelSpec> qwen2_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.kv_heads = 32, .biases = false});
  shape.qkv_bias = true;
  return qwen_from(fields, std::move(name), shape);
}

inline Result<ModelSpec> qwen3_from(JsonObject& fields, std::string name) {
  LlamaShape shape = llama_shape_from(fields, {.kv_heads = 32, .head_dim = 128, .biases = false});
  shape.query_key_norm = QueryKeyNorm::heads;
  refuse_if(fields, "attention_bias", true);
  return qwen_from(fields, std::move(name), shape);
}

/// What of Gemma's files is alike. GELU is its tanh approximation.
inline GemmaShape gemma_shape_from(JsonObject& fields, std::int64_t kv_heads, bool own_positions) {
  GemmaShape shape;
  shape.decoder = llama_shape_from(fields, {.kv_heads = kv_heads,
                                            .head_dim = 256,
                                            .biases = false,
                                            .tied = true,
                                            .silu = false,
                                            .own_positions = own_positions});
  for (const char* key : {"attention_bias", "use_bidirectional_attention"}) refuse_if(fields, key, true);
  return shape;
}

/// Gemma. The "gelu" of older files means the approximation too.
inline Result<ModelSpec> gemma_from(JsonObject& fields, std::string name) {
  const GemmaShape shape = gemma_shape_from(fields, 16, false);
  refuse_unless(fields, "hidden_act", {"gelu_pytorch_tanh", "gelu", "gelu_new", "gelu_fast"});
  return built(fields, gemma, std::move(name), shape);
}

/// A soft cap of logits or scores; 0 where the file has null, for no cap.
/// @param otherwise  where the file says nothing
inline double soft_cap_from(JsonObject& fields, const std::string& key, double otherwise) {
  const auto cap = fields.optional<double>(key, fields.contains(key) ? 0 : otherwise);
  fields.check(key, cap == 0 || (cap >= 1e-3 && cap <= 1e6), "expected a number from 1e-3 to 1e6, or null for no cap");
  return cap;
}

/// What Gemma 2 has beside Gemma, and Gemma 3 too.
inline void read_gemma2(JsonObject& fields, GemmaShape& shape) {
  shape.norms_around = true;
  shape.score_width = fields.optional<std::int64_t>("query_pre_attn_scalar", 256, 1, model_limits::head_dim);
  refuse_unless(fields, "hidden_activation", {"gelu_pytorch_tanh", "gelu_new", "gelu_fast"});
}

inline Result<ModelSpec> gemma2_from(JsonObject& fields, std::string name) {
  GemmaShape shape = gemma_shape_from(fields, 4, false);
  read_gemma2(fields, shape);
  shape.score_cap = soft_cap_from(fields, "attn_logit_softcapping", 50);
  shape.logits_cap = soft_cap_from(fields, "final_logit_softcapping", 30);
  const std::vector<bool> sliding = sliding_layers(fields, shape.decoder.layers, [](int i) { return i % 2 == 0; });
  const std::int64_t window = sliding_window_from(fields, shape.decoder.positions, 4096);
  return built(
      fields,
      [&](std::string called, const GemmaShape& numbers) {
        return with_sliding_window(gemma(std::move(called), numbers), sliding, window);
      },
      std::move(name), shape);
}

/// Gemma 3's text models: queries and keys have norms, and layers with a sliding window have positions of their own.
/// transformers caps their logits where the file says so, but never their scores.
inline Result<ModelSpec> gemma3_from(JsonObject& fields, std::string name) {
  GemmaShape shape = gemma_shape_from(fields, 4, true);
  read_gemma2(fields, shape);
  shape.logits_cap = soft_cap_from(fields, "final_logit_softcapping", 0);
  refuse_present(fields, "attn_logit_softcapping", "soft-capping of a Gemma 3's scores",
                 "its trainers compute scores without one; choose a file that says null, or a Gemma 2");
  shape.decoder.query_key_norm = QueryKeyNorm::heads;
  const int period = fields.optional<int>("sliding_window_pattern", 6, 1, model_limits::layers);
  const std::vector<bool> sliding =
      sliding_layers(fields, shape.decoder.layers, [period](int i) { return (i + 1) % period != 0; });
  const std::int64_t window = sliding_window_from(fields, shape.decoder.positions, 4096);
  RopeFields far{.theta = fields.optional<double>("rope_theta", 1e6)};
  RopeFields near{.theta = fields.optional<double>("rope_local_base_freq", 1e4)};
  const auto read = [&fields](const std::string& key, const nlohmann::json* value, RopeFields& rope) {
    if (value == nullptr || value->is_null()) return;
    rope = rope_in(fields, key, *value, rope);
    fields.check("partial_rotary_factor", rope.part == 1,
                 "rotary positions of a part of a head are not supported here");
  };
  if (const nlohmann::json* parameters = fields.any("rope_parameters");
      parameters != nullptr && parameters->is_object())
    for (const auto& [key, rope] : {std::pair{"full_attention", &far}, std::pair{"sliding_attention", &near}})
      if (const auto found = parameters->find(key); found != parameters->end())
        read(fields.name("rope_parameters") + "." + key, &*found, *rope);
  read(fields.name("rope_scaling"), fields.any("rope_scaling"), far);
  return built(
      fields,
      [&](std::string called, const GemmaShape& numbers) {
        ModelSpec model = with_sliding_window(gemma(std::move(called), numbers), sliding, window);
        for (std::size_t i = 0; i < model.blocks.size(); ++i) {
          const RopeFields& rope = sliding[i] ? near : far;
          model.blocks[i].rope_theta = rope.theta;
          model.blocks[i].rotary_scaling = rope.scaling;
        }
        return model;
      },
      std::move(name), shape);
}

}  // namespace galvatron::detail
