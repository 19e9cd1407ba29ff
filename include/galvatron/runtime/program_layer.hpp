// ProgramLayer: a layer that executes its program, whatever the layer and the strategy are (runtime/executor.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/program/lower.hpp>
#include <galvatron/runtime/executor.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/parameter_groups.hpp>

namespace galvatron::runtime {

template <class D, class T>
class ProgramLayer final : public Layer<T> {
  using Phase = program::Phase;

 public:
  /// @param number, shared, replicas  as for ParameterGroups
  ProgramLayer(const Context<D>& context, const LayerSpec& layer, int number, VocabularyTable<D, T>* shared,
               comm::Group* replicas, LossTerm loss, device::Region& states)
      : context_(with_tokens(context, layer.tokens.of(context.sequence))),
        sequence_(context.sequence),
        graph_(forward_of(layer)),
        groups_(context_, layer, number, shared, replicas, states),
        loss_(loss) {}

  /// The vocabulary's table; null where there is none.
  VocabularyTable<D, T>* table() { return groups_.table(); }
  /// True for a strategy of the same kinds: two layers that share a table have it.
  [[nodiscard]] bool has_strategy_of(const StrategySpec& spec) const {
    return context_.spec.sequence == spec.sequence && context_.spec.zero == spec.zero;
  }

  void take_stash(device::Region& stash, int slots, int deferred) override {
    program_ = std::make_unique<const program::LayerProgram>(program::lower(graph_, context_.spec, deferred > 0));
    executor_ = std::make_unique<Executor<D, T>>(context_, *program_, groups_, sequence_, loss_);
    slots_.clear();
    deferred_.clear();
    for (int i = 0; i < slots; ++i) slots_.push_back(executor_->take_slot(stash));
    for (int i = 0; program_->splits && i < deferred; ++i) deferred_.push_back(executor_->take_deferred(stash));
  }
  View<T> input(int slot) override { return graph_.takes_data ? View<T>{} : executor_->input(at(slot)); }
  View<T> patches(int slot) override { return graph_.takes_data ? executor_->input(at(slot)) : View<T>{}; }
  View<std::int32_t> tokens(int slot) override { return at(slot).tokens; }
  void set_pass_through(int slot, int part, View<T> rows) override {
    at(slot).pass_through[static_cast<std::size_t>(part)] = rows;
  }

  void forward(int slot, View<T> y) override { run(Phase::forward, slot, -1, y); }
  void backward(int slot, View<T> d) override { run(Phase::backward, slot, -1, d); }
  void backward_input(int slot, int kept, View<T> d) override { run(Phase::backward, slot, kept, d); }
  void backward_weight(int slot, int kept) override {
    if (program_->splits) run(Phase::weights, slot, kept, {});
  }

  void initialise(const ParameterSource& source) override { groups_.initialise(source); }
  void zero_gradients() override { groups_.zero_gradients(); }
  void start_synchronise() override { groups_.start_synchronise(); }
  void synchronise() override { groups_.synchronise(); }
  void add_gradient_squares() override { groups_.add_gradient_squares(); }
  void update() override { groups_.update(); }
  void visit(const StoreVisitor& visitor) override { groups_.visit(visitor); }

  Streaming streaming() override {
    const bool block = graph_.layer.kind == LayerKind::block;
    if (!block || context_.spec.zero < 2 || !context_.overlap) return {};
    return {&groups_.rest(), program::can_split(graph_, context_.spec)};
  }

 private:
  KeptBuffers<T>& at(int slot) { return slots_[static_cast<std::size_t>(slot)]; }
  void run(Phase phase, int slot, int kept, View<T> border) {
    const bool defers = program_->splits && kept >= 0;
    executor_->run(phase, at(slot), defers ? &deferred_[static_cast<std::size_t>(kept)] : nullptr, border);
  }

  Context<D> context_;     ///< of the layer's own tokens
  std::int64_t sequence_;  ///< S of the model
  forward::Graph graph_;
  ParameterGroups<D, T> groups_;
  LossTerm loss_;  ///< of a head
  std::unique_ptr<const program::LayerProgram> program_;
  std::unique_ptr<Executor<D, T>> executor_;
  std::vector<KeptBuffers<T>> slots_;
  std::vector<KeptBuffers<T>> deferred_;
};

}  // namespace galvatron::runtime
