// The ends of a model as layers: the embedding and the head, with the vocabulary table that they may share.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/nn/embedding.hpp>
#include <galvatron/nn/head.hpp>
#include <galvatron/nn/layer.hpp>
#include <galvatron/nn/parameter_groups.hpp>

namespace galvatron::nn {

template <class D, class T, class Kinds>
class EmbeddingLayer final : public Layer<T> {
 public:
  /// @param replicas  as for Table
  EmbeddingLayer(Context<D> context, const LayerSpec& layer, comm::Group* replicas, device::Region& states)
      : context_(context),
        beside_(with_tokens(context, context.beside)),
        body_(context_, layer),
        target_(beside_, layer),
        width_(layer.hidden),
        groups_(context_, layer, 0, nullptr, replicas, states) {}

  Table<D, T>& table() { return *groups_.table(); }

  void take_stash(device::Region& stash, int slots, int) override {
    tokens_.clear();
    internals_.clear();
    for (int i = 0; i < slots; ++i) {
      tokens_.push_back(stash.take<std::int32_t>(context_.rows() + beside_.rows()));
      internals_.push_back(body_.take_internals(stash));
    }
    carried_.assign(static_cast<std::size_t>(slots), {});
  }
  View<T> input(int) override { return {}; }
  void carry(int slot, View<T> carried) override { carried_[static_cast<std::size_t>(slot)] = carried; }
  /// The target's tokens, where there are some, lie behind the others.
  View<std::int32_t> tokens(int slot) override { return tokens_[static_cast<std::size_t>(slot)]; }

  void forward(int slot, View<T> y) override {
    const device::Scope scope(context_.workspace);
    const View<const T> rows = table().rows(table().store().acquire());
    const View<const T> rest = groups_.rest().acquire();
    body_.forward(rows, rest, own(tokens(slot)), internals_[static_cast<std::size_t>(slot)], y);
    if (beside_.sequence > 0)
      target_.forward(rows, rest, others(tokens(slot)), {}, carried_[static_cast<std::size_t>(slot)]);
  }
  void backward(int slot, View<T> d) override {
    const device::Scope scope(context_.workspace);
    const View<float> d_table = table().store().open_gradients();
    const View<float> d_rest = groups_.rest().open_gradients();
    const View<const T> rest = body_.backward_needs_parameters() ? groups_.rest().acquire() : View<const T>{};
    const std::int64_t local = context_.rows_local() * width_;
    body_.backward(rest, table().rows(d_table), d_rest, own(tokens(slot)), internals_[static_cast<std::size_t>(slot)],
                   d.slice(0, local));
    if (beside_.sequence > 0)
      target_.backward(rest, table().rows(d_table), d_rest, others(tokens(slot)), {},
                       d.slice(local, beside_.rows_local() * width_));
    table().store().close_gradients(d_table);
    groups_.rest().close_gradients(d_rest);
  }

  void initialise(const ParameterSource& source) override { groups_.initialise(source); }
  void zero_gradients() override { groups_.zero_gradients(); }
  void start_synchronise() override { groups_.start_synchronise(); }
  void synchronise() override { groups_.synchronise(); }
  void add_gradient_squares() override { groups_.add_gradient_squares(); }
  void update() override { groups_.update(); }
  void visit(const StoreVisitor& visitor) override { groups_.visit(visitor); }

 private:
  using Body = Embedding<D, T, Kinds::sequence>;
  View<std::int32_t> own(View<std::int32_t> tokens) const { return tokens.slice(0, context_.rows()); }
  View<std::int32_t> others(View<std::int32_t> tokens) const { return tokens.slice(context_.rows(), beside_.rows()); }

  Context<D> context_;
  Context<D> beside_;  ///< of T5's target
  Body body_;
  Body target_;
  std::int64_t width_;  ///< H
  ParameterGroups<D, T> groups_;
  std::vector<View<std::int32_t>> tokens_;
  std::vector<View<T>> carried_;
  std::vector<typename Body::Internals> internals_;
};

/// @tparam Arithmetic  of the head, such as Head
template <class D, class T, class Kinds, template <class, class, SequenceKind> class Arithmetic = Head>
class HeadLayer final : public Layer<T> {
 public:
  /// @param number  the layer's number in the model
  /// @param shared  the embedding's table where a tied model has both on one stage; else null: the head has its own
  /// @param replicas  as for Table
  /// @param scale   the weight of a prediction in the loss: 1 / (global batch * predictions of a sample)
  HeadLayer(Context<D> context, const LayerSpec& layer, int number, Table<D, T>* shared, comm::Group* replicas,
            float scale, device::Region& states)
      : context_(context),
        body_(context_, layer),
        groups_(context_, layer, number, shared, replicas, states),
        scale_(scale) {}

  void take_stash(device::Region& stash, int slots, int) override {
    inputs_.clear();
    targets_.clear();
    for (int i = 0; i < slots; ++i) {
      inputs_.push_back(stash.take<T>(context_.rows_local() * hidden()));
      targets_.push_back(stash.take<std::int32_t>(body_.targets()));
    }
  }
  View<T> input(int slot) override { return inputs_[static_cast<std::size_t>(slot)]; }
  View<std::int32_t> tokens(int slot) override { return targets_[static_cast<std::size_t>(slot)]; }

  void forward(int slot, View<T>) override {
    const device::Scope scope(context_.workspace);
    const View<const T> table = groups_.table()->store().acquire();
    const View<const T> rest = groups_.rest().acquire();
    const View<float> d_table = groups_.table()->store().open_gradients();
    const View<float> d_rest = groups_.rest().open_gradients();
    body_.forward_backward(groups_.table()->rows(table), rest, groups_.table()->rows(d_table), d_rest, tokens(slot),
                           scale_, input(slot));
    groups_.table()->store().close_gradients(d_table);
    groups_.rest().close_gradients(d_rest);
  }
  void backward(int slot, View<T> d) override {
    const auto bytes = [](View<T> v) {
      return View<std::byte>{reinterpret_cast<std::byte*>(v.data), v.count * static_cast<std::int64_t>(sizeof(T))};
    };
    context_.device.copy(bytes(input(slot)), bytes(d));
  }

  void initialise(const ParameterSource& source) override { groups_.initialise(source); }
  void zero_gradients() override { groups_.zero_gradients(); }
  void start_synchronise() override { groups_.start_synchronise(); }
  void synchronise() override { groups_.synchronise(); }
  void add_gradient_squares() override { groups_.add_gradient_squares(); }
  void update() override { groups_.update(); }
  void visit(const StoreVisitor& visitor) override { groups_.visit(visitor); }

 private:
  [[nodiscard]] std::int64_t hidden() const { return groups_.rest().layout().find(ParameterName::norm1_gamma)->rows; }

  Context<D> context_;
  Arithmetic<D, T, Kinds::sequence> body_;
  ParameterGroups<D, T> groups_;
  float scale_;
  std::vector<View<T>> inputs_;
  std::vector<View<std::int32_t>> targets_;
};

}  // namespace galvatron::nn
