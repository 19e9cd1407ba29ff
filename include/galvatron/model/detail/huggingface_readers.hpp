// The readers of Hugging Face configurations, one for each model type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/model/build.hpp>
#include <galvatron/model/detail/huggingface_decoders.hpp>
#include <galvatron/model/detail/huggingface_fields.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::detail {

/// Names of GELU where its tanh approximation is as good.
inline constexpr std::initializer_list<const char*> gelus{"gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"};

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
  shape.activation = activation_from(fields, "activation_function", "gelu_new");
  refuse_if(fields, "scale_attn_weights", false);
  refuse_if(fields, "scale_attn_by_inverse_layer_idx", true);
  refuse_if(fields, "add_cross_attention", true);
  refuse_quantized(fields);
  refuse_indivisible(fields, "n_head", shape.heads, "n_embd", shape.hidden);
  return built(fields, gpt, std::move(name), shape);
}

/// The widths of an encoder in BERT's spelling, and its activation.
template <class Shape>
void encoder_from(JsonObject& fields, Shape& shape) {
  shape.hidden = fields.required<std::int64_t>("hidden_size", 1, model_limits::hidden);
  shape.layers = fields.required<int>("num_hidden_layers", 1, model_limits::layers);
  shape.heads = fields.required<std::int64_t>("num_attention_heads", 1, model_limits::heads);
  shape.ffn = fields.required<std::int64_t>("intermediate_size", 1, model_limits::ffn);
  shape.norm_epsilon = fields.optional<double>("layer_norm_eps", 1e-12, 0.0, 1.0);
  refuse_indivisible(fields, "num_attention_heads", shape.heads, "hidden_size", shape.hidden);
  refuse_unless(fields, "hidden_act", gelus);
}

inline Result<ModelSpec> bert_from(JsonObject& fields, std::string name) {
  BertShape shape;
  encoder_from(fields, shape);
  shape.vocabulary = fields.required<std::int64_t>("vocab_size", 1, model_limits::vocabulary);
  shape.positions = fields.required<std::int64_t>("max_position_embeddings", 1, model_limits::positions);
  shape.token_types = fields.optional<std::int64_t>("type_vocab_size", 2, 0, model_limits::vocabulary);
  refuse_unless(fields, "position_embedding_type", {"absolute"});
  refuse_if(fields, "is_decoder", true);
  refuse_if(fields, "tie_word_embeddings", false);
  return built(fields, bert, std::move(name), shape);
}

/// Image size, patch size and channels of a vision model, and its classes: `num_labels`, else as many as there are
/// labels, else two, which transformers takes where a file says neither.
template <class Shape>
void image_from(JsonObject& fields, Shape& shape, std::int64_t patch) {
  constexpr std::int64_t most = 1 << 14;
  shape.image = fields.optional<std::int64_t>("image_size", 224, 1, most);
  shape.patch = fields.optional<std::int64_t>("patch_size", patch, 1, most);
  shape.channels = fields.optional<std::int64_t>("num_channels", 3, 1, most);
  const nlohmann::json* labels = fields.any("id2label");
  const std::int64_t count = labels != nullptr && labels->is_object() ? static_cast<std::int64_t>(labels->size()) : 2;
  shape.classes = fields.optional<std::int64_t>("num_labels", count, 1, model_limits::vocabulary);
  refuse_indivisible(fields, "patch_size", shape.patch, "image_size", shape.image);
}

inline Result<ModelSpec> vit_from(JsonObject& fields, std::string name) {
  VitShape shape;
  encoder_from(fields, shape);
  image_from(fields, shape, 16);
  refuse_if(fields, "qkv_bias", false);
  return built(fields, vit, std::move(name), shape);
}

