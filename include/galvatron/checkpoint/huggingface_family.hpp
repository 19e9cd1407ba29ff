// The families of models whose Hugging Face checkpoints are read and written: which one a model is of, and the
// config.json of it, as transformers and load_model() read it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/compiled.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/activation_names.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::train {

enum class HuggingFaceFamily : std::uint8_t {
  gpt2,
  llama,
  mistral,
  qwen2,
  qwen3,
  gemma,
  gemma2,
  gemma3,
  phi,
  phi3,
  mixtral,
  qwen2_moe,
  qwen3_moe,
  olmoe,
  deepseek_v2,
  deepseek_v3,
  t5,    ///< with one table of positions a side
  umt5,  ///< with one a block
};
/// The model_type of config.json, and the class of transformers.
struct HuggingFaceNames {
  const char* type;
  const char* architecture;
};
constexpr HuggingFaceNames names_of(HuggingFaceFamily family) {
  constexpr HuggingFaceNames names[] = {{"gpt2", "GPT2LMHeadModel"},
                                        {"llama", "LlamaForCausalLM"},
                                        {"mistral", "MistralForCausalLM"},
                                        {"qwen2", "Qwen2ForCausalLM"},
                                        {"qwen3", "Qwen3ForCausalLM"},
                                        {"gemma", "GemmaForCausalLM"},
                                        {"gemma2", "Gemma2ForCausalLM"},
                                        {"gemma3_text", "Gemma3ForCausalLM"},
                                        {"phi", "PhiForCausalLM"},
                                        {"phi3", "Phi3ForCausalLM"},
                                        {"mixtral", "MixtralForCausalLM"},
                                        {"qwen2_moe", "Qwen2MoeForCausalLM"},
                                        {"qwen3_moe", "Qwen3MoeForCausalLM"},
                                        {"olmoe", "OlmoeForCausalLM"},
                                        {"deepseek_v2", "DeepseekV2ForCausalLM"},
                                        {"deepseek_v3", "DeepseekV3ForCausalLM"},
                                        {"t5", "T5ForConditionalGeneration"},
                                        {"umt5", "UMT5ForConditionalGeneration"}};
  return names[static_cast<std::size_t>(family)];
}
constexpr bool is_gemma(HuggingFaceFamily family) {
  return family == HuggingFaceFamily::gemma || family == HuggingFaceFamily::gemma2 ||
         family == HuggingFaceFamily::gemma3;
}
constexpr bool is_deepseek(HuggingFaceFamily family) {
  return family == HuggingFaceFamily::deepseek_v2 || family == HuggingFaceFamily::deepseek_v3;
}

