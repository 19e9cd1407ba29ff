// CLIP (Radford et al., "Learning transferable visual models from natural language supervision", ICML 2021) as Hugging
// Face's config.json describes it: a tower of texts, a tower of images, and their contrastive loss.
//
//     text    tokens -> embedding, blocks with a mask -> the token that ends the text -> norm, projection ─┐
//     vision  patches -> embedding, norm -> blocks    -> the class token              -> norm, projection ─┴─> contrast
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/components.hpp>
#include <galvatron/model/detail/huggingface_readers.hpp>
#include <galvatron/model/multi_task.hpp>

namespace galvatron {

struct ClipShape {
  ComponentShape text{.kind = ComponentKind::text};
  ComponentShape vision{.kind = ComponentKind::patches};
  std::int64_t patch = 0;       ///< pixels of a side
  std::int64_t channels = 3;    ///< of an image
  double logit_scale = 2.6592;  ///< the logarithm of the logits' factor that config.json names

  friend bool operator==(const ClipShape&, const ClipShape&) = default;
  [[nodiscard]] std::int64_t image() const { return side_of_square(vision.tokens - 1) * patch; }
};

enum class ClipPart : std::uint8_t { text, vision, contrast };
inline constexpr std::array clip_parts{ClipPart::text, ClipPart::vision, ClipPart::contrast};
constexpr const char* name_of(ClipPart part) {
  constexpr std::array names{"text", "vision", "contrast"};
  return names[static_cast<std::size_t>(part)];
}

inline std::vector<LayerSpec> part_of(const ClipShape& shape, ClipPart part) {
  if (part == ClipPart::contrast)
    return component_layers({.kind = ComponentKind::contrastive, .hidden = shape.text.output});
  return component_layers(part == ClipPart::text ? shape.text : shape.vision);
}

/// CLIP as a model of one task, "text-vision", with a component of each part's name.
/// @param batch  samples of a step
inline MultiTaskModel clip_model(std::string name, const ClipShape& shape, std::int64_t batch) {
  MultiTaskModel out{std::move(name), {}, {{"text-vision", {{"text"}, {"vision"}}, "contrast", batch}}};
  for (const ClipPart part : clip_parts)
    out.components.push_back(
        {name_of(part), part_of(shape, part),
         part == ClipPart::contrast ? std::vector<std::string>{"text", "vision"} : std::vector<std::string>{}});
  return out;
}

namespace detail {

/// What both towers have in Hugging Face's spelling; transformers' values for keys that a file leaves out.
/// @param otherwise  hidden size, width of the MLP and heads
inline void clip_tower_from(JsonObject& fields, ComponentShape& shape, const std::array<std::int64_t, 3>& otherwise) {
  shape.hidden = fields.optional<std::int64_t>("hidden_size", otherwise[0], 1, model_limits::hidden);
  shape.ffn = fields.optional<std::int64_t>("intermediate_size", otherwise[1], 1, model_limits::ffn);
  shape.heads = fields.optional<std::int64_t>("num_attention_heads", otherwise[2], 1, model_limits::heads);
  shape.layers = fields.optional<int>("num_hidden_layers", 12, 1, static_cast<int>(model_limits::layers));
  shape.norm_epsilon = fields.optional<double>("layer_norm_eps", 1e-5, 0.0, 1.0);
  refuse_indivisible(fields, "num_attention_heads", shape.heads, "hidden_size", shape.hidden);
  shape.activation = activation_from(fields, "hidden_act", "quick_gelu");
}

inline void clip_text_from(JsonObject& fields, ComponentShape& shape) {
  clip_tower_from(fields, shape, {512, 2048, 8});
  shape.vocabulary = fields.optional<std::int64_t>("vocab_size", 49408, 1, model_limits::vocabulary);
  shape.tokens = fields.optional<std::int64_t>("max_position_embeddings", 77, 1, model_limits::positions);
  // Files older than the vocabulary's end token have 2 instead, and their texts end with the largest id.
  const auto end = fields.optional<std::int64_t>("eos_token_id", 49407, 0, model_limits::vocabulary);
  shape.end_token = end == 2 ? largest_token : end;
}

inline void clip_vision_from(JsonObject& fields, ClipShape& clip) {
  constexpr std::int64_t most = 1 << 14;
  clip_tower_from(fields, clip.vision, {768, 3072, 12});
  const auto image = fields.optional<std::int64_t>("image_size", 224, 1, most);
  clip.patch = fields.optional<std::int64_t>("patch_size", 32, 1, most);
  clip.channels = fields.optional<std::int64_t>("num_channels", 3, 1, most);
  refuse_indivisible(fields, "patch_size", clip.patch, "image_size", image);
  clip.vision.patch = clip.channels * clip.patch * clip.patch;
  clip.vision.tokens = 1 + (image / clip.patch) * (image / clip.patch);
  clip.vision.class_token = clip.vision.embedding_norm = true;
  clip.vision.patch_bias = false;
}

}  // namespace detail

/// True for the config.json of a CLIP.
inline bool describes_clip(const nlohmann::json& value) {
  return value.is_object() && value.contains("model_type") && value.at("model_type") == "clip";
}
/// True for such a file, or a folder that has one.
inline bool describes_clip(std::filesystem::path path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  const auto value = read_json_file(path);
  return value && describes_clip(*value);
}

/// What the config.json of a CLIPModel describes, as transformers reads it; `source_name` opens the messages. Errors
/// (usage): another type of model, impossible values, a feature that has no implementation here.
inline Result<ClipShape> clip_from_json(const nlohmann::json& value, const std::string& source_name) {
  JsonObject fields(value, source_name);
  if (!describes_clip(value))
    return usage_error(source_name + " is no config.json of a CLIP: its \"model_type\" is not \"clip\"");
  ClipShape out;
  const auto tower = [&](const char* key, const char* old_key, const auto& read) {
    const nlohmann::json* own = fields.any(key);
    const nlohmann::json* old = fields.any(old_key);  // where there is one, transformers reads it instead
    if (old != nullptr && old->is_object()) own = old;
    const nlohmann::json none = nlohmann::json::object();
    JsonObject config(own != nullptr && !own->is_null() ? *own : none, fields.name(own == old ? old_key : key));
    read(config);
    if (auto done = config.finish_allowing_unknown_keys(); !done) fields.fail(done.error().message);
  };
  tower("text_config", "text_config_dict", [&](JsonObject& config) { detail::clip_text_from(config, out.text); });
  tower("vision_config", "vision_config_dict", [&](JsonObject& config) { detail::clip_vision_from(config, out); });
  out.text.output = out.vision.output = fields.optional<std::int64_t>("projection_dim", 512, 1, model_limits::hidden);
  out.logit_scale = fields.optional<double>("logit_scale_init_value", 2.6592);
  detail::refuse_quantized(fields);
  if (auto done = fields.finish_allowing_unknown_keys(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return out;
}
/// That of a file, or of a folder's config.json.
inline Result<ClipShape> load_clip(std::filesystem::path path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  return read_json_file(path).and_then([&](const auto& value) { return clip_from_json(value, path.string()); });
}

}  // namespace galvatron
