// BlockLayer: a Transformer block with its parameter store, its stash and its recomputation.
#pragma once

#include <cstdint>
#include <vector>

#include <galvatron/nn/block.hpp>
#include <galvatron/nn/layer.hpp>
#include <galvatron/nn/parameter_store.hpp>
#include <galvatron/strategy/legality.hpp>

namespace galvatron::nn {

/// @tparam Kinds  see layer.hpp; what is recomputed is a number like the degrees, since it hardly changes the code
/// @tparam Arithmetic  of the block, such as Block
template <class D, class T, class Kinds, template <class, class, SequenceKind> class Arithmetic>
class BlockLayer final : public Layer<T> {
  using Body = Arithmetic<D, T, Kinds::sequence>;

 public:
  /// @param number  the layer's number in the model (the embedding is 0)
  BlockLayer(Context<D> context, const LayerSpec& layer, int number, device::Region& states)
      : context_(context),
        body_(context_, layer),
        store_(context_, states, body_.layout()),
        number_(number),
        again_(context.spec.recompute == RecomputeKind::full),
        splits_(Body::splits && splits_backward(context.spec.recompute)) {}

  void take_stash(device::Region& stash, int slots, int deferred) override {
    inputs_.clear();
    carried_.assign(static_cast<std::size_t>(slots), {});
    internals_.clear();
    deferred_.clear();
    for (int i = 0; i < slots; ++i) {
      inputs_.push_back(stash.take<T>(body_.input_elements()));
      if (!again_) internals_.push_back(body_.take_internals(stash));
    }
    if constexpr (Body::splits)
      for (int i = 0; splits_ && i < deferred; ++i) deferred_.push_back(body_.take_deferred(stash));
  }
  View<T> input(int slot) override { return inputs_[static_cast<std::size_t>(slot)]; }
  void carry(int slot, View<T> carried) override { carried_[static_cast<std::size_t>(slot)] = carried; }
  View<std::int32_t> tokens(int) override { return {}; }

  void forward(int slot, View<T> y) override {
    const device::Scope scope(context_.workspace);
    const View<const T> parameters = store_.acquire();
    body_.forward(parameters, read(slot), internals(slot), y);
  }

  void backward(int slot, View<T> d) override {
    const device::Scope scope(context_.workspace);
    const View<const T> parameters = store_.acquire();
    const View<float> gradients = open_gradients();
    const auto in = internals(slot);
    if (again_) body_.recompute(parameters, read(slot), in);
    body_.backward(parameters, gradients, read(slot), in, d);
    store_.close_gradients(gradients);
  }

  void backward_input(int slot, int kept, View<T> d) override {
    if constexpr (Body::splits) {
      if (splits_) {
        const device::Scope scope(context_.workspace);
        body_.backward_input(store_.acquire(), input(slot), internals(slot), deferred(kept), d);
        return;
      }
    }
    backward(slot, d);
  }

  void backward_weight(int slot, int kept) override {
    if constexpr (Body::splits) {
      if (!splits_) return;
      const device::Scope scope(context_.workspace);
      const View<float> gradients = open_gradients();
      body_.backward_weight(gradients, input(slot), internals(slot), deferred(kept));
      store_.close_gradients(gradients);
    }
  }

  void initialise(const ParameterSource& source) override { store_.initialise(source, number_); }
  void zero_gradients() override { store_.zero_gradients(); }
  void start_synchronise() override { store_.start_synchronise(); }
  void synchronise() override { store_.synchronise(); }
  Streaming streaming() override {
    if (context_.spec.zero < 2 || !context_.overlap) return {};
    return {&store_, splits_};
  }
  void add_gradient_squares() override { store_.add_gradient_squares(); }
  void update() override { store_.update(number_); }
  void visit(const StoreVisitor& visitor) override { visitor(store_.view(number_)); }

 private:
  // What the block reads.
  auto read(int slot) {
    if constexpr (Body::carries)
      return body_.input_of(input(slot), carried_[static_cast<std::size_t>(slot)]);
    else
      return View<const T>(input(slot));
  }
  View<float> open_gradients() {
    context_.adds_gradients = store_.adds_gradients();
    return store_.open_gradients();
  }
  // Kept since forward, or room for them in the workspace.
  typename Body::Internals internals(int slot) {
    return again_ ? body_.take_internals(context_.workspace) : internals_[static_cast<std::size_t>(slot)];
  }
  const typename Body::Deferred& deferred(int kept) const { return deferred_[static_cast<std::size_t>(kept)]; }

  Context<D> context_;
  Body body_;
  ParameterStore<D, T> store_;
  int number_;
  bool again_;   ///< full recomputation
  bool splits_;  ///< backward may come in two parts
  std::vector<View<T>> inputs_;
  std::vector<View<T>> carried_;
  std::vector<typename Body::Internals> internals_;
  std::vector<typename Body::Deferred> deferred_;
};

}  // namespace galvatron::nn