namespace detail {

/// The first and last token of a text in the vocabulary of GPT-2 (also where it is padded) or of the released weights
/// of a family; null in others, of bytes for one, where transformers would take the ids of a vocabulary that the model
/// has not.
inline std::pair<nlohmann::ordered_json, nlohmann::ordered_json> text_ends(std::int64_t vocabulary,
                                                                           HuggingFaceFamily family) {
  using enum HuggingFaceFamily;
  if (family == gpt2 && vocabulary >= 50257 && vocabulary <= 51200) return {50256, 50256};
  if ((family == llama || family == mistral || family == mixtral) && vocabulary == 32000) return {1, 2};
  if (family == llama && vocabulary == 128256) return {128000, 128001};
  if ((family == qwen2 || family == qwen3 || family == qwen2_moe || family == qwen3_moe) && vocabulary == 151936)
    return {151643, 151643};
  if (is_gemma(family) && vocabulary >= 256000) return {2, 1};
  if (family == phi && vocabulary == 51200) return {50256, 50256};
  if ((family == llama || family == phi3) && vocabulary == 32064) return {1, 32000};
  if (family == phi3 && vocabulary == 200064) return {199999, 199999};
  if (family == olmoe && vocabulary == 50304) return {nullptr, 50279};
  if (family == deepseek_v2 && vocabulary == 102400) return {100000, 100001};
  if (family == deepseek_v3 && vocabulary == 129280) return {0, 1};
  return {nullptr, nullptr};
}

inline nlohmann::ordered_json rope_scaling_of(const RotaryScaling& scaling) {
  const char* type = scaling.ramp == RotaryRamp::pairs   ? "yarn"
                     : scaling.ramp == RotaryRamp::turns ? "llama3"
                                                         : "linear";
  nlohmann::ordered_json out{{"type", type}, {"rope_type", type}, {"factor", scaling.factor}};
  if (scaling.ramp == RotaryRamp::none) return out;
  out["original_max_position_embeddings"] = scaling.positions;
  const bool yarn = scaling.ramp == RotaryRamp::pairs;
  out[yarn ? "beta_fast" : "high_freq_factor"] = scaling.fast;
  out[yarn ? "beta_slow" : "low_freq_factor"] = scaling.slow;
  if (yarn) out["attention_factor"] = scaling.amplitude;
  if (scaling.score_rate != 0) out["mscale_all_dim"] = scaling.score_rate;
  return out;
}

/// The number that transformers multiplies the width of a head by, and rounds down, for the elements that positions
/// turn.
inline double rotary_part_of(const LayerSpec& block) {
  const auto width = static_cast<double>(block.head_dim);
  double part = static_cast<double>(block.rotary_dim == 0 ? block.head_dim : block.rotary_dim) / width;
  while (block.rotary_dim > 0 && part * width < static_cast<double>(block.rotary_dim)) part = std::nextafter(part, 1.0);
  return part;
}

/// The config.json of a T5.
inline nlohmann::ordered_json t5_config(const ModelSpec& model, HuggingFaceFamily family, const char* type) {
  const LayerSpec& block = model.blocks.front();
  const auto decoders = std::ranges::count_if(model.blocks, [](const LayerSpec& layer) { return layer.memory.any(); });
  return {{"architectures", {names_of(family).architecture}},
          {"model_type", names_of(family).type},
          {"vocab_size", model.vocabulary()},
          {"d_model", model.hidden()},
          {"d_kv", block.head_dim},
          {"d_ff", block.ffn},
          {"num_layers", static_cast<std::int64_t>(model.blocks.size()) - decoders},
          {"num_decoder_layers", decoders},
          {"num_heads", block.heads},
          {"n_positions", model.positions()},
          {"relative_attention_num_buckets", block.bias_rows},
          {"relative_attention_max_distance", 128},
          {"feed_forward_proj", block.activation == ActivationKind::geglu    ? "gated-gelu"
                                : block.activation == ActivationKind::swiglu ? "gated-silu"
                                                                             : "relu"},
          {"layer_norm_epsilon", block.norm_epsilon},
          {"dropout_rate", 0.0},
          {"is_encoder_decoder", true},
          {"pad_token_id", 0},
          {"eos_token_id", 1},
          {"decoder_start_token_id", 0},
          {"tie_word_embeddings", model.head.tied},
          {"torch_dtype", type}};
}

/// What the config.json of a Gemma has beside a Llama's.
inline void add_gemma(nlohmann::ordered_json& config, const ModelSpec& model, HuggingFaceFamily family) {
  const LayerSpec& block = model.blocks.front();
  config[family == HuggingFaceFamily::gemma ? "hidden_act" : "hidden_activation"] = "gelu_pytorch_tanh";
  config.erase("mlp_bias");
  if (family == HuggingFaceFamily::gemma) return;
  config.erase("hidden_act");
  config["query_pre_attn_scalar"] = block.score_width == 0 ? block.head_dim : block.score_width;
  const auto cap = [](double x) { return x > 0 ? nlohmann::ordered_json(x) : nullptr; };
  config["attn_logit_softcapping"] = cap(block.score_cap);
  config["final_logit_softcapping"] = cap(model.head.logits_cap);
  // Layers with a sliding window have other positions too; where no sequence is longer than it, that tells them apart.
  const auto reach = [](const LayerSpec& b) {
    return std::tuple(b.sliding_window == 0, b.rotary_scaling.factor, b.rope_theta);
  };
  const LayerSpec* const far = &*std::ranges::max_element(model.blocks, {}, reach);
  const LayerSpec* near = nullptr;
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const LayerSpec& b : model.blocks) {
    const bool slides =
        b.sliding_window > 0 || b.rope_theta != far->rope_theta || b.rotary_scaling != far->rotary_scaling;
    if (slides) near = &b;
    types.push_back(slides ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
  config["sliding_window"] = near != nullptr && near->sliding_window > 0 ? near->sliding_window : model.positions();
  if (family == HuggingFaceFamily::gemma2) return;
  config["rope_theta"] = far->rope_theta;
  config["rope_local_base_freq"] = near == nullptr ? 10000.0 : near->rope_theta;
  config.erase("rope_scaling");
  if (far->rotary_scaling != RotaryScaling{}) config["rope_scaling"] = rope_scaling_of(far->rotary_scaling);
}

/// The sliding window of families whose layers have one alike, or from a layer on.
inline void add_sliding_window(nlohmann::ordered_json& config, const ModelSpec& model, HuggingFaceFamily family) {
  using enum HuggingFaceFamily;
  const auto slides = [](const LayerSpec& block) { return block.sliding_window > 0; };
  const auto first = std::ranges::find_if(model.blocks, slides);
  const bool any = first != model.blocks.end();
  if (family == mistral || family == phi3 || family == mixtral)
    config["sliding_window"] = any ? nlohmann::ordered_json(first->sliding_window) : nullptr;
  if (!any || (family != qwen2 && family != qwen3)) return;
  config["use_sliding_window"] = true;
  config["sliding_window"] = first->sliding_window;
  config["max_window_layers"] = first - model.blocks.begin();
  nlohmann::ordered_json types = nlohmann::ordered_json::array();
  for (const LayerSpec& block : model.blocks) types.push_back(slides(block) ? "sliding_attention" : "full_attention");
  config["layer_types"] = types;
}

/// What the config.json of a mixture of experts has beside a Llama's.
inline void add_experts(nlohmann::ordered_json& config, const ModelSpec& model, HuggingFaceFamily family) {
  using enum HuggingFaceFamily;
  std::vector<std::int64_t> dense;
  const LayerSpec* experts = nullptr;
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const LayerSpec& block = model.blocks[i];
    if (block.experts > 0)
      experts = &block;
    else
      dense.push_back(static_cast<std::int64_t>(i));
  }
  if (experts == nullptr) return;
  const RouterSpec& router = experts->router;
  const auto count = static_cast<double>(model.blocks.size() - dense.size());
  // Of blocks without experts; where there are none, ends have their numbers.
  const bool has_both = family != mixtral && family != olmoe;
  config["intermediate_size"] = !dense.empty() ? model.blocks[static_cast<std::size_t>(dense.front())].ffn
                                : has_both && model.embedding.ffn > 0 ? model.embedding.ffn
                                                                      : experts->ffn;
  config["num_experts_per_tok"] = experts->active_experts;
  if (is_deepseek(family)) {
    const LatentAttention& latent = experts->latent;
    config.erase("head_dim");
    config["kv_lora_rank"] = latent.rank;
    config["q_lora_rank"] =
        latent.query_rank == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(latent.query_rank);
    config["qk_nope_head_dim"] = experts->head_dim - latent.rotary_dim;
    config["qk_rope_head_dim"] = latent.rotary_dim;
    config["v_head_dim"] = latent.value_dim;
    config["n_routed_experts"] = experts->experts;
    config["n_shared_experts"] = experts->ffn > 0 ? experts->shared_ffn / experts->ffn : 0;
    config["moe_intermediate_size"] = experts->ffn;
    config["first_k_dense_replace"] = dense.size();
    config["n_group"] = router.groups;
    config["topk_group"] = router.top_groups;
    config["topk_method"] = family == deepseek_v3 ? "noaux_tc" : router.groups > 1 ? "group_limited_greedy" : "greedy";
    config["scoring_func"] = family == deepseek_v3 ? "sigmoid" : "softmax";
    config["norm_topk_prob"] = router.renormalise;
    config["routed_scaling_factor"] = router.scale;
    config["aux_loss_alpha"] = router.balance_loss;
    config["seq_aux"] = router.balance_scope == BalanceScope::sequence;
    return;
  }
  config[family == mixtral ? "num_local_experts" : "num_experts"] = experts->experts;
  config["router_aux_loss_coef"] = router.balance_loss * count / static_cast<double>(experts->active_experts);
  if (family == mixtral) {
    config["router_jitter_noise"] = router.jitter;
    return;
  }
  config["norm_topk_prob"] = router.renormalise;
  if (family == olmoe) return;
  config["moe_intermediate_size"] = experts->ffn;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = dense;
  if (family != qwen2_moe) return;
  config["shared_expert_intermediate_size"] = experts->shared_ffn;
  config["qkv_bias"] = experts->qkv_bias;
}

}  // namespace detail

