// From a layer's spec and strategy, known at run time, to the layer: a ProgramLayer, which executes its program
// whatever they are (runtime/executor.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/runtime/compressed_experts.hpp>
#include <galvatron/runtime/executor.hpp>
#include <galvatron/runtime/implemented.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/parameter_groups.hpp>
#include <galvatron/strategy/registry.hpp>

namespace galvatron::runtime {

/// What a layer is made with besides its spec and its context.
template <class T>
struct LayerArguments {
  int number = 0;                   ///< in the model; the embedding is 0
  LossTerm loss;                    ///< of a head: a prediction weighs 1 / (global batch * predictions of a sample)
  double token_weight = 1;          ///< of a token of the layer in a mean over the global batch
  Layer<T>* embedding = nullptr;    ///< for the head of a tied model whose embedding is on the same stage
  comm::Group* replicas = nullptr;  ///< for tied models over several stages: see ParameterGroups
};

template <class D, class T>
class ProgramLayer final : public Layer<T> {
  using Phase = program::Phase;

 public:
  /// @param shared  as for ParameterGroups
  ProgramLayer(const Context<D>& context, const LayerSpec& layer, const LayerArguments<T>& around,
               ParameterStore<D, T>* shared, device::Region& states)
      : context_(context.with_tokens(layer.tokens.of(context.batch.sequence))),
        sequence_(context.batch.sequence),
        groups_(context_, layer, around.number, shared, around.replicas, states,
                BiasUpdate(layer, around.token_weight)),
        loss_(around.loss),
        token_weight_(static_cast<float>(around.token_weight)),
        rotations_(context_, layer, around.number, states) {}

  /// The parameters of the vocabulary table; null in layers without one.
  ParameterStore<D, T>* table() { return groups_.table(); }
  /// True for a strategy of the same kinds: two layers that share a table have it.
  [[nodiscard]] bool has_strategy_of(const StrategySpec& spec) const {
    return context_.spec.sequence == spec.sequence && context_.spec.zero == spec.zero;
  }

  void take_stash(device::Region& stash, int slots, int deferred) override {
    program_ = std::make_unique<const program::LayerProgram>(program::lower(graph(), context_.spec, deferred > 0));
    executor_ = std::make_unique<Executor<D, T>>(context_, *program_, groups_, sequence_, loss_, token_weight_,
                                                 rotations_.view());
    for (int i = 0; i < slots; ++i) slots_.push_back(executor_->take_slot(stash));
    for (int i = 0; program_->splits && i < deferred; ++i) deferred_.push_back(executor_->take_deferred(stash));
  }
  View<T> input(int slot) override { return graph().takes_data ? View<T>{} : executor_->input(at(slot)); }
  View<T> patches(int slot) override { return graph().takes_data ? executor_->input(at(slot)) : View<T>{}; }
  View<std::int32_t> tokens(int slot) override { return at(slot).tokens; }
  void set_pass_through(int slot, int part, View<T> rows) override {
    at(slot).pass_through[static_cast<std::size_t>(part)] = rows;
  }

  void pack(int slot, int first, int ranks, std::int64_t rows, std::span<const Document> documents) override {
    packed_.resize(slots_.size());
    packed_[static_cast<std::size_t>(slot)] = {&context_.world.group(context_.data.ranks().subspan(
                                                   static_cast<std::size_t>(first), static_cast<std::size_t>(ranks))),
                                               {.samples = 1, .sequence = rows, .documents = documents}};
  }
  void weigh(double token_weight) override {
    executor_->weigh(static_cast<float>(token_weight * graph().layer.loss_weight));
  }

  void forward(int slot, View<T> y) override { run(Phase::forward, slot, -1, y); }
  void backward(int slot, int kept, View<T> d) override { run(Phase::backward, slot, kept, d); }
  void backward_weight(int slot, int kept) override {
    if (program_->splits) run(Phase::weights, slot, kept, {});
  }

  void for_each_store(const std::function<void(Store&)>& f) override { groups_.for_each_store(f); }
  Streaming streaming() override {
    const bool block = graph().layer.kind == LayerKind::block;
    if (!block || context_.spec.zero < 2 || !context_.overlap) return {};
    Streaming out{.splits = program::can_split(graph(), context_.spec)};
    groups_.for_each_store([&out](Store& store) { out.stores.push_back(&store); });
    return out;
  }

 private:
  [[nodiscard]] const forward::Graph& graph() const { return groups_.graph(); }
  KeptBuffers<T>& at(int slot) { return slots_[static_cast<std::size_t>(slot)]; }
  void run(Phase phase, int slot, int kept, View<T> border) {
    if (!packed_.empty()) {
      const auto& [group, batch] = packed_[static_cast<std::size_t>(slot)];
      context_.context = group;
      context_.spec.context = group->size();
      context_.batch = batch;
      executor_->bind(batch.sequence);
    }
    const bool defers = program_->splits && kept >= 0;
    executor_->run(phase, at(slot), defers ? &deferred_[static_cast<std::size_t>(kept)] : nullptr, border);
  }

  Context<D> context_;     ///< of the layer's own tokens
  std::int64_t sequence_;  ///< S of the model
  ParameterGroups<D, T> groups_;
  LossTerm loss_;  ///< of a head
  float token_weight_;
  LayerRotations<D, T> rotations_;
  std::unique_ptr<const program::LayerProgram> program_;
  std::unique_ptr<Executor<D, T>> executor_;
  std::vector<KeptBuffers<T>> slots_;
  std::vector<KeptBuffers<T>> deferred_;
  /// Of each slot: the part of a packed sequence that is on this rank. Empty: equal sequences.
  struct Packed {
    comm::Group* context = nullptr;
    MicroBatch batch;
  };
  std::vector<Packed> packed_;
};

/// The layer of `layer`'s kind as the context's spec says, whatever that is; the context's sequence is the model's.
template <class T, class D>
std::unique_ptr<Layer<T>> make_program_layer(const Context<D>& context, const LayerSpec& layer,
                                             const LayerArguments<T>& around, device::Region& states) {
  auto* embedding = dynamic_cast<ProgramLayer<D, T>*>(around.embedding);
  if (around.embedding != nullptr && (embedding == nullptr || !embedding->has_strategy_of(context.spec)))
    throw Failure(ErrorKind::usage, "the head of a tied model has the embedding's table and so its strategy too");
  ParameterStore<D, T>* table = embedding != nullptr ? embedding->table() : nullptr;
  return std::make_unique<ProgramLayer<D, T>>(context, layer, around, table, states);
}

/// The same for the strategies of a program. List is the TypeList of those that are instantiated; a spec that is not
/// among them is an error (usage) that names them. Errors (usage) also: a kind of layer that is planned only
/// (implemented.hpp).
template <class List, class T, class D>
Result<std::unique_ptr<Layer<T>>> make_layer(const Context<D>& context, const LayerSpec& layer,
                                             const LayerArguments<T>& around, device::Region& states) {
  if (!is_implemented(layer)) return usage_error("this layer " + std::string(not_implemented));
  if (!is_instantiated(List{}, context.spec)) return tl::unexpected<Error>(not_instantiated<List>(context.spec));
  return make_program_layer<T>(context, layer, around, states);
}

}  // namespace galvatron::runtime
