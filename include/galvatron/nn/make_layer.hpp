// From specs, which are values, to layers, which are instantiations.
#pragma once

#include <memory>
#include <string>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/nn/block_layer.hpp>
#include <galvatron/nn/encoder_decoder_block.hpp>
#include <galvatron/nn/end_layers.hpp>
#include <galvatron/nn/image_ends.hpp>
#include <galvatron/nn/implemented.hpp>
#include <galvatron/nn/mean_classifier.hpp>
#include <galvatron/nn/post_norm_block.hpp>
#include <galvatron/nn/program_layer.hpp>
#include <galvatron/nn/window_block.hpp>
#include <galvatron/strategy/registry.hpp>

namespace galvatron::nn {

/// A layer's surroundings in its model and stage.
template <class T>
struct Surroundings {
  int number = 0;                   ///< in the model; the embedding is 0
  float token_weight = 1;           ///< of a prediction in the loss: 1 / (global batch * predictions of a sample)
  Layer<T>* embedding = nullptr;    ///< for the head of a tied model whose embedding is on the same stage
  comm::Group* replicas = nullptr;  ///< for tied models over several stages: see Table
};

/// A layer whose forward pass is written in model/layers.hpp.
template <class T, class D>
std::unique_ptr<Layer<T>> make_program_layer(const Context<D>& context, const LayerSpec& layer,
                                             const Surroundings<T>& around, device::Region& states) {
  Table<D, T>* table = nullptr;
  if (layer.kind == LayerKind::head && around.embedding != nullptr) {
    auto* embedding = dynamic_cast<ProgramLayer<D, T>*>(around.embedding);
    if (embedding == nullptr || !embedding->has_strategy_of(context.spec))
      throw Failure(ErrorKind::usage, "the head of a tied model has the embedding's table and so its strategy too");
    table = embedding->table();
  }
  return std::make_unique<ProgramLayer<D, T>>(context, layer, around.number, table, around.replicas,
                                              around.token_weight, states);
}

/// The layer of `layer`'s kind as the context's spec says; the context's sequence is the model's. List is the TypeList
/// of the strategies that are instantiated; a spec that is not among them is an error (usage) that names them. Errors
/// (usage) also: a kind of layer that is planned only (implemented.hpp).
template <class List, class T, class D>
Result<std::unique_ptr<Layer<T>>> make_layer(const Context<D>& model_context, const LayerSpec& layer,
                                             const Surroundings<T>& around, device::Region& states) {
  if (!is_implemented(layer)) return usage_error("this layer " + std::string(not_implemented));
  if (has_forward(layer) && is_instantiated(List{}, model_context.spec))
    return make_program_layer<T>(model_context, layer, around, states);
  const std::int64_t sequence = model_context.sequence;
  const Context<D> context =
      with_tokens(model_context, layer.tokens.of(sequence), layer.memory.of(sequence) + layer.passing.of(sequence));
  return dispatch<List>(context.spec, [&]<class Strategy>(const Strategy&) -> std::unique_ptr<Layer<T>> {
    // To the ends of a model tokens that other ranks have are of no concern, and images are not cut over context ranks.
    constexpr bool cut = Strategy::sequence == SequenceKind::megatron;
    using EndKinds = LayerKinds<cut ? SequenceKind::megatron : SequenceKind::none>;
    switch (layer.kind) {
      case LayerKind::embedding:
        if (layer.patch_width > 0) return std::make_unique<PatchEmbeddingLayer<D, T, EndKinds>>(context, layer, states);
        return std::make_unique<EmbeddingLayer<D, T, EndKinds>>(context, layer, around.replicas, states);
      case LayerKind::head: {
        if (layer.head == HeadKind::classifier && !layer.class_token)
          return std::make_unique<HeadLayer<D, T, EndKinds, MeanClassifier>>(context, layer, around.number, nullptr,
                                                                             nullptr, around.token_weight, states);
        if (layer.head == HeadKind::classifier)
          return std::make_unique<HeadLayer<D, T, EndKinds, Classifier>>(context, layer, around.number, nullptr,
                                                                         nullptr, around.token_weight, states);
        Table<D, T>* table = nullptr;
        if (around.embedding != nullptr) {
          auto* embedding = dynamic_cast<EmbeddingLayer<D, T, EndKinds>*>(around.embedding);
          if (embedding == nullptr)
            throw Failure(ErrorKind::usage,
                          "the head of a tied model has the embedding's table and so its strategy too");
          table = &embedding->table();
        }
        return std::make_unique<HeadLayer<D, T, EndKinds>>(context, layer, around.number, table, around.replicas,
                                                           around.token_weight, states);
      }
      case LayerKind::block:
        break;
    }
    if (layer.window > 0)
      return std::make_unique<BlockLayer<D, T, EndKinds, WindowBlock>>(context, layer, around.number, states);
    using Kinds = LayerKinds<Strategy::sequence>;
    if (layer.position == PositionKind::relative) {
      if constexpr (Strategy::sequence == SequenceKind::none || Strategy::sequence == SequenceKind::megatron)
        return std::make_unique<BlockLayer<D, T, Kinds, EncoderDecoderBlock>>(context, layer, around.number, states);
      throw Failure(ErrorKind::usage,
                    "blocks with relative positions have whole sequences on a rank: choose a context "
                    "degree of 1");
    }
    if (layer.norm_order == NormOrder::after)
      return std::make_unique<BlockLayer<D, T, Kinds, PostNormBlock>>(context, layer, around.number, states);
    throw Failure(ErrorKind::internal,
                  "a block without a forward pass has relative positions or norms after residuals");
  });
}

}  // namespace galvatron::nn
