// The models that galvatron knows by name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

namespace detail {

template <class Shape>
struct ModelPreset {
  std::string_view name;
  Shape shape;
};

// gpt2-*: Radford et al., "Language models are unsupervised multitask learners", 2019 (sizes as the released weights).
// gpt-6.7b, gpt3-175b: Brown et al., 2020. gpt-39b, -530b, -1t: Narayanan et al., "Efficient large-scale language model
// training on GPU clusters using Megatron-LM", SC 2021, table 1. gpt-15b, -65b: Wang et al., "Improving automatic
// parallel training via balanced memory workload optimization", 2023. All but gpt2-* with Megatron's padded vocabulary.
inline constexpr ModelPreset<GptShape> gpt_presets[] = {
    {"gpt2-tiny", {.layers = 4, .hidden = 128, .heads = 4, .vocabulary = 256, .positions = 256}},
    {"gpt2-124m", {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .positions = 1024}},
    {"gpt2-350m", {.layers = 24, .hidden = 1024, .heads = 16, .vocabulary = 50257, .positions = 1024}},
    {"gpt2-774m", {.layers = 36, .hidden = 1280, .heads = 20, .vocabulary = 50257, .positions = 1024}},
    {"gpt2-1.5b", {.layers = 48, .hidden = 1600, .heads = 25, .vocabulary = 50257, .positions = 1024}},
    {"gpt-6.7b", {.layers = 32, .hidden = 4096, .heads = 32, .vocabulary = 51200, .positions = 2048}},
    {"gpt-15b", {.layers = 48, .hidden = 5120, .heads = 40, .vocabulary = 51200, .positions = 2048}},
    {"gpt-39b", {.layers = 48, .hidden = 8192, .heads = 64, .vocabulary = 51200, .positions = 2048}},
    {"gpt-65b", {.layers = 80, .hidden = 8192, .heads = 64, .vocabulary = 51200, .positions = 2048}},
    {"gpt3-175b", {.layers = 96, .hidden = 12288, .heads = 96, .vocabulary = 51200, .positions = 2048}},
    {"gpt-530b", {.layers = 105, .hidden = 20480, .heads = 128, .vocabulary = 51200, .positions = 2048}},
    {"gpt-1t", {.layers = 128, .hidden = 25600, .heads = 160, .vocabulary = 51200, .positions = 2048}},
};

/// What Llama 3's models have in common, and in what they differ.
constexpr LlamaShape llama3(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn,
                            std::int64_t positions) {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = 8,
          .ffn = ffn,
          .vocabulary = 128256,
          .positions = positions,
          .rope_theta = 500000.0};
}

// Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024 (the positions of the
// released weights; 405b was released in version 3.1 only).
inline constexpr ModelPreset<LlamaShape> llama_presets[] = {
    {"llama-tiny",
     {.layers = 4, .hidden = 128, .heads = 8, .kv_heads = 4, .ffn = 384, .vocabulary = 256, .positions = 256}},
    {"llama2-7b", {.layers = 32, .hidden = 4096, .heads = 32, .ffn = 11008, .vocabulary = 32000, .positions = 4096}},
    {"llama2-13b", {.layers = 40, .hidden = 5120, .heads = 40, .ffn = 13824, .vocabulary = 32000, .positions = 4096}},
    {"llama2-70b",
     {.layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .ffn = 28672, .vocabulary = 32000, .positions = 4096}},
    {"llama3-8b", llama3(32, 4096, 32, 14336, 8192)},
    {"llama3-70b", llama3(80, 8192, 64, 28672, 8192)},
    {"llama3-405b", llama3(126, 16384, 128, 53248, 131072)},
};

