#include <galvatron/model/huggingface.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/activation_names.hpp>
#include <galvatron/model/difference.hpp>
#include <galvatron/model/layers.hpp>

namespace galvatron {
namespace {

const nlohmann::json gpt2_config = {{"model_type", "gpt2"},
                                    {"architectures", {"GPT2LMHeadModel"}},
                                    {"activation_function", "gelu_new"},
                                    {"attn_pdrop", 0.1},
                                    {"n_ctx", 1024},
                                    {"n_embd", 768},
                                    {"n_head", 12},
                                    {"n_inner", nullptr},
                                    {"n_layer", 12},
                                    {"n_positions", 1024},
                                    {"layer_norm_epsilon", 1e-5},
                                    {"task_specific_params", {{"text-generation", {{"do_sample", true}}}}},
                                    {"vocab_size", 50257}};

const nlohmann::json llama_config = {
    {"model_type", "llama"},        {"attention_bias", false},    {"hidden_act", "silu"},
    {"hidden_size", 4096},          {"intermediate_size", 14336}, {"max_position_embeddings", 8192},
    {"num_attention_heads", 32},    {"num_hidden_layers", 32},    {"num_key_value_heads", 8},
    {"rms_norm_eps", 1e-05},        {"rope_scaling", nullptr},    {"rope_theta", 500000},
    {"tie_word_embeddings", false}, {"torch_dtype", "bfloat16"},  {"vocab_size", 128256}};

Result<ModelSpec> read(const nlohmann::json& config) { return parse_huggingface_config(config.dump(), "config.json"); }

nlohmann::json with(nlohmann::json config, const std::string& key, const nlohmann::json& value) {
  config[key] = value;
  return config;
}
nlohmann::json without(nlohmann::json config, const std::string& key) {
  config.erase(key);
  return config;
}

std::string error_of(const nlohmann::json& config) {
  const auto model = read(config);
  REQUIRE_FALSE(model.has_value());
  CHECK(model.error().kind == ErrorKind::usage);
  CHECK(model.error().message.find("config.json") != std::string::npos);
  return model.error().message;
}
bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("GPT-2's config is the preset") {
  auto model = read(gpt2_config);
  REQUIRE(model.has_value());
  CHECK(model->name == "config.json");
  model->name = "gpt2-124m";
  CHECK(*model == find_model("gpt2-124m").value());
}

TEST_CASE("Llama 3's config is the preset") {
  auto model = read(llama_config);
  REQUIRE(model.has_value());
  model->name = "llama3-8b";
  CHECK(*model == find_model("llama3-8b").value());
}

const nlohmann::json bert_config = {
    {"model_type", "bert"},      {"hidden_size", 1024}, {"num_hidden_layers", 24}, {"num_attention_heads", 16},
    {"intermediate_size", 4096}, {"vocab_size", 30522}, {"type_vocab_size", 2},    {"max_position_embeddings", 512},
    {"layer_norm_eps", 1e-12},   {"hidden_act", "gelu"}};
const nlohmann::json vit_config = {{"model_type", "vit"},       {"hidden_size", 1280},       {"num_hidden_layers", 32},
                                   {"num_attention_heads", 16}, {"intermediate_size", 5120}, {"image_size", 224},
                                   {"patch_size", 14},          {"num_labels", 1000},        {"layer_norm_eps", 1e-6}};
const nlohmann::json t5_config = {
    {"model_type", "t5"},        {"d_model", 1024},    {"num_layers", 24},
    {"num_heads", 32},           {"d_kv", 128},        {"d_ff", 16384},
    {"vocab_size", 32128},       {"n_positions", 512}, {"relative_attention_num_buckets", 32},
    {"is_encoder_decoder", true}};
const nlohmann::json swin_config = {{"model_type", "swin"},    {"embed_dim", 320},
                                    {"depths", {2, 2, 26, 2}}, {"num_heads", {8, 16, 32, 64}},
                                    {"image_size", 224},       {"patch_size", 4},
                                    {"window_size", 7},        {"mlp_ratio", 4},
                                    {"qkv_bias", true},        {"use_absolute_embeddings", false},
                                    {"num_labels", 1000}};
const nlohmann::json mixtral_config = {{"model_type", "mixtral"},
                                       {"hidden_size", 4096},
                                       {"num_hidden_layers", 32},
                                       {"num_attention_heads", 32},
                                       {"num_key_value_heads", 8},
                                       {"intermediate_size", 14336},
                                       {"max_position_embeddings", 32768},
                                       {"vocab_size", 32000},
                                       {"rms_norm_eps", 1e-05},
                                       {"rope_theta", 1e6},
                                       {"sliding_window", nullptr},
                                       {"num_local_experts", 8},
                                       {"num_experts_per_tok", 2},
                                       {"router_jitter_noise", 0.0},
                                       {"router_aux_loss_coef", 0.02}};

const nlohmann::json qwen2_moe_config = {{"model_type", "qwen2_moe"},     {"hidden_size", 3584},
                                         {"intermediate_size", 18944},    {"max_position_embeddings", 131072},
                                         {"max_window_layers", 28},       {"num_attention_heads", 28},
                                         {"num_hidden_layers", 28},       {"num_key_value_heads", 4},
                                         {"rms_norm_eps", 1e-06},         {"rope_theta", 1000000.0},
                                         {"sliding_window", 65536},       {"use_sliding_window", false},
                                         {"vocab_size", 151936},          {"decoder_sparse_step", 1},
                                         {"moe_intermediate_size", 2560}, {"shared_expert_intermediate_size", 20480},
                                         {"num_experts_per_tok", 8},      {"num_experts", 64},
                                         {"norm_topk_prob", false},       {"router_aux_loss_coef", 0.001}};
const nlohmann::json qwen3_moe_config = {{"model_type", "qwen3_moe"},
                                         {"attention_bias", false},
                                         {"decoder_sparse_step", 1},
                                         {"head_dim", 128},
                                         {"hidden_size", 2048},
                                         {"intermediate_size", 6144},
                                         {"max_position_embeddings", 40960},
                                         {"mlp_only_layers", nlohmann::json::array()},
                                         {"moe_intermediate_size", 768},
                                         {"norm_topk_prob", true},
                                         {"num_attention_heads", 32},
                                         {"num_experts", 128},
                                         {"num_experts_per_tok", 8},
                                         {"num_hidden_layers", 48},
                                         {"num_key_value_heads", 4},
                                         {"rms_norm_eps", 1e-06},
                                         {"rope_scaling", nullptr},
                                         {"rope_theta", 1000000.0},
                                         {"router_aux_loss_coef", 0.001},
                                         {"sliding_window", nullptr},
                                         {"use_sliding_window", false},
                                         {"vocab_size", 151936}};
const nlohmann::json olmoe_config = {
    {"model_type", "olmoe"},    {"attention_bias", false},   {"clip_qkv", nullptr},
    {"hidden_size", 2048},      {"intermediate_size", 1024}, {"max_position_embeddings", 4096},
    {"norm_topk_prob", false},  {"num_attention_heads", 16}, {"num_experts", 64},
    {"num_experts_per_tok", 8}, {"num_hidden_layers", 16},   {"num_key_value_heads", 16},
    {"rms_norm_eps", 1e-05},    {"rope_theta", 10000.0},     {"router_aux_loss_coef", 0.01},
    {"vocab_size", 50304}};
// DeepSeek's without the scaling of positions that their released weights have.
const nlohmann::json deepseek_v2_config = {{"model_type", "deepseek_v2"},
                                           {"aux_loss_alpha", 0.001},
                                           {"first_k_dense_replace", 1},
                                           {"hidden_size", 2048},
                                           {"intermediate_size", 10944},
                                           {"kv_lora_rank", 512},
                                           {"max_position_embeddings", 4096},
                                           {"moe_intermediate_size", 1408},
                                           {"moe_layer_freq", 1},
                                           {"n_group", 1},
                                           {"n_routed_experts", 64},
                                           {"n_shared_experts", 2},
                                           {"norm_topk_prob", false},
                                           {"num_attention_heads", 16},
                                           {"num_experts_per_tok", 6},
                                           {"num_hidden_layers", 27},
                                           {"num_key_value_heads", 16},
                                           {"q_lora_rank", nullptr},
                                           {"qk_nope_head_dim", 128},
                                           {"qk_rope_head_dim", 64},
                                           {"rms_norm_eps", 1e-06},
                                           {"rope_theta", 10000},
                                           {"routed_scaling_factor", 1.0},
                                           {"scoring_func", "softmax"},
                                           {"seq_aux", true},
                                           {"topk_group", 1},
                                           {"topk_method", "greedy"},
                                           {"v_head_dim", 128},
                                           {"vocab_size", 102400}};
const nlohmann::json deepseek_v3_config = {{"model_type", "deepseek_v3"},
                                           {"aux_loss_alpha", 0.0001},
                                           {"first_k_dense_replace", 3},
                                           {"hidden_size", 7168},
                                           {"intermediate_size", 18432},
                                           {"kv_lora_rank", 512},
                                           {"max_position_embeddings", 4096},
                                           {"moe_intermediate_size", 2048},
                                           {"moe_layer_freq", 1},
                                           {"n_group", 8},
                                           {"n_routed_experts", 256},
                                           {"n_shared_experts", 1},
                                           {"norm_topk_prob", true},
                                           {"num_attention_heads", 128},
                                           {"num_experts_per_tok", 8},
                                           {"num_hidden_layers", 61},
                                           {"num_key_value_heads", 128},
                                           {"num_nextn_predict_layers", 1},
                                           {"q_lora_rank", 1536},
                                           {"qk_nope_head_dim", 128},
                                           {"qk_rope_head_dim", 64},
                                           {"rms_norm_eps", 1e-06},
                                           {"rope_theta", 10000},
                                           {"routed_scaling_factor", 2.5},
                                           {"scoring_func", "sigmoid"},
                                           {"seq_aux", true},
                                           {"topk_group", 4},
                                           {"topk_method", "noaux_tc"},
                                           {"v_head_dim", 128},
                                           {"vocab_size", 129280}};

TEST_CASE("configs of mixtures of experts are their presets") {
  const std::pair<const nlohmann::json*, const char*> rows[] = {{&qwen2_moe_config, "qwen2-57b-a14b"},
                                                                {&qwen3_moe_config, "qwen3-30b-a3b"},
                                                                {&olmoe_config, "olmoe-1b-7b"},
                                                                {&deepseek_v2_config, "deepseek-v2-lite"},
                                                                {&deepseek_v3_config, "deepseek-v3"}};
  for (const auto& [config, name] : rows) {
    const auto model = read(*config);
    INFO(name, model ? "" : model.error().message);
    REQUIRE(model.has_value());
    ModelSpec preset = find_model(name).value();
    for (LayerSpec& block : preset.blocks) block.router.z_loss = block.router.bias_rate = 0;  // no config has them
    const auto difference = first_difference(*model, preset);
    CHECK_MESSAGE(!difference, (difference ? difference->field + difference->first : ""));
  }
}

TEST_CASE("which layers have experts is read as transformers reads it") {
  ModelSpec model = read(with(with(qwen3_moe_config, "decoder_sparse_step", 2), "mlp_only_layers", {3, 5, 40})).value();
  int count = 0;
  for (std::size_t i = 0; i < model.blocks.size(); ++i) {
    const bool has = i % 2 == 1 && i != 3 && i != 5;
    CHECK((model.blocks[i].experts == 128) == has);
    CHECK(model.blocks[i].ffn == (has ? 768 : 6144));
    CHECK(model.blocks[i].query_key_norm == QueryKeyNorm::heads);
    count += has ? 1 : 0;
  }
  CHECK(model.blocks[1].router.balance_loss == doctest::Approx(0.001 * 8 / count));
  CHECK(contains(error_of(with(qwen3_moe_config, "decoder_sparse_step", 49)), "leave no layer with experts"));
  model = read(deepseek_v3_config).value();
  CHECK(model.blocks[2].experts == 0);
  CHECK(model.blocks[2].ffn == 18432);
  CHECK(model.blocks[2].latent == model.blocks[3].latent);
  CHECK(model.blocks[3].ffn == 2048);
  CHECK(contains(error_of(with(deepseek_v3_config, "first_k_dense_replace", 61)), "no layer has experts"));
}

TEST_CASE("what mixtures of experts have and galvatron not is refused by name") {
  const auto refused = [](const nlohmann::json& config, const std::string& key, const nlohmann::json& value,
                          const std::string& part) {
    const std::string message = error_of(with(config, key, value));
    INFO(message);
    CHECK(contains(message, "\"" + key + "\""));
    CHECK(contains(message, part));
  };
  refused(qwen2_moe_config, "use_sliding_window", true, "only false");
  refused(qwen3_moe_config, "layer_types", {"full_attention", "sliding_attention"}, "only \"full_attention\"");
  refused(qwen3_moe_config, "attention_bias", true, "only false");
  refused(qwen3_moe_config, "decoder_sparse_step", 0, "from 1");
  refused(olmoe_config, "clip_qkv", 8.0, "clipping");
  refused(olmoe_config, "attention_bias", true, "only false");
  refused(deepseek_v2_config, "norm_topk_prob", true, "transformers does not");
  refused(deepseek_v2_config, "topk_method", "noaux_tc", "supported: greedy, group_limited_greedy");
  refused(deepseek_v2_config, "scoring_func", "sigmoid", "supported: softmax");
  refused(deepseek_v3_config, "topk_method", "greedy", "supported: noaux_tc");
  refused(deepseek_v3_config, "scoring_func", "softmax", "supported: sigmoid");
  refused(deepseek_v3_config, "moe_layer_freq", 2, "only 1");
  refused(deepseek_v3_config, "num_key_value_heads", 64, "as many heads of keys");
  refused(deepseek_v3_config, "rope_interleave", false, "only true");
  refused(deepseek_v3_config, "attention_bias", true, "only false");
  refused(deepseek_v3_config, "rope_scaling", {{"type", "longrope"}, {"factor", 40}},
          "scaled rotary positions (\"longrope\")");
  CHECK(contains(error_of(with(deepseek_v3_config, "n_group", 7)), "groups of experts"));
  CHECK(contains(error_of(with(deepseek_v3_config, "qk_rope_head_dim", 63)), "an even part"));
  CHECK(contains(error_of(with(with(qwen3_moe_config, "num_experts", 4096), "moe_intermediate_size", 8192)),
                 "experts times their width"));
}

// transformers 5.24: the configuration classes, asked with each key left out.
TEST_CASE("keys that files of mixtures of experts leave out are read as transformers reads them") {
  const auto bare = [](nlohmann::json config, std::initializer_list<const char*> kept) {
    for (const char* key : {"num_key_value_heads",
                            "rms_norm_eps",
                            "rope_theta",
                            "num_experts",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "shared_expert_intermediate_size",
                            "norm_topk_prob",
                            "router_aux_loss_coef",
                            "decoder_sparse_step",
                            "mlp_only_layers",
                            "kv_lora_rank",
                            "q_lora_rank",
                            "qk_nope_head_dim",
                            "qk_rope_head_dim",
                            "v_head_dim",
                            "n_group",
                            "topk_group",
                            "topk_method",
                            "scoring_func",
                            "n_routed_experts",
                            "n_shared_experts",
                            "routed_scaling_factor",
                            "first_k_dense_replace",
                            "aux_loss_alpha",
                            "seq_aux"})
      if (std::find_if(kept.begin(), kept.end(), [&](const std::string& k) { return k == key; }) == kept.end())
        config.erase(key);
    return read(config).value().blocks.back();
  };
  LayerSpec block = bare(with(qwen2_moe_config, "num_attention_heads", 32), {});
  CHECK(block.kv_heads == 16);
  CHECK(block.norm_epsilon == 1e-6);
  CHECK(block.rope_theta == 10000.0);
  CHECK(block.qkv_bias);
  CHECK(block.experts == 60);
  CHECK(block.active_experts == 4);
  CHECK(block.ffn == 1408);
  CHECK(block.shared_ffn == 5632);
  CHECK_FALSE(block.router.renormalise);
  CHECK(block.router.balance_loss == doctest::Approx(0.001 * 4 / 28));
  block = bare(qwen3_moe_config, {});
  CHECK(block.kv_heads == 4);
  CHECK(block.experts == 128);
  CHECK(block.active_experts == 8);
  CHECK(block.ffn == 768);
  CHECK_FALSE(block.router.renormalise);
  block = bare(olmoe_config, {});
  CHECK(block.kv_heads == 16);
  CHECK(block.norm_epsilon == 1e-5);
  CHECK(block.experts == 64);
  CHECK(block.active_experts == 8);
  CHECK(block.router.balance_loss == doctest::Approx(0.01 * 8 / 16));
  block = bare(deepseek_v2_config, {"num_experts_per_tok"});
  CHECK(block.latent == LatentAttention{.rank = 512, .query_rank = 1536, .rotary_dim = 64, .value_dim = 128});
  CHECK(block.head_dim == 192);
  CHECK(block.experts == 64);
  CHECK(block.ffn == 1407);
  CHECK(block.shared_ffn == 2 * 1407);
  CHECK(block.router == RouterSpec{.renormalise = false});
  CHECK(read(without(deepseek_v2_config, "first_k_dense_replace"))->blocks[0].experts == 64);
  block = bare(deepseek_v3_config, {"num_experts_per_tok"});
  CHECK(block.experts == 256);
  CHECK(block.ffn == 2048);
  CHECK(block.shared_ffn == 2048);
  CHECK(block.router == RouterSpec{.kind = RouterKind::sigmoid, .scale = 2.5, .groups = 8, .top_groups = 4});
  CHECK(read(without(deepseek_v3_config, "first_k_dense_replace"))->blocks[2].experts == 0);
  CHECK(read(with(deepseek_v3_config, "n_shared_experts", nullptr))->blocks[3].shared_ffn == 0);
  CHECK(read(with(deepseek_v2_config, "seq_aux", false))->blocks[3].router.balance_scope == BalanceScope::micro_batch);
  const nlohmann::json limited =
      with(with(with(deepseek_v2_config, "topk_method", "group_limited_greedy"), "n_group", 8), "topk_group", 3);
  CHECK(read(limited)->blocks[3].router.groups == 8);
  CHECK(read(limited)->blocks[3].router.top_groups == 3);
  // Files of transformers 5 name the experts as Mixtral does.
  CHECK(read(with(without(qwen3_moe_config, "num_experts"), "num_local_experts", 32))->blocks[0].experts == 32);
}

TEST_CASE("configs of the other families are their presets") {
  const std::pair<const nlohmann::json*, const char*> rows[] = {{&bert_config, "bert-large"},
                                                                {&vit_config, "vit-huge-32"},
                                                                {&t5_config, "t5-3b"},
                                                                {&swin_config, "swin-huge-32"},
                                                                {&mixtral_config, "mixtral-8x7b"}};
  for (const auto& [config, name] : rows) {
    auto model = read(*config);
    INFO(name);
    REQUIRE(model.has_value());
    model->name = name;
    CHECK(*model == find_model(name).value());
  }
}

TEST_CASE("what the other families have and galvatron not is refused by name") {
  CHECK(contains(error_of(with(bert_config, "hidden_act", "relu")), "\"hidden_act\": \"relu\" is not supported"));
  CHECK(contains(error_of(with(bert_config, "position_embedding_type", "relative_key")), "absolute"));
  CHECK(contains(error_of(with(bert_config, "num_attention_heads", 10)), "does not divide \"hidden_size\""));
  CHECK(contains(error_of(with(vit_config, "patch_size", 15)), "does not divide \"image_size\" 224"));
  CHECK(contains(error_of(with(vit_config, "image_size", nlohmann::json::array({224, 224}))), "image_size"));
  CHECK(contains(error_of(with(t5_config, "feed_forward_proj", "gated-relu")), "feed_forward_proj"));
  CHECK(contains(error_of(with(swin_config, "depths", {2, 2, 2})), "four integers"));
  CHECK(contains(error_of(with(swin_config, "num_heads", {8, 16, 32, "x"})), "expected an integer"));
  CHECK(contains(error_of(with(swin_config, "window_size", 5)), "square windows divide"));
  CHECK(contains(error_of(with(swin_config, "mlp_ratio", 2.5)), "whole numbers"));
  CHECK(read(with(mixtral_config, "sliding_window", 4096))->blocks[0].sliding_window == 4096);
  CHECK(contains(error_of(with(mixtral_config, "num_experts_per_tok", 9)), "no more than there are"));
  CHECK(contains(error_of(with(mixtral_config, "router_jitter_noise", 1.0)), "noise in the router's input"));
  CHECK(contains(error_of(with(mixtral_config, "router_jitter_noise", -0.1)), "noise in the router's input"));
  CHECK(read(with(mixtral_config, "router_jitter_noise", 0.1))->blocks[31].router.jitter == 0.1);
  CHECK(contains(error_of(without(mixtral_config, "num_local_experts")), "\"num_local_experts\" is missing"));
  CHECK(contains(error_of(with(t5_config, "is_encoder_decoder", false)), "only true"));
  CHECK(contains(error_of(with(t5_config, "relative_attention_max_distance", 64)), "only 128"));
  CHECK(read(with(t5_config, "feed_forward_proj", "gated-silu"))->blocks[0].ffn_inputs() == 2 * 16384);
  CHECK(read(with(t5_config, "feed_forward_proj", "gated-gelu"))->blocks[0].activation == ActivationKind::geglu);
  CHECK(read(t5_config)->head.tied);
  CHECK_FALSE(read(with(t5_config, "tie_word_embeddings", false))->head.tied);
  CHECK_FALSE(read(with(t5_config, "scale_decoder_outputs", false))->head.tied);
  CHECK(read(with(without(t5_config, "feed_forward_proj"), "model_type", "umt5"))->blocks[0].activation ==
        ActivationKind::geglu);
  CHECK(read(with(without(vit_config, "num_labels"), "id2label", {{"0", "cat"}, {"1", "dog"}}))->head.vocabulary == 2);
}

TEST_CASE("the coefficient of the balance loss is that of each block's own loss") {
  // Of transformers: 0.02 k with even choices, of all blocks together.
  const ModelSpec mixtral = read(mixtral_config).value();
  double sum = 0;
  for (const LayerSpec& block : mixtral.blocks) sum += block.router.balance_loss;
  CHECK(sum == doctest::Approx(0.02 * 2));
  CHECK(mixtral.blocks[0].router.balance_scope == BalanceScope::micro_batch);
  CHECK(read(without(mixtral_config, "router_aux_loss_coef"))->blocks[0].router.balance_loss ==
        doctest::Approx(0.001 * 2 / 32));
}

// transformers 5.24: the configuration classes, asked with each key left out.
TEST_CASE("keys that files leave out are read as transformers reads them") {
  CHECK(read(without(vit_config, "num_labels"))->head.vocabulary == 2);
  CHECK(read(without(swin_config, "num_labels"))->head.vocabulary == 2);
  CHECK(read(with(vit_config, "id2label", {{"0", "cat"}, {"1", "dog"}}))->head.vocabulary == 1000);
  const auto mixtral =
      read(without(without(without(mixtral_config, "num_key_value_heads"), "rms_norm_eps"), "rope_theta"));
  REQUIRE(mixtral.has_value());
  CHECK(mixtral->blocks[0].kv_heads == 8);
  CHECK(mixtral->blocks[0].norm_epsilon == 1e-5);
  CHECK(mixtral->blocks[0].rope_theta == 1e6);
  CHECK(read(with(mixtral_config, "num_key_value_heads", nullptr))->blocks[0].kv_heads == 32);
  CHECK_FALSE(read(with(with(mixtral_config, "attention_bias", true), "mlp_bias", true))->blocks[0].bias);
  const auto llama = read(without(without(without(llama_config, "num_key_value_heads"), "rms_norm_eps"), "rope_theta"));
  REQUIRE(llama.has_value());
  CHECK(llama->blocks[0].kv_heads == 32);
  CHECK(llama->blocks[0].norm_epsilon == 1e-6);
  CHECK(llama->blocks[0].rope_theta == 10000.0);
  // BERT's, ViT's, T5's and Swin's other ones.
  CHECK(read(without(bert_config, "type_vocab_size"))->embedding.token_types == 2);
  CHECK(read(without(bert_config, "layer_norm_eps"))->blocks[0].norm_epsilon == 1e-12);
  CHECK(read(without(vit_config, "layer_norm_eps"))->blocks[0].norm_epsilon == 1e-12);
  CHECK(read(without(vit_config, "patch_size"))->embedding.patch_width == 16 * 16 * 3);
  CHECK(read(without(t5_config, "d_kv"))->blocks[0].head_dim == 64);
  CHECK(read(t5_config)->blocks[0].norm_epsilon == 1e-6);
  CHECK(read(t5_config)->blocks.size() == 48);
  CHECK(read(without(swin_config, "window_size"))->blocks[0].window == 7);
  CHECK(read(swin_config)->blocks[0].norm_epsilon == 1e-5);
}

TEST_CASE("of rotary positions in several keys that one counts which counts in transformers") {
  const nlohmann::json parameters{{"rope_type", "default"}, {"rope_theta", 7.0}};
  const nlohmann::json both = with(llama_config, "rope_parameters", parameters);
  CHECK(read(both)->blocks[0].rope_theta == 7.0);
  CHECK(read(with(both, "rope_scaling", nlohmann::json::object()))->blocks[0].rope_theta == 7.0);
  CHECK(read(with(both, "rope_scaling", {{"rope_type", "default"}}))->blocks[0].rope_theta == 500000.0);
  CHECK(read(with(llama_config, "rope_parameters", {{"rope_type", "default"}}))->blocks[0].rope_theta == 500000.0);
}

TEST_CASE("positions that YaRN scales are read as transformers reads them") {
  const nlohmann::json yarn{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}};
  const auto scaling = [](const nlohmann::json& config) { return read(config).value().blocks[0].rotary_scaling; };
  const double usual = 0.1 * std::log(4.0) + 1;
  CHECK(scaling(with(llama_config, "rope_scaling", yarn)) ==
        RotaryScaling{.factor = 4, .positions = 2048, .amplitude = usual});
  nlohmann::json all = with(with(with(yarn, "beta_fast", 16), "beta_slow", 2), "attention_factor", 1.5);
  CHECK(scaling(with(llama_config, "rope_scaling", all)) ==
        RotaryScaling{.factor = 4, .positions = 2048, .fast = 16, .slow = 2, .amplitude = 1.5});
  // DeepSeek-V3's released weights.
  const nlohmann::json deepseek{{"type", "yarn"},       {"factor", 40},   {"original_max_position_embeddings", 4096},
                                {"beta_fast", 32},      {"beta_slow", 1}, {"mscale", 1.0},
                                {"mscale_all_dim", 1.0}};
  CHECK(scaling(with(deepseek_v3_config, "rope_scaling", deepseek)) ==
        RotaryScaling{.factor = 40, .positions = 4096, .score_rate = 1});
  CHECK(scaling(with(llama_config, "rope_scaling", deepseek)).score_rate == 0);
  const auto refused = [&](const std::string& key, const nlohmann::json& value, const std::string& part) {
    const std::string message = error_of(with(llama_config, "rope_scaling", with(yarn, key, value)));
    INFO(message);
    CHECK(contains(message, key));
    CHECK(contains(message, part));
  };
  refused("factor", 0.5, "from 1");
  refused("factor", nullptr, "");
  refused("original_max_position_embeddings", 0, "from 1");
  refused("truncate", false, "only true");
  CHECK(contains(error_of(with(llama_config, "rope_scaling", with(yarn, "beta_fast", 0.5))), "more turns for fast"));
}

TEST_CASE("positions that Llama 3.1, linear and dynamic scaling turn are read as transformers reads them") {
  const auto scaling = [](const nlohmann::json& value) {
    return read(with(llama_config, "rope_scaling", value)).value().blocks[0].rotary_scaling;
  };
  // Llama 3.1's released weights.
  const nlohmann::json llama3{{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  CHECK(scaling(llama3) ==
        RotaryScaling{.ramp = RotaryRamp::turns, .factor = 8, .positions = 8192, .fast = 4, .slow = 1});
  CHECK(scaling({{"type", "linear"}, {"factor", 2.0}}) == RotaryScaling{.ramp = RotaryRamp::none, .factor = 2});
  CHECK(scaling({{"type", "dynamic"}, {"factor", 2.0}}) == RotaryScaling{});
  const auto refused = [&](nlohmann::json value, const std::string& key) {
    const std::string message = error_of(with(llama_config, "rope_scaling", value));
    INFO(message);
    CHECK(contains(message, key));
  };
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"})
    refused(without(llama3, key), key);
  refused(with(llama3, "low_freq_factor", 5.0), "more turns for fast");
  refused({{"type", "linear"}}, "factor");
}

TEST_CASE("Mistral's, Qwen2's and Qwen3's decoders are Llamas with their attention") {
  nlohmann::json mistral = with(with(llama_config, "model_type", "mistral"), "sliding_window", nullptr);
  CHECK(read(mistral)->blocks[0] == read(llama_config)->blocks[0]);
  const std::int64_t positions = read(mistral)->positions();
  const auto window = [&](const nlohmann::json& config) { return read(config)->blocks[0].sliding_window; };
  CHECK(read(with(mistral, "sliding_window", positions / 2))->positions() == positions);
  CHECK(window(with(mistral, "sliding_window", positions / 2)) == positions / 2);
  CHECK(window(with(mistral, "sliding_window", 2 * positions)) == 0);
  CHECK(window(without(mistral, "sliding_window")) == (positions > 4096 ? 4096 : 0));
  const nlohmann::json qwen2 = with(llama_config, "model_type", "qwen2");
  CHECK(read(qwen2)->blocks[0].qkv_bias);
  CHECK_FALSE(read(qwen2)->blocks[0].bias);
  const nlohmann::json qwen3 = with(llama_config, "model_type", "qwen3");
  CHECK(read(qwen3)->blocks[0].query_key_norm == QueryKeyNorm::heads);
  CHECK(read(without(qwen3, "head_dim"))->blocks[0].head_dim == 128);
  for (const auto& config : {qwen2, qwen3}) {
    const auto slides =
        with(with(with(config, "use_sliding_window", true), "sliding_window", 64), "max_window_layers", 3);
    const auto model = read(slides);
    for (std::size_t i = 0; i < model->blocks.size(); ++i) CHECK(model->blocks[i].sliding_window == (i < 3 ? 0 : 64));
    CHECK(read(with(slides, "use_sliding_window", false))->blocks.back().sliding_window == 0);
    CHECK(contains(error_of(with(config, "layer_types", {"sliding_attention"})), "layer_types"));
  }
}

TEST_CASE("Gemmas have their norms, scales, windows and positions, and are refused where logits are capped") {
  // Gemma 2B's released file, whose "gelu" means the approximation.
  const nlohmann::json gemma = {{"model_type", "gemma"},      {"head_dim", 256},
                                {"hidden_act", "gelu"},       {"hidden_size", 2048},
                                {"intermediate_size", 16384}, {"max_position_embeddings", 8192},
                                {"num_attention_heads", 8},   {"num_hidden_layers", 18},
                                {"num_key_value_heads", 1},   {"rms_norm_eps", 1e-06},
                                {"rope_theta", 10000.0},      {"vocab_size", 256000}};
  const auto first = read(gemma);
  REQUIRE(first.has_value());
  CHECK(parameters(*first) == 2506172416);
  CHECK(first->blocks[3].norm == NormKind::rms_norm_from_one);
  CHECK(first->blocks[3].activation == ActivationKind::geglu);
  CHECK(first->head.tied);
  CHECK(first->embedding.embedding_scale == std::sqrt(2048.0));
  // Gemma 3 1B's released file.
  const nlohmann::json gemma3 = {{"model_type", "gemma3_text"},
                                 {"attn_logit_softcapping", nullptr},
                                 {"final_logit_softcapping", nullptr},
                                 {"head_dim", 256},
                                 {"hidden_activation", "gelu_pytorch_tanh"},
                                 {"hidden_size", 1152},
                                 {"intermediate_size", 6912},
                                 {"max_position_embeddings", 32768},
                                 {"num_attention_heads", 4},
                                 {"num_hidden_layers", 26},
                                 {"num_key_value_heads", 1},
                                 {"query_pre_attn_scalar", 256},
                                 {"rope_local_base_freq", 10000},
                                 {"rope_scaling", nullptr},
                                 {"rope_theta", 1000000},
                                 {"sliding_window", 512},
                                 {"sliding_window_pattern", 6},
                                 {"vocab_size", 262144}};
  const auto third = read(gemma3);
  REQUIRE(third.has_value());
  CHECK(parameters(*third) == 999885952);
  CHECK(third->positions() == 32768);
  CHECK(third->blocks[4].sliding_window == 512);
  CHECK(third->blocks[5].sliding_window == 0);
  CHECK(third->blocks[4].rope_theta == 1e4);
  CHECK(third->blocks[5].rope_theta == 1e6);
  CHECK(third->blocks[5].norm_order == NormOrder::around);
  CHECK(third->blocks[5].score_width == 0);
  CHECK(read(with(gemma3, "query_pre_attn_scalar", 168))->blocks[0].score_width == 168);
  const auto far = read(with(gemma3, "rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}));
  CHECK(far->blocks[4].rotary_scaling == RotaryScaling{});
  CHECK(far->blocks[5].rotary_scaling.factor == 8);
  const nlohmann::json gemma2 = with(gemma3, "model_type", "gemma2");
  CHECK(read(gemma2)->blocks[0].query_key_norm == QueryKeyNorm::none);
  CHECK(read(gemma2)->blocks[0].sliding_window == 512);
  CHECK(read(gemma2)->blocks[1].sliding_window == 0);
  const auto caps = [](const nlohmann::json& config) {
    const auto model = read(config);
    return model ? std::pair(model->blocks[0].score_cap, model->head.logits_cap) : std::pair(-1.0, -1.0);
  };
  const char* const scores = "attn_logit_softcapping";
  const char* const logits = "final_logit_softcapping";
  CHECK(caps(gemma2) == std::pair(0.0, 0.0));
  CHECK(caps(with(with(gemma2, scores, 20.0), logits, 10.0)) == std::pair(20.0, 10.0));
  CHECK(caps(without(without(gemma2, scores), logits)) == std::pair(50.0, 30.0));  // as transformers has it
  CHECK(caps(without(without(gemma3, scores), logits)) == std::pair(0.0, 0.0));
  CHECK(caps(with(gemma3, logits, 30.0)) == std::pair(0.0, 30.0));
  CHECK(contains(error_of(with(gemma3, scores, 50.0)), scores));
  for (const char* key : {scores, logits})
    for (const double cap : {-1.0, 1e-9, 1e9}) CHECK(contains(error_of(with(gemma2, key, cap)), key));
  CHECK(contains(error_of(with(gemma3, "hidden_activation", "gelu")), "hidden_activation"));
  CHECK(contains(error_of(with(gemma3, "use_bidirectional_attention", true)), "use_bidirectional_attention"));
  CHECK(contains(error_of(with(gemma3, "layer_types", {"full_attention"})), "layer_types"));
  CHECK(contains(error_of(with(gemma, "attention_bias", true)), "attention_bias"));
  CHECK(contains(error_of({{"model_type", "gemma3"}}), "gemma3_text"));
}

TEST_CASE("Phis have their parts side by side, and positions that turn a part of each head") {
  // Phi-2's released file.
  const nlohmann::json phi = {
      {"model_type", "phi"},          {"hidden_act", "gelu_new"},     {"hidden_size", 2560},
      {"intermediate_size", 10240},   {"layer_norm_eps", 1e-05},      {"max_position_embeddings", 2048},
      {"num_attention_heads", 32},    {"num_hidden_layers", 32},      {"num_key_value_heads", 32},
      {"partial_rotary_factor", 0.4}, {"qk_layernorm", false},        {"rope_scaling", nullptr},
      {"rope_theta", 10000.0},        {"tie_word_embeddings", false}, {"vocab_size", 51200}};
  const auto second = read(phi);
  REQUIRE(second.has_value());
  CHECK(parameters(*second) == 2779683840);
  CHECK(second->blocks[0].parallel);
  CHECK(second->blocks[0].rotary_dim == 32);
  CHECK(second->head.logits_bias);
  CHECK(read(without(phi, "partial_rotary_factor"))->blocks[0].rotary_dim == 40);
  CHECK(read(with(phi, "partial_rotary_factor", 1.0))->blocks[0].rotary_dim == 0);
  CHECK(contains(error_of(with(phi, "qk_layernorm", true)), "qk_layernorm"));
  CHECK(contains(error_of(with(phi, "partial_rotary_factor", 0.2875)), "even part"));
  for (const double part : {1.5, 0.0, -1.0, 1e300})
    CHECK(contains(error_of(with(phi, "partial_rotary_factor", part)), "partial_rotary_factor"));
  const nlohmann::json yarn{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 2048}};
  CHECK(contains(error_of(with(phi, "rope_scaling", yarn)), "no amplitude"));
  const nlohmann::json phi3 = with(llama_config, "model_type", "phi3");
  CHECK(read(phi3)->blocks[0] == read(with(llama_config, "rms_norm_eps", 1e-5))->blocks[0]);
  CHECK(read(with(phi3, "partial_rotary_factor", 0.75))->blocks[0].rotary_dim == 96);
  CHECK(read(with(phi3, "sliding_window", 2047))->blocks[0].sliding_window == 2047);
  CHECK(contains(error_of(with(phi3, "rope_scaling", {{"type", "longrope"}})), "longrope"));
  CHECK(contains(error_of(with(phi3, "rope_scaling", yarn)), "rope_scaling"));
  CHECK(contains(error_of(with(llama_config, "partial_rotary_factor", 0.5)), "partial_rotary_factor"));
}

TEST_CASE("heads of latent attention need not divide the width of the layer") {
  const nlohmann::json config = with(with(deepseek_v3_config, "hidden_size", 7000), "num_attention_heads", 129);
  const auto model = read(without(with(config, "num_key_value_heads", 129), "head_dim"));
  REQUIRE(model.has_value());
  CHECK(model->blocks[0].head_dim == 128 + 64);
}

TEST_CASE("a GPT-2 has the activation of its file") {
  const auto activation = [](const char* name) {
    return read(with(gpt2_config, "activation_function", name)).value().blocks[0].activation;
  };
  CHECK(activation("gelu_new") == ActivationKind::gelu);
  CHECK(activation("gelu") == ActivationKind::exact_gelu);
  CHECK(activation("quick_gelu") == ActivationKind::quick_gelu);
  CHECK(activation("relu") == ActivationKind::relu);
  CHECK(activation("relu2") == ActivationKind::squared_relu);
  for (const ActivationKind kind : activation_kinds)
    if (inputs_of(kind) == 1) CHECK(huggingface_activation(huggingface_name(kind)) == kind);
}

TEST_CASE("absent keys take the family's usual value") {
  nlohmann::json config = llama_config;
  for (const char* key : {"num_key_value_heads", "rope_theta", "tie_word_embeddings", "attention_bias", "hidden_act"})
    config.erase(key);
  const auto model = read(config);
  REQUIRE(model.has_value());
  CHECK(model->blocks[0].kv_heads == 32);
  CHECK(model->blocks[0].rope_theta == 10000.0);
  CHECK_FALSE(model->head.tied);
  CHECK(read(without(gpt2_config, "n_inner"))->blocks[0].ffn == 4 * 768);
}

TEST_CASE("present keys count") {
  CHECK(read(with(gpt2_config, "n_inner", 1000))->blocks[0].ffn == 1000);
  CHECK_FALSE(read(with(gpt2_config, "tie_word_embeddings", false))->head.tied);
  CHECK(read(with(llama_config, "tie_word_embeddings", true))->head.tied);
  CHECK(read(with(llama_config, "head_dim", 64))->blocks[0].qkv_width() == (32 + 16) * 64);
  CHECK(read(with(llama_config, "rms_norm_eps", 1e-6))->blocks[0].norm_epsilon == 1e-6);
  CHECK(read(with(with(llama_config, "attention_bias", true), "mlp_bias", true))->blocks[0].bias);
  const nlohmann::json newer =
      with(without(llama_config, "rope_theta"), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1000.0}});
  CHECK(read(newer)->blocks[0].rope_theta == 1000.0);
}

TEST_CASE("features without an implementation are refused by name") {
  CHECK(contains(error_of(with(llama_config, "rope_scaling", {{"rope_type", "su"}, {"factor", 8.0}})),
                 "\"rope_scaling\": scaled rotary positions (\"su\") are not supported"));
  const nlohmann::json newer = with(without(llama_config, "rope_theta"), "rope_parameters",
                                    {{"rope_type", "longrope"}, {"rope_theta", 1e4}, {"factor", 4.0}});
  CHECK(contains(error_of(newer), "\"rope_parameters\": scaled rotary positions (\"longrope\") are not supported"));
  CHECK(contains(error_of(with(llama_config, "rope_parameters", {{"full_attention", {{"rope_type", "linear"}}}})),
                 "differ from layer to layer"));
  CHECK(
      contains(error_of(with(llama_config, "rope_parameters", {{"partial_rotary_factor", 0.5}})), "a part of a head"));
  // Nobody is told to change the file: what is left would be another model than the weights are of.
  for (const nlohmann::json& config :
       {newer, with(llama_config, "quantization_config", {{"bits", 4}}), with(llama_config, "attention_bias", true)})
    for (const char* advice : {"remove", "set both"}) CHECK_FALSE(contains(error_of(config), advice));
  CHECK(contains(error_of(with(llama_config, "hidden_act", "gelu")), "supported: silu"));
  CHECK(contains(error_of(with(llama_config, "attention_bias", true)), "mlp_bias"));
  CHECK(contains(error_of(with(llama_config, "partial_rotary_factor", 0.5)), "a part of a head"));
  CHECK(contains(error_of(with(llama_config, "quantization_config", {{"bits", 4}})), "quantized"));
  CHECK(contains(error_of(with(gpt2_config, "activation_function", "silu")), "supported: gelu_new"));
  CHECK(contains(error_of(with(gpt2_config, "scale_attn_weights", false)), "only true"));
  CHECK(contains(error_of(with(gpt2_config, "add_cross_attention", true)), "only false"));
  CHECK(contains(error_of(with(llama_config, "model_type", "mamba")), "supported are gpt2, llama, mistral"));
}

TEST_CASE("missing and impossible values are refused with the key") {
  for (const char* key : {"n_embd", "n_layer", "n_head", "n_positions", "vocab_size", "model_type"})
    CHECK(contains(error_of(without(gpt2_config, key)), std::string("\"") + key + "\" is missing"));
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "max_position_embeddings", "vocab_size"}) {
    CHECK(contains(error_of(without(llama_config, key)), std::string("\"") + key + "\" is missing"));
    for (const nlohmann::json& bad : {nlohmann::json(0), nlohmann::json(-1), nlohmann::json(1.5), nlohmann::json("32"),
                                      nlohmann::json(std::int64_t{1} << 62), nlohmann::json(nullptr)})
      CHECK(contains(error_of(with(llama_config, key, bad)), key));
  }
  CHECK(contains(error_of(with(llama_config, "num_attention_heads", 30)), "does not divide \"hidden_size\" 4096"));
  CHECK(contains(error_of(with(gpt2_config, "n_head", 7)), "does not divide \"n_embd\" 768"));
  CHECK(contains(error_of(with(llama_config, "num_key_value_heads", 5)), "key/value heads divides"));
  CHECK(contains(error_of(with(llama_config, "head_dim", 63)), "even"));
  CHECK(contains(error_of(with(llama_config, "rms_norm_eps", 0.0)), "epsilon"));
  CHECK(contains(error_of(nlohmann::json::array({1})), "expected a JSON object"));
}

