// Runs one layer forward and backward on rank threads: whole tensors in and out, whatever the runtime is.
#pragma once

#include <cstdint>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/extent.hpp>
#include <galvatron/strategy/spec.hpp>

#include "reference.hpp"

namespace galvatron::test {

/// What a layer is run on, whole. Blocks have `x` and `dy`, embeddings `tokens` and `dy`, heads `x` and `tokens`. Of an
/// encoder-decoder model rows are the encoder's and then the decoder's.
struct LayerInput {
  Tokens shape;
  Tensor x;                          ///< (rows, H), or what is merged into it
  std::vector<std::int32_t> tokens;  ///< (rows); of a classifier (b)
  Tensor patches;                    ///< ((S - 1) * b, P), of an embedding of images; (rows, P) without a class token
  Tensor dy;                         ///< (rows, H)
  double token_weight = 1;           ///< of a head's loss, and of the losses of a router
};

/// What came out, whole.
struct LayerOutput {
  Tensor y;                  ///< (rows, H), not of heads
  Tensor dx;                 ///< (rows, H), not of embeddings
  double loss = 0;           ///< a head's sum of cross-entropies
  double router_losses = 0;  ///< balance loss and z-loss
  Parameters gradients;      ///< rows of the vocabulary beyond its end included
  /// (ranks, ranks) bytes of messages from one rank to another, those of collectives left out.
  std::vector<std::vector<std::int64_t>> posted;
};

/// Rows of a whole tensor at a border of the layer.
inline std::int64_t rows_of(const LayerSpec& layer, Tokens shape) {
  return layer.output_elements(shape.sequence) / layer.hidden * shape.samples;
}

struct LayerRunOptions {
  Precision precision = Precision::fp32;  ///< of activations: fp32 or bf16
  bool splits_backward = false;           ///< backward comes in two parts
  double expert_imbalance = program::default_expert_imbalance;
  LshOptions lsh{};
};

/// The rank that sends each row (token, sample) of a whole tensor to experts.
std::vector<int> sources_of_rows(const StrategySpec& spec, Tokens shape);

/// One forward and backward pass of `layer` under `spec`.
LayerOutput run_layer(const LayerSpec& layer, const StrategySpec& spec, const Parameters& parameters,
                      const LayerInput& in, const LayerRunOptions& options = {});

}  // namespace galvatron::test
