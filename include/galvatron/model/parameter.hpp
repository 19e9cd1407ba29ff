// The parameters of a layer: their names, shapes of the whole model, and how they begin.
#pragma once

#include <cstdint>

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
  logits_bias,  ///< (V)
};

/// Parameters of layers that are not of this library: so many names.
inline constexpr int user_parameters = 16;
inline constexpr int first_user_parameter = 40;
/// The i-th of them; from 0.
constexpr ParameterName user_parameter(int i) { return static_cast<ParameterName>(first_user_parameter + i); }

enum class ParameterInit : std::uint8_t { normal, zero, one };

}  // namespace galvatron