/// T5, with one table of positions a side, and umT5, with one a block: here every block has its own, which of a T5 are
/// equal at first. Files of transformers 5 say by `scale_decoder_outputs` that the head has a table of its own.
inline Result<ModelSpec> t5_from(JsonObject& fields, std::string name) {
  const bool umt5 = fields.required<std::string>("model_type") == "umt5";
  T5Shape shape;
  shape.hidden = fields.required<std::int64_t>("d_model", 1, model_limits::hidden);
  shape.encoder_layers = fields.required<int>("num_layers", 1, model_limits::layers);
  shape.decoder_layers = fields.optional<int>("num_decoder_layers", shape.encoder_layers, 1, model_limits::layers);
  shape.heads = fields.required<std::int64_t>("num_heads", 1, model_limits::heads);
  shape.head_dim = fields.optional<std::int64_t>("d_kv", 64, 1, model_limits::head_dim);
  shape.ffn = fields.required<std::int64_t>("d_ff", 1, model_limits::ffn);
  shape.vocabulary = fields.required<std::int64_t>("vocab_size", 1, model_limits::vocabulary);
  shape.source = shape.target = fields.optional<std::int64_t>("n_positions", 512, 1, model_limits::positions);
  shape.buckets = fields.optional<std::int64_t>("relative_attention_num_buckets", 32, 1, model_limits::positions);
  shape.norm_epsilon = fields.optional<double>("layer_norm_epsilon", 1e-6, 0.0, 1.0);
  const bool scales = fields.optional<bool>("scale_decoder_outputs", true);
  shape.tied = fields.optional<bool>("tie_word_embeddings", true) && scales;
  const auto activation = fields.optional<std::string>("feed_forward_proj", umt5 ? "gated-gelu" : "relu");
  shape.activation = activation == "gated-gelu"   ? ActivationKind::geglu
                     : activation == "gated-silu" ? ActivationKind::swiglu
                                                  : ActivationKind::relu;
  refuse_unless(fields, "feed_forward_proj", {"relu", "gated-gelu", "gated-silu"});
  refuse_if(fields, "is_encoder_decoder", false);
  const auto far = fields.optional<std::int64_t>("relative_attention_max_distance", 128);
  fields.check("relative_attention_max_distance", far == 128, std::to_string(far) + " is not supported; only 128 is");
  refuse_quantized(fields);
  return built(fields, t5, std::move(name), shape);
}

inline Result<ModelSpec> swin_from(JsonObject& fields, std::string name) {
  SwinShape shape;
  shape.hidden = fields.required<std::int64_t>("embed_dim", 1, model_limits::hidden);
  const auto four = [&fields](std::string_view key, auto& out, std::int64_t most) {
    const auto numbers = fields.numbers<std::int64_t>(key, 1, most);
    fields.check(key, numbers.size() == out.size(), "expected four integers, one for each stage");
    if (!fields.failed()) std::ranges::copy(numbers, out.begin());
  };
  four("depths", shape.depths, model_limits::layers);
  four("num_heads", shape.heads, model_limits::heads);
  image_from(fields, shape, 4);
  shape.window = fields.optional<std::int64_t>("window_size", 7, 1, 4096);
  const double ratio = fields.optional<double>("mlp_ratio", 4.0, 1.0, 64.0);
  shape.ffn_ratio = static_cast<std::int64_t>(ratio);
  fields.check("mlp_ratio", static_cast<double>(shape.ffn_ratio) == ratio, "only whole numbers are supported");
  shape.norm_epsilon = fields.optional<double>("layer_norm_eps", 1e-5, 0.0, 1.0);
  refuse_unless(fields, "hidden_act", gelus);
  refuse_if(fields, "qkv_bias", false);
  refuse_if(fields, "use_absolute_embeddings", true);
  for (std::size_t i = 0; i < shape.heads.size() && !fields.failed(); ++i)
    if ((shape.hidden << i) % shape.heads[i] != 0)
      fields.fail(fields.where() + ": \"num_heads\" " + std::to_string(shape.heads[i]) +
                  " does not divide the width of its stage, " + std::to_string(shape.hidden << i));
  return built(fields, swin, std::move(name), shape);
}

/// The coefficient of the balance loss, whose tokens are those of a micro-batch.
inline void read_balance_loss(JsonObject& fields, MoeShape& shape, double otherwise) {
  const double coefficient = fields.optional<double>("router_aux_loss_coef", otherwise, 0.0, 1e3);
  shape.router.balance_loss = balance_loss_of(coefficient, shape.active_experts, shape.blocks_with_experts());
  shape.router.balance_scope = BalanceScope::micro_batch;
}

inline void read_experts(JsonObject& fields, MoeShape& shape, std::int64_t experts, std::int64_t active) {
  // transformers 5 writes the one key, older versions the other.
  const char* key = fields.contains("num_experts") ? "num_experts" : "num_local_experts";
  shape.experts = fields.optional<std::int64_t>(key, experts, 1, model_limits::experts);
  shape.active_experts = fields.optional<std::int64_t>("num_experts_per_tok", active, 1, model_limits::experts);
}

inline Result<ModelSpec> mixtral_from(JsonObject& fields, std::string name) {
  MoeShape shape;
  shape.dense = llama_shape_from(fields, {.norm_epsilon = 1e-5, .rope_theta = 1e6, .kv_heads = 8, .biases = false});
  shape.experts = fields.required<std::int64_t>("num_local_experts", 1, model_limits::experts);
  shape.active_experts = fields.required<std::int64_t>("num_experts_per_tok", 1, model_limits::experts);
  read_balance_loss(fields, shape, 0.001);
  shape.router.jitter = fields.optional<double>("router_jitter_noise", 0.0);
  fields.check("router_jitter_noise", shape.router.jitter >= 0 && shape.router.jitter < 1,
               "noise in the router's input is from 0 to below 1");
  shape.dense.sliding_window = sliding_window_from(fields, shape.dense.positions, 0);
  return built(fields, moe, std::move(name), shape);
}

