// How many parameters a layer and a model have.
#pragma once

#include <cstdint>

#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Parameters of a layer, biases and norms included; a tied head counts its norm only.
///
///     embedding  V H  (+ positions H, learned)
///     block      H (A + 2 A_kv) D + A D H + H F_in + F H  (+ biases)  + 2 norms;  D head dim, F_in = F or 2 F (SwiGLU)
///     head       norm  (+ V H, untied)
constexpr std::int64_t parameters(const LayerSpec& layer) {
  const std::int64_t h = layer.hidden;
  const std::int64_t norm = layer.norm == NormKind::layer_norm ? 2 * h : h;
  switch (layer.kind) {
    case LayerKind::embedding:
      return layer.vocabulary * h + (layer.position == PositionKind::learned ? layer.positions * h : 0);
    case LayerKind::head:
      return norm + (layer.tied ? 0 : layer.vocabulary * h);
    case LayerKind::block:
      break;
  }
  const std::int64_t weights =
      h * layer.qkv_width() + layer.heads * layer.head_dim * h + h * layer.ffn_inputs() + layer.ffn * h;
  const std::int64_t biases = layer.bias ? layer.qkv_width() + h + layer.ffn_inputs() + h : 0;
  return weights + biases + 2 * norm;
}

/// Parameters of the whole model; a tied table counts once.
inline std::int64_t parameters(const ModelSpec& model) {
  std::int64_t sum = parameters(model.embedding) + parameters(model.head);
  for (const LayerSpec& block : model.blocks) sum += parameters(block);
  return sum;
}

}  // namespace galvatron
