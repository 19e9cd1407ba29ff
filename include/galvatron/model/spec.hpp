// LayerSpec and ModelSpec: a Transformer as numbers, before any rank or device is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <galvatron/core/units.hpp>

namespace galvatron {

enum class LayerKind : std::uint8_t { embedding, block, head };
enum class NormKind : std::uint8_t { layer_norm, rms_norm };
enum class ActivationKind : std::uint8_t { gelu, swiglu };  ///< gelu is the tanh approximation, as in GPT-2
enum class PositionKind : std::uint8_t { learned, rotary };

/// One layer. Shape letters: B batch, S sequence, H hidden, A heads, V vocabulary, L layers.
struct LayerSpec {
  LayerKind kind = LayerKind::block;
  std::int64_t hidden = 0;      ///< H
  std::int64_t heads = 0;       ///< A, query heads
  std::int64_t kv_heads = 0;    ///< key/value heads; divides A
  std::int64_t head_dim = 0;    ///< usually H / A
  std::int64_t ffn = 0;         ///< width of the MLP; for SwiGLU the width of gate and of up
  std::int64_t vocabulary = 0;  ///< V
  std::int64_t positions = 0;   ///< the longest sequence; rows of a learned position table
  NormKind norm = NormKind::layer_norm;
  ActivationKind activation = ActivationKind::gelu;
  PositionKind position = PositionKind::learned;
  bool bias = true;    ///< linear layers have a bias
  bool causal = true;  ///< a token attends to its predecessors only
  bool tied = false;   ///< the head uses the embedding's table
  double rope_theta = 10000.0;
  double norm_epsilon = 1e-5;
  int layers = 1;  ///< L, blocks in the whole model; scales the initialisation of residual projections

  friend constexpr bool operator==(const LayerSpec&, const LayerSpec&) = default;
  /// Rows of MLP input weights: one projection for GELU, gate and up for SwiGLU.
  [[nodiscard]] constexpr std::int64_t ffn_inputs() const {
    return activation == ActivationKind::swiglu ? 2 * ffn : ffn;
  }
  /// Width of the fused query, key and value projection.
  [[nodiscard]] constexpr std::int64_t qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
};

/// A whole model: an embedding, L blocks and a head, in the order of the data.
struct ModelSpec {
  std::string name;
  LayerSpec embedding;
  std::vector<LayerSpec> blocks;
  LayerSpec head;

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
  [[nodiscard]] constexpr std::int64_t hidden() const { return embedding.hidden; }
  [[nodiscard]] constexpr std::int64_t vocabulary() const { return embedding.vocabulary; }
  [[nodiscard]] constexpr std::int64_t positions() const { return embedding.positions; }
};

}  // namespace galvatron
