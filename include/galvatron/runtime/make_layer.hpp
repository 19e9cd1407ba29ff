// From a layer's spec and strategy, known at run time, to the layer.
#pragma once

#include <memory>
#include <utility>

#include <galvatron/runtime/implemented.hpp>
#include <galvatron/runtime/program_layer.hpp>
#include <galvatron/strategy/registry.hpp>

namespace galvatron::runtime {

/// What a layer is made with besides its spec and its context.
template <class T>
struct LayerArguments {
  int number = 0;                   ///< in the model; the embedding is 0
  LossTerm loss;                    ///< of a head: a prediction weighs 1 / (global batch * predictions of a sample)
  Layer<T>* embedding = nullptr;    ///< for the head of a tied model whose embedding is on the same stage
  comm::Group* replicas = nullptr;  ///< for tied models over several stages: see VocabularyTable
};

/// The layer of `layer`'s kind as the context's spec says; the context's sequence is the model's. List is the TypeList
/// of the strategies that are instantiated; a spec that is not among them is an error (usage) that names them. Errors
/// (usage) also: a kind of layer that is planned only (implemented.hpp).
template <class List, class T, class D>
Result<std::unique_ptr<Layer<T>>> make_layer(const Context<D>& context, const LayerSpec& layer,
                                             const LayerArguments<T>& around, device::Region& states) {
  if (!is_implemented(layer)) return usage_error("this layer " + std::string(not_implemented));
  if (!is_instantiated(List{}, context.spec)) return tl::unexpected<Error>(not_instantiated<List>(context.spec));
  VocabularyTable<D, T>* table = nullptr;
  if (layer.kind == LayerKind::head && around.embedding != nullptr) {
    auto* embedding = dynamic_cast<ProgramLayer<D, T>*>(around.embedding);
    if (embedding == nullptr || !embedding->has_strategy_of(context.spec))
      throw Failure(ErrorKind::usage, "the head of a tied model has the embedding's table and so its strategy too");
    table = embedding->table();
  }
  return std::make_unique<ProgramLayer<D, T>>(context, layer, around.number, table, around.replicas, around.loss,
                                              states);
}

}  // namespace galvatron::runtime
