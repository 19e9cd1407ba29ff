// How many parameters a layer and a model have.
#pragma once

#include <cstdint>

#include <galvatron/model/spec.hpp>

namespace galvatron {

/// Parameters of a layer, biases and norms included; a tied head counts its table at the embedding.
///
///     embedding  V H or (P + 1) H for patches of P numbers  (+ positions H, learned)  (+ class token H)  (+ types H)
///     block      H (A + 2 A_kv) D + A D H + H F_in + F H  (+ biases)  + 2 norms;  D head dim, F_in = F or 2 F (SwiGLU)
///                cross attention adds as much as attention; experts multiply the MLP and add a router, E H
///     head       norm  (+ V H, untied)  (+ V biases)  (+ H H + H, masked language)
constexpr std::int64_t parameters(const LayerSpec& layer) {
  const std::int64_t h = layer.hidden;
  const auto norm = [&layer](std::int64_t width) { return layer.norm == NormKind::layer_norm ? 2 * width : width; };
  const std::int64_t closing = layer.closing_norm ? norm(h) : 0;
  switch (layer.kind) {
    case LayerKind::embedding: {
      const std::int64_t table = layer.patch_width > 0 ? (layer.patch_width + 1) * h : layer.vocabulary * h;
      const std::int64_t rows = (layer.position == PositionKind::learned ? layer.positions : 0) + layer.token_types +
                                (layer.class_token ? 1 : 0);
      return table + rows * h + closing;
    }
    case LayerKind::head: {
      const std::int64_t table = layer.tied ? 0 : layer.vocabulary * h;
      const std::int64_t biases = layer.head == HeadKind::language ? 0 : layer.vocabulary;
      return table + biases + norm(h) + (layer.head == HeadKind::masked_language ? h * h + h : 0);
    }
    case LayerKind::block:
      break;
  }
  const auto biased = [&layer](std::int64_t n) { return layer.bias ? n : 0; };
  const std::int64_t attention = h * layer.qkv_width() + layer.heads * layer.head_dim * h +  //
                                 biased(layer.qkv_width() + h);
  const std::int64_t mlp = h * layer.ffn_inputs() + layer.ffn * h + biased(layer.ffn_inputs() + h);
  const std::int64_t mlps = layer.experts == 0 ? mlp : layer.experts * (mlp + h);
  const std::int64_t merging = layer.merges ? 2 * h * h + norm(2 * h) : 0;
  return (layer.memory.any() ? 2 : 1) * attention + mlps + layer.block_parts() * norm(h) +
         layer.bias_rows * layer.heads + merging + closing;
}

/// Parameters of the whole model; a tied table counts once.
inline std::int64_t parameters(const ModelSpec& model) {
  std::int64_t sum = parameters(model.embedding) + parameters(model.head);
  for (const LayerSpec& block : model.blocks) sum += parameters(block);
  return sum;
}

}  // namespace galvatron
