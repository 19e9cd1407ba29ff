// The parameters of a layer: their names, shapes of the whole model, and how they begin.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace galvatron {

enum class ParameterName : std::uint8_t {
  table,         ///< (V, H): token embedding, or the head's projection
  positions,     ///< (positions, H)
  token_types,   ///< (types, H)
  class_token,   ///< (1, H)
  patch_weight,  ///< (H, P): image patches of P numbers to tokens
  patch_bias,
  qkv_weight,  ///< (qkv, H): rows of queries, then keys, then values
  qkv_bias,
  attention_out_weight,  ///< (H, A * head_dim)
  attention_out_bias,
  cross_query_weight,  ///< (A * head_dim, H)
  cross_query_bias,
  cross_memory_weight,  ///< (2 A_kv * head_dim, H): rows of keys, then values, of the encoder's output
  cross_memory_bias,
  cross_out_weight,  ///< (H, A * head_dim)
  cross_out_bias,
  relative_positions,  ///< (distances, A)
  merge_weight,        ///< (H, 2 H): four tokens of H / 2 to one
  router,              ///< (experts, H)
  mlp_in_weight,       ///< (ffn, H), or gate rows and then up rows; of each expert
  mlp_in_bias,
  mlp_out_weight,  ///< (H, ffn); of each expert
  mlp_out_bias,
  norm1_gamma,
  norm1_beta,
  norm2_gamma,
  norm2_beta,
  norm3_gamma,
  norm3_beta,
  closing_gamma,
  closing_beta,
  merge_gamma,
  merge_beta,
  transform_weight,  ///< (H, H): before the logits of a masked language model
  transform_bias,
  logits_bias,         ///< (V)
  router_bias,         ///< (experts): what the choice of experts adds to their scores
  shared_in_weight,    ///< (shared ffn, H), or gate rows and then up rows: the MLP beside the experts
  shared_out_weight,   ///< (H, shared ffn)
  shared_gate_weight,  ///< (1, H)
  // Behind those of users' layers. Of attention with norms of queries and keys, or latent:
  query_gamma = 56,    ///< (head_dim), (A * head_dim) of a norm of all queries, or (query rank)
  key_gamma,           ///< (head_dim), (A_kv * head_dim) of a norm of all keys, or (rank)
  query_down_weight,   ///< (query rank, H)
  query_up_weight,     ///< (A * head_dim, query rank or H): rows that positions turn, of all heads, then the others
  latent_down_weight,  ///< (rank, H)
  latent_up_weight,    ///< (A * (head_dim - rotary_dim + value_dim), rank): rows of keys, of all heads, then values
  key_rotary_weight,   ///< (rotary_dim, H)
  residual_gain,       ///< (experts): see RouterSpec
  // Behind the 64 streams of initial values of a layer: it draws none.
  logit_scale,  ///< (1): of a contrastive head, the logarithm of its logits' factor
  // Of norms behind attention and behind the MLP, before what they made is added.
  attention_norm_gamma,
  attention_norm_beta,
  mlp_norm_gamma,
  mlp_norm_beta,
  // Of adapters (AdapterSpec): the factors A (rank of each adapter of the layer, inputs) and B (outputs, rank).
  qkv_adapter_a,
  qkv_adapter_b,
  attention_out_adapter_a,
  attention_out_adapter_b,
  mlp_in_adapter_a,
  mlp_in_adapter_b,
  mlp_out_adapter_a,
  mlp_out_adapter_b,
};