/// Of Qwen2's and Qwen3's mixtures: which blocks have experts, and how wide they are.
/// @param dense_blocks  what the shape views
inline void read_qwen_experts(JsonObject& fields, MoeShape& shape, std::int64_t expert_ffn,
                              std::vector<std::int64_t>& dense_blocks) {
  shape.expert_ffn = fields.optional<std::int64_t>("moe_intermediate_size", expert_ffn, 1, model_limits::ffn);
  shape.router.renormalise = fields.optional<bool>("norm_topk_prob", false);
  shape.sparse_step = fields.optional<int>("decoder_sparse_step", 1, 1, model_limits::layers);
  if (fields.has("mlp_only_layers", false))
    dense_blocks = fields.numbers<std::int64_t>("mlp_only_layers", 0, model_limits::layers);
  shape.dense_blocks = dense_blocks;
  if (!fields.failed() && shape.blocks_with_experts() == 0)
    fields.fail(fields.where() + ": \"decoder_sparse_step\" and \"mlp_only_layers\" leave no layer with experts; " +
                "choose a model that has some");
  read_balance_loss(fields, shape, 0.001);
  refuse_windows(fields);
}

inline Result<ModelSpec> qwen2_moe_from(JsonObject& fields, std::string name) {
  MoeShape shape;
  std::vector<std::int64_t> dense_blocks;
  shape.dense = llama_shape_from(fields, {.kv_heads = 16, .biases = false});
  shape.dense.qkv_bias = fields.optional<bool>("qkv_bias", true);
  read_experts(fields, shape, 60, 4);
  read_qwen_experts(fields, shape, 1408, dense_blocks);
  shape.shared_ffn = fields.optional<std::int64_t>("shared_expert_intermediate_size", 5632, 1, model_limits::ffn);
  shape.shared_gate = true;
  return built(fields, moe, std::move(name), shape);
}

inline Result<ModelSpec> qwen3_moe_from(JsonObject& fields, std::string name) {
  MoeShape shape;
  std::vector<std::int64_t> dense_blocks;
  shape.dense = llama_shape_from(fields, {.kv_heads = 4, .biases = false});
  shape.dense.query_key_norm = QueryKeyNorm::heads;
  read_experts(fields, shape, 128, 8);
  read_qwen_experts(fields, shape, 768, dense_blocks);
  refuse_if(fields, "attention_bias", true);
  return built(fields, moe, std::move(name), shape);
}

inline Result<ModelSpec> olmoe_from(JsonObject& fields, std::string name) {
  MoeShape shape;
  shape.dense = llama_shape_from(fields, {.norm_epsilon = 1e-5, .biases = false});
  shape.dense.query_key_norm = QueryKeyNorm::all;
  read_experts(fields, shape, 64, 8);
  shape.router.renormalise = fields.optional<bool>("norm_topk_prob", false);
  read_balance_loss(fields, shape, 0.01);
  refuse_present(fields, "clip_qkv", "clipping of queries, keys and values",
                 "choose a model without it (null, as OLMoE was published)");
  refuse_if(fields, "attention_bias", true);
  return built(fields, moe, std::move(name), shape);
}

/// Of DeepSeek's scaled positions: the rate by which scores grow. A file that load_model takes has it in one of two
/// keys.
inline double score_rate_from(JsonObject& fields) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const nlohmann::json* value = fields.any(key);
    if (value == nullptr || !value->is_object() || value->empty()) continue;
    const auto rate = value->find("mscale_all_dim");
    return rate != value->end() && rate->is_number() ? rate->get<double>() : 0.0;
  }
  return 0;
}