TEST_CASE("damaged configs never crash") {
  const std::uint32_t seed = 11;
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const std::string whole = llama_config.dump();
  for (std::size_t n = 0; n < whole.size(); n += 3)
    CHECK_FALSE(parse_huggingface_config(whole.substr(0, n), "config.json").has_value());
  for (int round = 0; round < 300; ++round) {
    std::string text = whole;
    for (int change = 0; change < 3; ++change) text[random() % text.size()] = static_cast<char>(random() % 256);
    const auto model = parse_huggingface_config(text, "config.json");
    if (model) CHECK(parameters(*model) > 0);
  }
}

TEST_CASE("a model is loaded by name, by file or by folder") {
  std::string folder = (std::filesystem::temp_directory_path() / "galvatron-model-XXXXXX").string();
  REQUIRE(::mkdtemp(folder.data()) != nullptr);
  const std::filesystem::path path = std::filesystem::path(folder) / "config.json";
  REQUIRE(write_file_atomically(path, gpt2_config.dump()).has_value());
  CHECK(load_model("gpt2-tiny").value().name == "gpt2-tiny");
  CHECK(load_model(path.string()).value().name == path.string());
  CHECK(load_model(folder).value().name == path.string());
  std::filesystem::remove_all(folder);
  CHECK(contains(load_model(path.string()).error().message, "No such file"));
  CHECK(contains(load_model("missing.json").error().message, "cannot read missing.json"));
  CHECK(contains(load_model("gpt2-tine").error().message, "nearest names are gpt2-tiny"));
  CHECK(
      contains(load_model("meta-llama/Llama-3.1-8B").error().message, "llama3-8b, or download https://huggingface.co"));
  CHECK(contains(load_model("./meta-llama/Llama-3.1-8B").error().message, "No such file"));
  CHECK(contains(load_model("").error().message, "unknown model"));
}

}  // namespace
}  // namespace galvatron