/// Their names in files, in this order.
inline constexpr auto parameter_names = std::to_array<std::string_view>(
    {// embedding
     "table", "positions", "token_types", "class_token", "patch_weight", "patch_bias",
     // block
     "qkv_weight", "qkv_bias", "attention_out_weight", "attention_out_bias", "cross_query_weight", "cross_query_bias",
     "cross_memory_weight", "cross_memory_bias", "cross_out_weight", "cross_out_bias", "relative_positions",
     "merge_weight", "router", "mlp_in_weight", "mlp_in_bias", "mlp_out_weight", "mlp_out_bias", "norm1_gamma",
     "norm1_beta", "norm2_gamma", "norm2_beta", "norm3_gamma", "norm3_beta", "closing_gamma", "closing_beta",
     "merge_gamma", "merge_beta",
     // head
     "transform_weight", "transform_bias", "logits_bias",
     // block with experts: the numbers of names choose the streams of initial values and stay as they are
     "router_bias", "shared_in_weight", "shared_out_weight", "shared_gate_weight"});
inline constexpr auto late_parameter_names = std::to_array<std::string_view>({"query_gamma",
                                                                              "key_gamma",
                                                                              "query_down_weight",
                                                                              "query_up_weight",
                                                                              "latent_down_weight",
                                                                              "latent_up_weight",
                                                                              "key_rotary_weight",
                                                                              "residual_gain",
                                                                              "logit_scale",
                                                                              "attention_norm_gamma",
                                                                              "attention_norm_beta",
                                                                              "mlp_norm_gamma",
                                                                              "mlp_norm_beta",
                                                                              "qkv_adapter_a",
                                                                              "qkv_adapter_b",
                                                                              "attention_out_adapter_a",
                                                                              "attention_out_adapter_b",
                                                                              "mlp_in_adapter_a",
                                                                              "mlp_in_adapter_b",
                                                                              "mlp_out_adapter_a",
                                                                              "mlp_out_adapter_b"});
static_assert(static_cast<std::size_t>(ParameterName::shared_gate_weight) + 1 == parameter_names.size());

/// Parameters of layers that are not of this library: so many names.
inline constexpr int user_parameters = 16;
inline constexpr int first_user_parameter = 40;
inline constexpr int first_late_parameter = static_cast<int>(ParameterName::query_gamma);
static_assert(first_user_parameter + user_parameters == first_late_parameter);
static_assert(static_cast<std::size_t>(ParameterName::mlp_out_adapter_b) + 1 ==
              first_late_parameter + late_parameter_names.size());
/// The i-th of them; from 0.
constexpr ParameterName user_parameter(int i) { return static_cast<ParameterName>(first_user_parameter + i); }

inline constexpr std::array<std::string_view, user_parameters> user_parameter_names = {
    "user_0", "user_1", "user_2",  "user_3",  "user_4",  "user_5",  "user_6",  "user_7",
    "user_8", "user_9", "user_10", "user_11", "user_12", "user_13", "user_14", "user_15"};

constexpr std::string_view name_of(ParameterName name) {
  const auto number = static_cast<std::size_t>(name);
  if (number < parameter_names.size()) return parameter_names[number];
  return number < first_late_parameter ? user_parameter_names[number - first_user_parameter]
                                       : late_parameter_names[number - first_late_parameter];
}

/// The parameter of that name, if there is one.
constexpr std::optional<ParameterName> parameter_named(std::string_view name) {
  for (std::size_t i = 0; i < parameter_names.size(); ++i)
    if (parameter_names[i] == name) return static_cast<ParameterName>(i);
  for (int i = 0; i < user_parameters; ++i)
    if (user_parameter_names[static_cast<std::size_t>(i)] == name) return user_parameter(i);
  for (std::size_t i = 0; i < late_parameter_names.size(); ++i)
    if (late_parameter_names[i] == name) return static_cast<ParameterName>(first_late_parameter + i);
  return std::nullopt;
}

enum class ParameterInit : std::uint8_t {
  normal,
  zero,
  one,
  logit_scale,  ///< ln(1 / 0.07) (Radford et al., 2021)
};
/// What all elements begin with; of normal none.
constexpr float value_of(ParameterInit init) {
  switch (init) {
    case ParameterInit::one:
      return 1.0F;
    case ParameterInit::logit_scale:
      return 2.6592600F;
    case ParameterInit::normal:
    case ParameterInit::zero:
      break;
  }
  return 0.0F;
}

}  // namespace galvatron