/// What of DeepSeek-V2's and -V3's files is alike. transformers gives the norms of latent vectors its usual epsilon,
/// 1e-6, whatever the file says. It has no balance loss; that of DeepSeek's own code is RouterSpec::balance_loss.
/// @param query_rank, first_dense  what transformers takes for keys that a file leaves out
inline MoeShape deepseek_shape_from(JsonObject& fields, std::int64_t query_rank, int first_dense) {
  MoeShape shape;
  // The width of a head is that of its parts, whatever the layer's is.
  LlamaShape& dense = shape.dense = llama_shape_from(fields, {.head_dim = 128, .biases = false});
  dense.rotary_scaling.score_rate = score_rate_from(fields);
  const auto width = [&fields](std::string_view key, std::int64_t otherwise, std::int64_t most) {
    return fields.optional<std::int64_t>(key, otherwise, 1, most);
  };
  fields.check("num_key_value_heads", dense.kv_heads == 0 || dense.kv_heads == dense.heads,
               "latent attention has as many heads of keys as of queries");
  dense.latent.rank = width("kv_lora_rank", 512, model_limits::hidden);
  const bool has_query_rank = fields.contains("q_lora_rank");  // null: queries have no latent vector
  dense.latent.query_rank = width("q_lora_rank", has_query_rank ? 0 : query_rank, model_limits::hidden);
  dense.latent.rotary_dim = width("qk_rope_head_dim", 64, model_limits::head_dim / 2);
  dense.latent.value_dim = width("v_head_dim", 128, model_limits::head_dim);
  dense.head_dim = dense.latent.rotary_dim + width("qk_nope_head_dim", 128, model_limits::head_dim / 2);
  for (const char* key : {"attention_bias", "mlp_bias"}) refuse_if(fields, key, true);
  fields.check("rope_interleave", fields.optional<bool>("rope_interleave", true),
               "false is not supported; only true is, pairs of neighbours");
  shape.active_experts = fields.required<std::int64_t>("num_experts_per_tok", 1, model_limits::experts);
  shape.router.balance_loss = fields.optional<double>("aux_loss_alpha", 0.0, 0.0, 1e3);
  shape.router.balance_scope =
      fields.optional<bool>("seq_aux", true) ? BalanceScope::sequence : BalanceScope::micro_batch;
  shape.first_dense = fields.optional<int>("first_k_dense_replace", first_dense, 0, model_limits::layers);
  fields.check("first_k_dense_replace", shape.first_dense < dense.layers || fields.failed(),
               "no layer has experts; choose a model that has some");
  const auto step = fields.optional<int>("moe_layer_freq", 1);
  fields.check("moe_layer_freq", step == 1, std::to_string(step) + " is not supported; only 1 is");
  return shape;
}
/// @param experts, expert_ffn, shared  what transformers takes for keys that a file leaves out
inline void read_deepseek_experts(JsonObject& fields, MoeShape& shape, std::int64_t experts, std::int64_t expert_ffn,
                                  std::int64_t shared) {
  shape.experts = fields.optional<std::int64_t>("n_routed_experts", experts, 1, model_limits::experts);
  shape.expert_ffn = fields.optional<std::int64_t>("moe_intermediate_size", expert_ffn, 1, model_limits::ffn);
  if (fields.contains("n_shared_experts")) shared = 0;  // null: none
  shape.shared_ffn =
      shape.expert_ffn * fields.optional<std::int64_t>("n_shared_experts", shared, 0, model_limits::experts);
}

inline Result<ModelSpec> deepseek_v2_from(JsonObject& fields, std::string name) {
  MoeShape shape = deepseek_shape_from(fields, 1536, 0);
  read_deepseek_experts(fields, shape, 64, 1407, 2);
  shape.router.renormalise = false;
  shape.router.scale = fields.optional<double>("routed_scaling_factor", 1.0, 0.0, 1e6);
  refuse_unless(fields, "topk_method", {"greedy", "group_limited_greedy"});
  refuse_unless(fields, "scoring_func", {"softmax"});
  if (fields.optional<std::string>("topk_method", "greedy") == "group_limited_greedy") {
    shape.router.groups = fields.required<std::int64_t>("n_group", 1, model_limits::experts);
    shape.router.top_groups = fields.required<std::int64_t>("topk_group", 1, model_limits::experts);
  }
  fields.check("norm_topk_prob", !fields.optional<bool>("norm_topk_prob", false),
               "true is not supported: DeepSeek's own code renormalises weights then and transformers does not; choose "
               "a model with false, as DeepSeek-V2 was published");
  return built(fields, moe, std::move(name), shape);
}

inline Result<ModelSpec> deepseek_v3_from(JsonObject& fields, std::string name) {
  MoeShape shape = deepseek_shape_from(fields, 1536, 3);
  read_deepseek_experts(fields, shape, 256, 2048, 1);
  shape.router.kind = RouterKind::sigmoid;
  shape.router.renormalise = fields.optional<bool>("norm_topk_prob", true);
  shape.router.scale = fields.optional<double>("routed_scaling_factor", 2.5, 0.0, 1e6);
  shape.router.groups = fields.optional<std::int64_t>("n_group", 8, 1, model_limits::experts);
  shape.router.top_groups = fields.optional<std::int64_t>("topk_group", 4, 1, model_limits::experts);
  refuse_unless(fields, "topk_method", {"noaux_tc"});
  refuse_unless(fields, "scoring_func", {"sigmoid"});
  return built(fields, moe, std::move(name), shape);
}

}  // namespace galvatron::detail
