// The multi-task models that galvatron knows by name: those of Wang et al., "Spindle: Efficient distributed training of
// multi-task large models via wavefront scheduling", ASPLOS 2025 (section 5.1), and small ones of the same kinds.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/components.hpp>
#include <galvatron/model/multi_task.hpp>

namespace galvatron {

namespace detail {

struct NamedShape {
  std::string_view name;
  ComponentShape shape;
};
using K = ComponentKind;

constexpr NamedShape text_tower(std::string_view name, int layers, std::int64_t hidden, std::int64_t heads,
                                std::int64_t vocabulary, std::int64_t tokens, std::int64_t output) {
  return {name,
          {.kind = K::text,
           .layers = layers,
           .hidden = hidden,
           .heads = heads,
           .vocabulary = vocabulary,
           .tokens = tokens,
           .output = output}};
}
/// @param tokens  patches, and the class token  @param patch  numbers of one
constexpr NamedShape patch_tower(std::string_view name, int layers, std::int64_t hidden, std::int64_t heads,
                                 std::int64_t tokens, std::int64_t patch, std::int64_t output,
                                 bool class_token = true) {
  return {name,
          {.kind = K::patches,
           .layers = layers,
           .hidden = hidden,
           .heads = heads,
           .tokens = tokens,
           .patch = patch,
           .class_token = class_token,
           .output = output}};
}

// Towers of ImageBind (Girdhar et al., CVPR 2023): layers and widths as Spindle gives them; tokens and patches are
// ImageBind's (images of 224 x 224 in patches of 14, two seconds of sound as 128 x 204 in patches of 16 every 10, depth
// and thermal images of 224 x 224 in patches of 16, 2000 readings of 6 sensors in runs of 8).
inline constexpr NamedShape clip_towers[] = {
    text_tower("text", 24, 1024, 16, 49408, 77, 1024),   patch_tower("vision", 32, 1280, 16, 257, 588, 1024),
    patch_tower("audio", 12, 768, 12, 229, 256, 1024),   patch_tower("depth", 12, 384, 8, 197, 256, 1024),
    patch_tower("thermal", 12, 768, 12, 197, 256, 1024), patch_tower("imu", 6, 512, 8, 251, 48, 1024),
};
inline constexpr NamedShape toy_clip_towers[] = {
    text_tower("text", 2, 32, 2, 64, 8, 16),
    patch_tower("vision", 2, 48, 3, 10, 12, 16),
    patch_tower("audio", 1, 32, 2, 6, 8, 16, false),
    patch_tower("depth", 1, 16, 2, 10, 4, 16),
};
// For the pairs that scripts/pairs makes: texts of bytes, images of 28 x 28 pixels in patches of 7, spectrograms of 32
// bands x 64 frames in patches of 8, depth maps like the images.
inline constexpr NamedShape tiny_clip_towers[] = {
    text_tower("text", 2, 64, 2, 256, 40, 32),
    patch_tower("vision", 2, 64, 2, 17, 49, 32),
    patch_tower("audio", 2, 64, 2, 32, 64, 32, false),
    patch_tower("depth", 1, 32, 2, 17, 49, 32),
};
// Pairs of towers with a batch each. Neither pairs nor batches are published: they are those of this library's Spindle
// cases, as is the order of the tasks.
struct TowerPair {
  std::string_view first, second;
  std::int64_t batch;
};
inline constexpr TowerPair clip_pairs[] = {
    {"text", "vision", 256},    {"vision", "audio", 128}, {"vision", "depth", 128}, {"text", "audio", 256},
    {"vision", "thermal", 128}, {"vision", "imu", 64},    {"text", "depth", 128},   {"text", "thermal", 128},
    {"audio", "imu", 64},       {"text", "imu", 64}};
inline constexpr TowerPair toy_clip_pairs[] = {
    {"text", "vision", 8}, {"vision", "audio", 4}, {"vision", "depth", 4}, {"text", "audio", 8}};
inline constexpr TowerPair tiny_clip_pairs[] = {
    {"text", "vision", 32}, {"vision", "audio", 16}, {"vision", "depth", 16}, {"text", "audio", 32}};

/// Contrastive tasks of two towers each, with one loss.
template <std::size_t N, std::size_t M>
MultiTaskModel clip(std::string name, const NamedShape (&towers)[N], const TowerPair (&pairs)[M], std::size_t tasks) {
  MultiTaskModel out{std::move(name), {}, {}};
  std::vector<std::string> used;
  for (const NamedShape& tower : towers)
    for (std::size_t i = 0; i < tasks && (used.empty() || used.back() != tower.name); ++i)
      if (pairs[i].first == tower.name || pairs[i].second == tower.name) {
        out.components.push_back(component(std::string(tower.name), tower.shape));
        used.emplace_back(tower.name);
      }
  out.components.push_back(component("contrast", {.kind = K::contrastive, .hidden = towers[0].shape.output}, used));
  for (std::size_t i = 0; i < tasks; ++i) {
    const auto& [first, second, batch] = pairs[i];
    out.tasks.push_back({std::string(first) + "-" + std::string(second),
                         {{std::string(first)}, {std::string(second)}},
                         "contrast",
                         batch});
  }
  return out;
}

// OFASys (Bai et al., 2022): an adaptor of each modality, one encoder and one decoder. Layers and widths as Spindle
// gives them; sequences and batches are those of this library's cases.
struct Generation {
  std::string_view name, input;
  std::int64_t batch, tokens, target;
};
inline constexpr Generation ofasys_tasks[] = {
    {"caption", "vision", 128, 0, 20},    {"grounding", "vision", 64, 0, 30}, {"asr", "audio", 64, 0, 30},
    {"summary", "text", 64, 512, 40},     {"text2sql", "text", 64, 256, 60},  {"vqa", "vision", 128, 0, 15},
    {"captionaudio", "audio", 64, 0, 20},
};
inline constexpr Generation toy_ofasys_tasks[] = {
    {"caption", "vision", 4, 0, 5}, {"asr", "audio", 2, 0, 6}, {"summary", "text", 3, 8, 4}};
inline constexpr NamedShape ofasys_components[] = {
    {"vision",
     {.kind = K::patches,
      .layers = 12,
      .hidden = 768,
      .heads = 12,
      .tokens = 257,
      .patch = 588,
      .class_token = true,
      .output = 1024,
      .pools = false}},
    {"audio",
     {.kind = K::patches,
      .layers = 6,
      .hidden = 768,
      .heads = 12,
      .tokens = 400,
      .patch = 320,
      .output = 1024,
      .pools = false}},
    {"text",
     {.kind = K::text,
      .layers = 2,
      .hidden = 768,
      .heads = 12,
      .vocabulary = 59457,
      .tokens = 512,
      .causal = false,
      .output = 1024,
      .pools = false}},
    {"target", {.kind = K::text_embedding, .hidden = 1024, .vocabulary = 59457, .tokens = 64}},
    {"encoder", {.kind = K::encoder, .layers = 6, .hidden = 1024, .heads = 16, .tokens = 512}},
    {"decoder", {.kind = K::decoder, .layers = 6, .hidden = 1024, .heads = 16, .vocabulary = 59457, .tokens = 64}},
};
inline constexpr NamedShape toy_ofasys_components[] = {
    {"vision",
     {.kind = K::patches,
      .layers = 2,
      .hidden = 32,
      .heads = 2,
      .tokens = 10,
      .patch = 12,
      .class_token = true,
      .output = 48,
      .pools = false}},
    {"audio",
     {.kind = K::patches,
      .layers = 1,
      .hidden = 32,
      .heads = 2,
      .tokens = 12,
      .patch = 8,
      .output = 48,
      .pools = false}},
    {"text",
     {.kind = K::text,
      .layers = 1,
      .hidden = 32,
      .heads = 2,
      .vocabulary = 64,
      .tokens = 8,
      .causal = false,
      .output = 48,
      .pools = false}},
    {"target", {.kind = K::text_embedding, .hidden = 48, .vocabulary = 64, .tokens = 8}},
    {"encoder", {.kind = K::encoder, .layers = 2, .hidden = 48, .heads = 4, .tokens = 16}},
    {"decoder", {.kind = K::decoder, .layers = 2, .hidden = 48, .heads = 4, .vocabulary = 64, .tokens = 8}},
};

template <std::size_t N, std::size_t M>
MultiTaskModel ofasys(std::string name, const NamedShape (&components)[N], const Generation (&tasks)[M],
                      std::size_t count) {
  MultiTaskModel out{std::move(name), {}, {}};
  for (const auto& [component_name, shape] : components) {
    const bool encodes = shape.kind == K::encoder;
    const bool decodes = shape.kind == K::decoder;
    out.components.push_back(component(std::string(component_name), shape,
                                       encodes   ? std::vector<std::string>{"vision", "audio", "text"}
                                       : decodes ? std::vector<std::string>{"target"}
                                                 : std::vector<std::string>{},
                                       decodes ? "encoder" : ""));
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [task, input, batch, tokens, target] = tasks[i];
    out.tasks.push_back({std::string(task), {{std::string(input), tokens}, {"target", target}}, "decoder", batch});
  }
  return out;
}

// QWen-VAL: encoders of images and sound before one language model (Bai et al., "Qwen-VL", 2023; Chu et al.,
// "Qwen-Audio", 2023). Towers as Spindle gives them; tokens of a sample are ours.
inline constexpr NamedShape qwen_components[] = {
    {"vision",
     {.kind = K::patches,
      .layers = 48,
      .hidden = 1664,
      .heads = 16,
      .ffn = 8192,
      .tokens = 256,
      .patch = 2352,
      .output = 4096,
      .pools = false}},
    {"audio",
     {.kind = K::patches,
      .layers = 32,
      .hidden = 1280,
      .heads = 20,
      .tokens = 750,
      .patch = 320,
      .output = 4096,
      .pools = false}},
    {"text", {.kind = K::text_embedding, .hidden = 4096, .vocabulary = 151936, .tokens = 512}},
    {"llm",
     {.kind = K::llama, .layers = 32, .hidden = 4096, .heads = 32, .ffn = 11008, .vocabulary = 151936, .tokens = 2048}},
};
inline constexpr NamedShape toy_qwen_components[] = {
    {"vision",
     {.kind = K::patches,
      .layers = 2,
      .hidden = 32,
      .heads = 2,
      .tokens = 9,
      .patch = 12,
      .output = 48,
      .pools = false}},
    {"audio",
     {.kind = K::patches,
      .layers = 1,
      .hidden = 32,
      .heads = 2,
      .tokens = 6,
      .patch = 8,
      .output = 48,
      .pools = false}},
    {"text", {.kind = K::text_embedding, .hidden = 48, .vocabulary = 64, .tokens = 8}},
    {"llm",
     {.kind = K::llama,
      .layers = 2,
      .hidden = 48,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 96,
      .vocabulary = 64,
      .tokens = 32}},
};

template <std::size_t N>
MultiTaskModel qwen_val(std::string name, const NamedShape (&components)[N], std::int64_t batch) {
  MultiTaskModel out{std::move(name), {}, {}};
  for (const auto& [component_name, shape] : components)
    out.components.push_back(component(
        std::string(component_name), shape,
        shape.kind == K::llama ? std::vector<std::string>{"vision", "audio", "text"} : std::vector<std::string>{}));
  out.tasks = {{"VL", {{"vision"}, {"text"}}, "llm", batch},
               {"AL", {{"audio"}, {"text"}}, "llm", batch},
               {"VAL", {{"vision"}, {"audio"}, {"text"}}, "llm", batch / 2}};
  return out;
}

}  // namespace detail

/// The names that find_multi_task_model knows.
inline constexpr std::array<std::string_view, 10> multi_task_model_names = {
    "multitask-clip-4", "multitask-clip-7", "multitask-clip-10", "ofasys-4",   "ofasys-7",
    "qwen-val",         "clip-tiny",        "clip-toy",          "ofasys-toy", "qwen-toy"};

/// The model of that name. Errors (usage): an unknown name.
template <class = void>
Result<MultiTaskModel> find_multi_task_model(std::string_view name) {
  std::string own(name.substr(0, 64));
  if (name == "multitask-clip-4") return detail::clip(std::move(own), detail::clip_towers, detail::clip_pairs, 4);
  if (name == "multitask-clip-7") return detail::clip(std::move(own), detail::clip_towers, detail::clip_pairs, 7);
  if (name == "multitask-clip-10") return detail::clip(std::move(own), detail::clip_towers, detail::clip_pairs, 10);
  if (name == "ofasys-4") return detail::ofasys(std::move(own), detail::ofasys_components, detail::ofasys_tasks, 4);
  if (name == "ofasys-7") return detail::ofasys(std::move(own), detail::ofasys_components, detail::ofasys_tasks, 7);
  if (name == "qwen-val") return detail::qwen_val(std::move(own), detail::qwen_components, 64);
  if (name == "clip-tiny") return detail::clip(std::move(own), detail::tiny_clip_towers, detail::tiny_clip_pairs, 4);
  if (name == "clip-toy") return detail::clip(std::move(own), detail::toy_clip_towers, detail::toy_clip_pairs, 4);
  if (name == "ofasys-toy")
    return detail::ofasys(std::move(own), detail::toy_ofasys_components, detail::toy_ofasys_tasks, 3);
  if (name == "qwen-toy") return detail::qwen_val(std::move(own), detail::toy_qwen_components, 4);
  return usage_error("unknown multi-task model \"" + detail::one_line(name, 80) + "\"; known are " +
                     joined(multi_task_model_names));
}
GALVATRON_IN_PLANNER(Result<MultiTaskModel> find_multi_task_model<>(std::string_view))

}  // namespace galvatron