/// The config.json of a model, as Hugging Face transformers and load_model() read it. It was trained without dropout,
/// which transformers adds to a GPT-2 that does not say so.
template <class = void>
nlohmann::ordered_json huggingface_config(const ModelSpec& model, HuggingFaceFamily family, Precision precision) {
  const LayerSpec& block = model.blocks.front();
  const auto [first, last] = detail::text_ends(model.vocabulary(), family);
  const char* type = precision == Precision::fp32 ? "float32" : "bfloat16";
  if (family == HuggingFaceFamily::gpt2)
    return {{"architectures", {names_of(family).architecture}},
            {"model_type", names_of(family).type},
            {"n_embd", model.hidden()},
            {"n_layer", model.blocks.size()},
            {"n_head", block.heads},
            {"n_inner", block.ffn},
            {"n_positions", model.positions()},
            {"vocab_size", model.vocabulary()},
            {"layer_norm_epsilon", block.norm_epsilon},
            {"activation_function", huggingface_name(block.activation)},
            {"embd_pdrop", 0.0},
            {"attn_pdrop", 0.0},
            {"resid_pdrop", 0.0},
            {"summary_first_dropout", 0.0},
            {"bos_token_id", first},
            {"eos_token_id", last},
            {"tie_word_embeddings", model.head.tied},
            {"torch_dtype", type}};
  if (family == HuggingFaceFamily::t5 || family == HuggingFaceFamily::umt5)
    return detail::t5_config(model, family, type);
  nlohmann::ordered_json config{{"architectures", {names_of(family).architecture}},
                                {"model_type", names_of(family).type},
                                {"hidden_size", model.hidden()},
                                {"num_hidden_layers", model.blocks.size()},
                                {"num_attention_heads", block.heads},
                                {"num_key_value_heads", block.kv_heads},
                                {"head_dim", block.head_dim},
                                {"intermediate_size", block.ffn},
                                {"max_position_embeddings", model.positions()},
                                {"vocab_size", model.vocabulary()},
                                {"rms_norm_eps", block.norm_epsilon},
                                {"rope_theta", block.rope_theta},
                                {"hidden_act", "silu"},
                                {"attention_dropout", 0.0},
                                {"bos_token_id", first},
                                {"eos_token_id", last},
                                {"attention_bias", block.bias},
                                {"mlp_bias", block.bias},
                                {"tie_word_embeddings", model.head.tied},
                                {"torch_dtype", type}};
  if (block.rotary_scaling != RotaryScaling{}) config["rope_scaling"] = detail::rope_scaling_of(block.rotary_scaling);
  if (block.rotary_dim > 0 || family == HuggingFaceFamily::phi)
    config["partial_rotary_factor"] = detail::rotary_part_of(block);
  if (family == HuggingFaceFamily::phi) {
    for (const char* key : {"head_dim", "rms_norm_eps", "attention_bias", "mlp_bias"}) config.erase(key);
    config["layer_norm_eps"] = block.norm_epsilon;
    config["hidden_act"] = huggingface_name(block.activation);
    config["qk_layernorm"] = false;
    for (const char* key : {"resid_pdrop", "embd_pdrop"}) config[key] = 0.0;
  }
  if (family == HuggingFaceFamily::phi3) {
    for (const char* key : {"attention_bias", "mlp_bias"}) config.erase(key);
    config["pad_token_id"] = last;  // left out it is 32000, whatever the vocabulary is
  }
  if (is_gemma(family))
    detail::add_gemma(config, model, family);
  else
    detail::add_sliding_window(config, model, family);
  detail::add_experts(config, model, family);
  return config;
}
GALVATRON_IN_TRAINER(nlohmann::ordered_json huggingface_config<>(const ModelSpec&, HuggingFaceFamily, Precision))