// bert-base, bert-large: Devlin et al., 2019. *-huge-32|48, t5-large-32|48: Miao et al., "Galvatron: efficient
// Transformer training over multiple GPUs using automatic parallelism", PVLDB 2022 (arXiv 2211.13878), section 5; their
// heads as in its implementation. t5-large-48 is T5-large and t5-3b T5-3B of Raffel et al., 2020.
inline constexpr ModelPreset<BertShape> bert_presets[] = {
    {"bert-tiny", {.layers = 4, .hidden = 128, .heads = 4, .vocabulary = 257, .positions = 256}},
    {"bert-base", {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522}},
    {"bert-large", {.layers = 24, .hidden = 1024, .heads = 16, .vocabulary = 30522}},
    {"bert-huge-32", {.layers = 32, .hidden = 1280, .heads = 16, .vocabulary = 30522}},
    {"bert-huge-48", {.layers = 48, .hidden = 1280, .heads = 16, .vocabulary = 30522}},
};
inline constexpr ModelPreset<VitShape> vit_presets[] = {
    {"vit-tiny", {.layers = 4, .hidden = 128, .heads = 4, .image = 28, .patch = 4, .channels = 1, .classes = 10}},
    {"vit-huge-32", {.layers = 32, .hidden = 1280, .heads = 16, .patch = 14}},
    {"vit-huge-48", {.layers = 48, .hidden = 1280, .heads = 16, .patch = 14}},
};
inline constexpr ModelPreset<T5Shape> t5_presets[] = {
    // Bytes, and 64 tokens for spans, of which a sample of the longest sequence has 14.
    {"t5-tiny",
     {.encoder_layers = 2,
      .decoder_layers = 2,
      .hidden = 128,
      .heads = 4,
      .ffn = 512,
      .vocabulary = 320,
      .source = 256,
      .target = 64}},
    {"t5-large-32", {.encoder_layers = 16, .decoder_layers = 16, .hidden = 1024, .heads = 16, .ffn = 4096}},
    {"t5-large-48", {.encoder_layers = 24, .decoder_layers = 24, .hidden = 1024, .heads = 16, .ffn = 4096}},
    {"t5-3b", {.encoder_layers = 24, .decoder_layers = 24, .hidden = 1024, .heads = 32, .head_dim = 128, .ffn = 16384}},
};
inline constexpr ModelPreset<SwinShape> swin_presets[] = {
    {"swin-toy",
     {.depths = {2, 2, 2, 2},
      .hidden = 32,
      .heads = {2, 4, 8, 16},
      .image = 32,
      .patch = 2,
      .window = 4,
      .classes = 10}},
    {"swin-huge-32", {.depths = {2, 2, 26, 2}, .hidden = 320, .heads = {8, 16, 32, 64}}},
    {"swin-huge-48", {.depths = {2, 2, 42, 2}, .hidden = 320, .heads = {8, 16, 32, 64}}},
};
/// What Mixtral's models have in common, and in what they differ. The coefficient of the balance loss is that of their
/// config.json.
constexpr MoeShape mixtral(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn,
                           std::int64_t positions, double coefficient) {
  return {
      .dense = {.layers = layers,
                .hidden = hidden,
                .heads = heads,
                .kv_heads = 8,
                .ffn = ffn,
                .vocabulary = 32000,
                .positions = positions,
                .rope_theta = 1e6},
      .experts = 8,
      .active_experts = 2,
      .router = {.balance_loss = balance_loss_of(coefficient, 2, layers), .balance_scope = BalanceScope::micro_batch}};
}

/// What Qwen3's models have in common.
constexpr MoeShape qwen3_moe(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn,
                             std::int64_t expert_ffn) {
  return {.dense = {.layers = layers,
                    .hidden = hidden,
                    .heads = heads,
                    .kv_heads = 4,
                    .ffn = ffn,
                    .vocabulary = 151936,
                    .positions = 40960,
                    .head_dim = 128,
                    .rope_theta = 1e6,
                    .norm_epsilon = 1e-6,
                    .query_key_norm = QueryKeyNorm::heads},
          .experts = 128,
          .active_experts = 8,
          .expert_ffn = expert_ffn,
          .router = {.balance_loss = balance_loss_of(0.001, 8, layers), .balance_scope = BalanceScope::micro_batch}};
}

/// What DeepSeek's models have in common. Their positions are those of their first training: the released weights have
/// been trained on with scaled ones.
constexpr LlamaShape deepseek(int layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn,
                              std::int64_t vocabulary, std::int64_t query_rank) {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .ffn = ffn,
          .vocabulary = vocabulary,
          .positions = 4096,
          .head_dim = 192,
          .norm_epsilon = 1e-6,
          .latent = {.rank = 512, .query_rank = query_rank, .rotary_dim = 64, .value_dim = 128}};
}

