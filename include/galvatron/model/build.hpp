// Models of the GPT-2 and Llama families from a few numbers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include <galvatron/model/spec.hpp>

namespace galvatron {

/// The numbers of a model of the GPT-2 family; 0 stands for the usual value.
struct GptShape {
  int layers = 0;               ///< L
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< rows of the position table
  std::int64_t ffn = 0;         ///< width of the MLP, 4 H by default
  bool tied = true;
  double norm_epsilon = 1e-5;
};

/// The numbers of a model of the Llama family; 0 stands for the usual value.
struct LlamaShape {
  int layers = 0;               ///< L
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A
  std::int64_t kv_heads = 0;    ///< key/value heads, A by default
  std::int64_t ffn = 0;         ///< width of gate and of up
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< the longest sequence
  std::int64_t head_dim = 0;    ///< H / A by default
  double rope_theta = 10000.0;
  bool tied = false;
  bool bias = false;
  double norm_epsilon = 1e-5;
};

/// An embedding, `layers` equal blocks and a head. `block` describes a block and carries the vocabulary.
inline ModelSpec model_of_equal_blocks(std::string name, const LayerSpec& block, int layers) {
  ModelSpec model;
  model.name = std::move(name);
  LayerSpec layer = block;
  layer.layers = layers;
  model.embedding = layer;
  model.embedding.kind = LayerKind::embedding;
  model.head = layer;
  model.head.kind = LayerKind::head;
  layer.kind = LayerKind::block;
  model.blocks.assign(layers > 0 ? static_cast<std::size_t>(layers) : 0, layer);
  return model;
}

/// GPT-2 (Radford et al., 2019): learned positions, LayerNorm before each part, GELU, biases, tied head. Not checked:
/// see checked().
inline ModelSpec gpt(std::string name, const GptShape& shape) {
  return model_of_equal_blocks(std::move(name),
                               {.hidden = shape.hidden,
                                .heads = shape.heads,
                                .kv_heads = shape.heads,
                                .head_dim = shape.heads > 0 ? shape.hidden / shape.heads : 0,
                                .ffn = shape.ffn != 0 ? shape.ffn : 4 * shape.hidden,
                                .vocabulary = shape.vocabulary,
                                .positions = shape.positions,
                                .tied = shape.tied,
                                .norm_epsilon = shape.norm_epsilon},
                               shape.layers);
}

/// Llama (Touvron et al., 2023): rotary positions, RMSNorm before each part, SwiGLU, grouped-query attention, no
/// biases. Not checked: see checked().
inline ModelSpec llama(std::string name, const LlamaShape& shape) {
  return model_of_equal_blocks(std::move(name),
                               {.hidden = shape.hidden,
                                .heads = shape.heads,
                                .kv_heads = shape.kv_heads != 0 ? shape.kv_heads : shape.heads,
                                .head_dim = shape.head_dim != 0 ? shape.head_dim
                                            : shape.heads > 0   ? shape.hidden / shape.heads
                                                                : 0,
                                .ffn = shape.ffn,
                                .vocabulary = shape.vocabulary,
                                .positions = shape.positions,
                                .norm = NormKind::rms_norm,
                                .activation = ActivationKind::swiglu,
                                .position = PositionKind::rotary,
                                .bias = shape.bias,
                                .tied = shape.tied,
                                .rope_theta = shape.rope_theta,
                                .norm_epsilon = shape.norm_epsilon},
                               shape.layers);
}

}  // namespace galvatron