namespace detail {

/// The family whose config.json may describe a mixture of experts, or a decoder that differs from Llama's in its
/// attention, norms or order of parts, by what tells them apart.
inline HuggingFaceFamily likely_family(const LayerSpec& block) {
  using enum HuggingFaceFamily;
  if (block.position == PositionKind::relative) return umt5;
  if (block.parallel) return phi;
  if (block.norm == NormKind::rms_norm_from_one)
    return block.norm_order != NormOrder::around ? gemma : block.query_key_norm == QueryKeyNorm::none ? gemma2 : gemma3;
  if (block.rotary_dim > 0) return phi3;
  if (block.experts == 0) return block.qkv_bias ? qwen2 : block.query_key_norm != QueryKeyNorm::none ? qwen3 : mistral;
  if (block.latent.rank > 0) return block.router.kind == RouterKind::sigmoid ? deepseek_v3 : deepseek_v2;
  if (block.query_key_norm != QueryKeyNorm::none) return block.query_key_norm == QueryKeyNorm::all ? olmoe : qwen3_moe;
  return block.shared_ffn > 0 ? qwen2_moe : mixtral;
}

/// The family of such a model: that whose config.json gives it again. Errors (usage): the first field that none has.
inline Result<HuggingFaceFamily> family_by_config(const ModelSpec& model) {
  const auto experts = std::ranges::find_if(model.blocks, [](const LayerSpec& block) { return block.experts > 0; });
  const HuggingFaceFamily family = likely_family(experts == model.blocks.end() ? model.blocks.front() : *experts);
  const std::string name = std::string("the config.json of a ") + names_of(family).type;
  const std::string text = huggingface_config(model, family, Precision::fp32).dump();
  auto theirs = parse_huggingface_config(text, name);
  if (!theirs) return usage_error("the model " + model.name + " is not one of transformers: " + theirs.error().message);
  ModelSpec ours = without_training_settings(model);
  ours.embedding = theirs->embedding;  // without blocks' numbers
  ours.embedding.embedding_scale = model.embedding.embedding_scale;
  ours.head = theirs->head;
  ours.head.logits_bias = model.head.logits_bias;
  ours.head.logits_cap = model.head.logits_cap;
  if (const auto difference = first_difference(ours, without_training_settings(*theirs)))
    return usage_error("the model " + model.name + " is not one of transformers, whose nearest is " +
                       names_of(family).type + ": " + difference->field + " " + difference->first + ", there " +
                       difference->second + "; choose a model of the families that it has");
  return family;
}

}  // namespace detail