// Jiang et al., "Mixtral of experts", 2024 (the positions of the released weights); mixtral-8x22b: Mistral AI, 2024.
// Yang et al., "Qwen2 technical report", 2024; Yang et al., "Qwen3 technical report", 2025; Muennighoff et al., "OLMoE:
// open mixture-of-experts language models", 2024 (with its z-loss); DeepSeek-AI, "DeepSeek-V2" and "DeepSeek-V3
// technical report", 2024 (with its rate of the experts' biases; without the layer that predicts a second token).
inline constexpr ModelPreset<MoeShape> moe_presets[] = {
    {"moe-tiny",
     {.dense = {.layers = 4, .hidden = 128, .heads = 4, .ffn = 128, .vocabulary = 256, .positions = 256},
      .experts = 8,
      .active_experts = 2,
      .router = {.balance_loss = 0.01}}},
    {"mixtral-8x7b", mixtral(32, 4096, 32, 14336, 32768, 0.02)},
    {"mixtral-8x22b", mixtral(56, 6144, 48, 16384, 65536, 0.001)},
    {"qwen2-57b-a14b",
     {.dense = {.layers = 28,
                .hidden = 3584,
                .heads = 28,
                .kv_heads = 4,
                .ffn = 18944,
                .vocabulary = 151936,
                .positions = 131072,
                .rope_theta = 1e6,
                .norm_epsilon = 1e-6,
                .qkv_bias = true},
      .experts = 64,
      .active_experts = 8,
      .expert_ffn = 2560,
      .router = {.renormalise = false,
                 .balance_loss = balance_loss_of(0.001, 8, 28),
                 .balance_scope = BalanceScope::micro_batch},
      .shared_ffn = 20480,
      .shared_gate = true}},
    {"qwen3-30b-a3b", qwen3_moe(48, 2048, 32, 6144, 768)},
    {"qwen3-235b-a22b", qwen3_moe(94, 4096, 64, 12288, 1536)},
    {"olmoe-1b-7b",
     {.dense = {.layers = 16,
                .hidden = 2048,
                .heads = 16,
                .ffn = 1024,
                .vocabulary = 50304,
                .positions = 4096,
                .query_key_norm = QueryKeyNorm::all},
      .experts = 64,
      .active_experts = 8,
      .router = {.renormalise = false,
                 .balance_loss = balance_loss_of(0.01, 8, 16),
                 .balance_scope = BalanceScope::micro_batch,
                 .z_loss = 0.001}}},
    {"deepseek-v2-lite",
     {.dense = deepseek(27, 2048, 16, 10944, 102400, 0),
      .experts = 64,
      .active_experts = 6,
      .expert_ffn = 1408,
      .router = {.renormalise = false, .balance_loss = 0.001},
      .shared_ffn = 2 * 1408,
      .first_dense = 1}},
    {"deepseek-v3",
     {.dense = deepseek(61, 7168, 128, 18432, 129280, 1536),
      .experts = 256,
      .active_experts = 8,
      .expert_ffn = 2048,
      .router = {.kind = RouterKind::sigmoid,
                 .scale = 2.5,
                 .groups = 8,
                 .top_groups = 4,
                 .balance_loss = 1e-4,
                 .bias_rate = 1e-3},
      .shared_ffn = 2048,
      .first_dense = 3}},
};

// Nie et al., "LSH-MoE: communication-efficient MoE training via locality-sensitive hashing", NeurIPS 2024, section 4,
// with two experts for a token. Every second block has experts; of roberta-moe every third, which is what its
// parameters amount to.
inline constexpr ModelPreset<MixtureShape<BertShape>> bert_moe_presets[] = {
    {"roberta-moe",
     {.dense = {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 30522},
      .experts = 16,
      .active_experts = 2,
      .router = {.balance_loss = 0.01},
      .sparse_step = 3}},
};
inline constexpr ModelPreset<MixtureShape<GptShape>> gpt_moe_presets[] = {
    {"gpt-moe-15b",
     {.dense = {.layers = 12, .hidden = 768, .heads = 12, .vocabulary = 50257, .positions = 1024},
      .experts = 512,
      .active_experts = 2,
      .router = {.balance_loss = 0.01},
      .sparse_step = 2}},
    {"gpt-moe-52b",
     {.dense = {.layers = 24, .hidden = 1024, .heads = 16, .vocabulary = 50257, .positions = 1024},
      .experts = 512,
      .active_experts = 2,
      .router = {.balance_loss = 0.01},
      .sparse_step = 2}},
};
inline constexpr ModelPreset<MixtureShape<T5Shape>> t5_moe_presets[] = {
    {"t5-moe",
     {.dense = {.encoder_layers = 16, .decoder_layers = 16, .hidden = 1024, .heads = 16, .ffn = 16384},
      .experts = 16,
      .active_experts = 2,
      .router = {.balance_loss = 0.01},
      .sparse_step = 2}},
};
// Which Swin has 24 layers and about 946M parameters with 32 experts is inferred, since the paper gives no widths: it
// fine-tunes the models of github.com/microsoft/Swin-Transformer, whose Swin-MoE-B (width 128, images of 192 pixels,
// windows of 12 tokens, experts in every second block of the last two stages) has 24 blocks, and 955M parameters with
// the 21,841 classes that it was trained on; 934M with the 1,000 of ImageNet that are here.
inline constexpr ModelPreset<MixtureShape<SwinShape>> swin_moe_presets[] = {
    {"swin-moe-l",
     {.dense = {.depths = {2, 2, 18, 2}, .hidden = 128, .heads = {4, 8, 16, 32}, .image = 192, .window = 12},
      .experts = 32,
      .active_experts = 2,
      .router = {.balance_loss = 0.01},
      .first_dense = 4,
      .sparse_step = 2}},
};

