// Files of multi-task models:
//
//   { "format": "galvatron-multi-task", "version": 1, "name": "lab",
//     "components": [
//       { "name": "vision", "kind": "patches", "layers": 2, "hidden": 48, "heads": 3, "tokens": 10, "patch": 12,
//         "class_token": true, "output": 16 },
//       { "name": "text", "model": "gpt2-tiny", "part": "tower", "output": 16 },
//       { "name": "contrast", "kind": "contrastive", "hidden": 16, "inputs": ["text", "vision"] } ],
//     "tasks": [
//       { "name": "pairs", "inputs": [ { "component": "text", "tokens": 32 }, "vision" ], "loss": "contrast",
//         "batch": 8, "weight": 0.5 } ] }
//
// A component is the numbers of a ComponentShape, or a part of a model of one task: a preset's name, or the path of a
// Hugging Face config.json. That of a CLIP has the parts "text", "vision" and "contrast", and alone is a model of the
// task "text-vision".
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
#include <galvatron/core/json.hpp>
#include <galvatron/model/clip.hpp>
#include <galvatron/model/components.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/multi_task.hpp>
#include <galvatron/model/multi_task_zoo.hpp>

namespace galvatron {

inline constexpr const char* multi_task_format = "galvatron-multi-task";
inline constexpr int multi_task_format_version = 1;

namespace detail {

inline void component_fields(JsonObject& fields, ComponentShape& shape) {
  fields.word("kind", shape.kind, component_kinds, [](ComponentKind kind) { return std::string(name_of(kind)); });
  fields.field_or("layers", shape.layers, 0, 0, static_cast<int>(model_limits::layers));
  fields.field("hidden", shape.hidden, 1, model_limits::hidden);
  fields.field_or("heads", shape.heads, 1, 1, model_limits::heads);
  fields.field_or("kv_heads", shape.kv_heads, 0, 0, model_limits::heads);
  fields.field_or("ffn", shape.ffn, 0, 0, model_limits::ffn);
  fields.field_or("vocabulary", shape.vocabulary, 0, 0, model_limits::vocabulary);
  fields.field_or("tokens", shape.tokens, shape.kind == ComponentKind::contrastive ? 2 : 0, 0, model_limits::positions);
  fields.field_or("patch", shape.patch, 0, 0, model_limits::ffn);
  fields.field_or("class_token", shape.class_token, false);
  fields.field_or("causal", shape.causal, true);
  fields.field_or("output", shape.output, 0, 0, model_limits::hidden);
  fields.field_or("pools", shape.pools, true);
  if (fields.contains("activation"))
    fields.word("activation", shape.activation,
                std::array{ActivationKind::gelu, ActivationKind::relu, ActivationKind::quick_gelu,
                           ActivationKind::exact_gelu, ActivationKind::squared_relu},
                [](ActivationKind kind) { return field_text(kind); });
  fields.field_or("norm_epsilon", shape.norm_epsilon, 1e-5);
  fields.field_or("embedding_norm", shape.embedding_norm, false);
  fields.field_or("patch_bias", shape.patch_bias, true);
  fields.field_or("end_token", shape.end_token, no_token, std::int64_t{0}, model_limits::vocabulary);
}

/// Names in the array `key`, if there is one.
inline std::vector<std::string> names_in(JsonObject& fields, std::string_view key) {
  std::vector<std::string> out;
  if (!fields.contains(key)) return out;
  for (const nlohmann::json& name : fields.required_array(key)) {
    if (!name.is_string()) fields.fail(fields.name(key) + ": expected names, found " + JsonObject::describe(name));
    if (name.is_string()) out.push_back(name.get<std::string>());
  }
  return out;
}

/// A part of a model, and the projection or adaptor behind it.
/// @param folder  in which relative paths begin
inline void read_part(JsonObject& fields, const std::filesystem::path& folder, Component& component) {
  const auto name = fields.required<std::string>("model");
  std::error_code ignored;
  const std::filesystem::path near = folder / name;
  const std::string found = std::filesystem::exists(near, ignored) ? near.string() : name;
  if (describes_clip(std::filesystem::path(found))) {
    ClipPart part{};
    fields.word("part", part, clip_parts, [](ClipPart each) { return std::string(name_of(each)); });
    const auto clip = load_clip(found);
    if (!clip) return fields.fail(fields.name("model") + ": " + clip.error().message);
    component.layers = part_of(*clip, part);
    return;
  }
  ModelPart part{};
  fields.word("part", part, model_parts, [](ModelPart each) { return std::string(name_of(each)); });
  ComponentShape behind;
  fields.field_or("output", behind.output, 0, 0, model_limits::hidden);
  fields.field_or("pools", behind.pools, true);
  if (fields.failed()) return;
  const auto model = load_model(found);
  if (!model) return fields.fail(fields.name("model") + ": " + model.error().message);
  component.layers = part_of(*model, part);
  if (behind.output == 0 || component.layers.back().kind == LayerKind::head) return;
  behind.hidden = component.layers.back().hidden;
  behind.tokens = component.layers.front().positions;
  behind.class_token = component.layers.front().class_token;
  component.layers.push_back(between_widths(behind, behind.pools ? &projection_forward : &adaptor_forward));
}

inline void read_task(JsonObject& fields, TaskSpec& task) {
  fields.field("name", task.name);
  fields.field("loss", task.loss);
  fields.field("batch", task.batch, 0, model_limits::positions);
  fields.field_or("weight", task.weight, 1.0);
  const auto* inputs = fields.any("inputs");
  if (inputs == nullptr || !inputs->is_array()) return;  // checked() says so
  for (const nlohmann::json& value : *inputs) {
    TaskInput& input = task.inputs.emplace_back();
    if (value.is_string()) {
      input.component = value.get<std::string>();
      continue;
    }
    JsonObject own(value, fields.name("inputs"));
    own.field("component", input.component);
    own.field_or("tokens", input.tokens, 0, 0, model_limits::positions);
    if (auto done = own.finish(); !done) fields.fail(done.error().message);
  }
}

}  // namespace detail

/// The multi-task model that a JSON value describes; `source_name` opens the messages. Errors (usage): another format
/// or version, missing and unknown keys, values out of range, and those of checked().
/// @param folder  in which relative paths of config.json begin
inline Result<MultiTaskModel> multi_task_from_json(const nlohmann::json& value, const std::string& source_name,
                                                   const std::filesystem::path& folder = {}) {
  JsonObject fields(value, source_name);
  const auto format = fields.required<std::string>("format");
  fields.check("format", format == multi_task_format,
               std::string("a file of a multi-task model has \"format\": \"") + multi_task_format + "\"");
  const int version = fields.required<int>("version");
  fields.check("version", version == multi_task_format_version,
               "version " + std::to_string(version) + " is not known; this program reads version " +
                   std::to_string(multi_task_format_version));
  MultiTaskModel model;
  fields.field("name", model.name);
  fields.list("components", model.components, [&folder](JsonObject& own, Component& component) {
    own.field("name", component.name);
    component.inputs = detail::names_in(own, "inputs");
    own.field_or("memory", component.memory, "");
    if (own.contains("model")) return detail::read_part(own, folder, component);
    ComponentShape shape;
    detail::component_fields(own, shape);
    if (!own.failed()) component.layers = component_layers(shape);
  });
  fields.list("tasks", model.tasks, detail::read_task);
  if (auto done = fields.finish(); !done) return tl::unexpected<Error>(std::move(done.error()));
  return checked(std::move(model));
}

/// The samples of a step of a CLIP that a config.json describes, where nobody says how many.
inline constexpr std::int64_t usual_clip_batch = 32;

/// A preset by name, or else the file at that path: a multi-task model, or the config.json of a CLIP or its folder.
/// Errors (usage): neither exists, or the file is bad.
inline Result<MultiTaskModel> load_multi_task_model(const std::string& name_or_path) {
  auto preset = find_multi_task_model(name_or_path);
  std::error_code ignored;
  if (preset || !std::filesystem::exists(name_or_path, ignored)) return preset;
  if (describes_clip(std::filesystem::path(name_or_path)))
    return load_clip(name_or_path).and_then([&](const ClipShape& clip) {
      return checked(clip_model(name_or_path, clip, usual_clip_batch));
    });
  return read_json_file(name_or_path).and_then([&](const auto& value) {
    return multi_task_from_json(value, name_or_path, std::filesystem::path(name_or_path).parent_path());
  });
}

}  // namespace galvatron