/// The family whose checkpoints have the model's parameters. Errors (usage): a model of none.
inline Result<HuggingFaceFamily> huggingface_family(const ModelSpec& model) {
  bool gpt2 = !model.blocks.empty();
  bool llama = gpt2;
  bool decoder = gpt2;  // with rotary positions, and with attention, norms or experts of its own
  const bool plain_ends = model.embedding.embedding_scale == 1 && !model.head.logits_bias && model.head.logits_cap == 0;
  for (const LayerSpec& block : model.blocks) {
    const bool plain = block.is_plain_block() && block.causal && block.rotary_dim == 0 && block.score_width == 0 &&
                       block.sliding_window == 0 && block.score_cap == 0 && plain_ends;
    gpt2 = gpt2 && plain && block.bias && block.norm == NormKind::layer_norm && inputs_of(block.activation) == 1 &&
           block.position == PositionKind::learned && block.kv_heads == block.heads;
    decoder = decoder && block.causal && block.position == PositionKind::rotary;
    llama = llama && plain && decoder && block.norm == NormKind::rms_norm && block.activation == ActivationKind::swiglu;
  }
  if (model.is_encoder_decoder() && model.head.tied)
    return usage_error(
        "the model " + model.name +
        " has one table at both ends (\"tie_word_embeddings\"): transformers multiplies the logits of such "
        "a T5 by d_model^-1/2, which no layer here does; choose a T5 1.1 or a umT5");
  if (model.is_encoder_decoder()) return detail::family_by_config(model);
  if (gpt2) return HuggingFaceFamily::gpt2;
  if (llama) return HuggingFaceFamily::llama;
  if (decoder) return detail::family_by_config(model);
  return usage_error("the model " + model.name +
                     " is neither a GPT-2 nor a Llama, a Qwen, a Gemma, a Phi, a T5 or a mixture of experts, whose "
                     "Hugging Face checkpoints "
                     "are known; choose one of them");
}

}  // namespace galvatron::train