/// Calls visit(preset, builder) for every preset until it returns true.
template <class Visit>
void for_each_preset(const Visit& visit) {
  const auto of = [&visit](const auto& presets, const auto& build) {
    for (const auto& preset : presets)
      if (visit(preset, build)) return true;
    return false;
  };
  of(gpt_presets, gpt) || of(llama_presets, llama) || of(bert_presets, bert) || of(vit_presets, vit) ||
      of(t5_presets, t5) || of(swin_presets, swin) || of(moe_presets, moe) ||
      of(bert_moe_presets, mixture<BertShape>) || of(gpt_moe_presets, mixture<GptShape>) ||
      of(t5_moe_presets, mixture<T5Shape>) || of(swin_moe_presets, mixture<SwinShape>);
}

/// Names of the Hugging Face hub that say nothing of the preset's.
inline constexpr std::pair<std::string_view, std::string_view> hub_names[] = {
    {"gpt2-small", "gpt2-124m"}, {"gpt2-medium", "gpt2-350m"}, {"gpt2-large", "gpt2-774m"}, {"gpt2-xl", "gpt2-1.5b"}};

/// ORGANISATION/MODEL of a name of the Hugging Face hub or of a page there; empty for anything else, a path too. The
/// name is part of `name`.
inline std::string_view hub_model(std::string_view name) {
  for (const std::string_view start : {"https://", "http://", "hf://", "www.", "huggingface.co/", "hf.co/"})
    if (name.starts_with(start)) name.remove_prefix(start.size());
  const std::size_t slash = name.find('/');
  if (slash == 0 || slash == std::string_view::npos || name.size() > 200) return {};
  const std::size_t end = std::min(name.find('/', slash + 1), name.size());
  if (end != name.size() && name.substr(end) != "/" && !name.substr(end).starts_with("/tree") &&
      !name.substr(end).starts_with("/blob") && !name.substr(end).starts_with("/resolve"))
    return {};
  name = name.substr(0, end);
  const auto plain = [](char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '_' || c == '.'; };
  for (const std::string_view part : {name.substr(0, slash), name.substr(slash + 1)})
    if (part.empty() || part.front() == '.' || !std::all_of(part.begin(), part.end(), plain)) return {};
  return name.ends_with(".json") || name.ends_with(".safetensors") ? std::string_view() : name;
}

}  // namespace detail

/// The names that find_model knows, family by family and small before large.
template <class = void>
std::vector<std::string> model_names() {
  std::vector<std::string> names;
  detail::for_each_preset([&names](const auto& preset, const auto&) {
    names.emplace_back(preset.name);
    return false;
  });
  return names;
}
GALVATRON_IN_PLANNER(std::vector<std::string> model_names<>())

/// Why there is no model of this name, and what was meant perhaps: a preset of a name like it, or a model of the
/// Hugging Face hub.
template <class = void>
std::string why_unknown_model(std::string_view name) {
  const std::string_view hub = detail::hub_model(name);
  const std::string word = detail::lower_case(hub.empty() ? name.substr(0, 80) : hub.substr(hub.find('/') + 1));
  std::vector<std::string> near = nearest_names(word, model_names(), 8);
  for (const auto& [other, preset] : detail::hub_names)
    if (word == other) near = {std::string(preset)};
  const std::string listed = joined(near);
  const bool one = near.size() == 1;
  if (!hub.empty())
    return "\"" + detail::one_line(name, 80) +
           "\" is neither a preset nor a file, and nothing is loaded from the Hugging Face hub: " +
           (near.empty() ? ""
            : one        ? "use the nearest preset, " + listed + ", or "
                         : "use one of the nearest presets (" + listed + "), or ") +
           "download https://huggingface.co/" + detail::one_line(hub, 120) +
           "/resolve/main/config.json and give its path";
  return "unknown model \"" + detail::one_line(name, 80) + "\"; " +
         (near.empty() ? ""
          : one        ? "the nearest name is " + listed + "; "
                       : "the nearest names are " + listed + "; ") +
         "`galvatron list models` shows all, and the path of a Hugging Face config.json works too";
}
GALVATRON_IN_PLANNER(std::string why_unknown_model<>(std::string_view))

/// The model of that name, in any case of letters. Errors (usage): an unknown name, with the nearest ones. A template
/// so that galvatron::planner can have it compiled.
template <class = void>
Result<ModelSpec> find_model(std::string_view name) {
  const std::string lower = detail::lower_case(name.substr(0, 64));
  std::optional<ModelSpec> found;
  detail::for_each_preset([&](const auto& preset, const auto& build) {
    if (preset.name == lower && name.size() == lower.size()) found = build(lower, preset.shape);
    return found.has_value();
  });
  if (found) return std::move(*found);
  return usage_error(why_unknown_model(name));
}

}  // namespace galvatron
