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
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

/// The vocabulary table as a store of its own: tied models use one for the embedding and the head, or, across pipeline
/// stages, two replicas that an all-reduce of `replicas` keeps equal.
template <class D, class T>
class Table {
 public:
  /// @param number  of the layer whose initial values the table has: the embedding's for tied models
  /// @param replicas  this rank and the rank that has the same shard of the other replica, or null
  /// @param counted false for the second copy: its gradient is in the norm once already
  Table(Context<D> context, const LayerSpec& layer, int number, comm::Group* replicas, bool counted,
        device::Region& states)
      : context_(context),
        layer_(layer),
        store_(context_, states,
               parameter_layout(layer, ParameterPart::table, context.spec.tensor, static_cast<int>(context.shards()))),
        number_(number),
        replicas_(replicas),
        counted_(counted) {}

  ParameterStore<D, T>& store() { return store_; }
  /// The table's shard (V/t, H) of parameters or of gradients that the store gave.
  template <class U>
  [[nodiscard]] View<U> rows(View<U> all) const {
    return all.slice(0, store_.layout().tensors[0].count());
  }
  void initialise(const ParameterSource& source) { store_.initialise(source, number_); }
  void start_synchronise() { store_.start_synchronise(); }
  void synchronise() {
    store_.synchronise();
    if (replicas_ != nullptr) replicas_->all_reduce(store_.optimizer_gradients(), comm::ReduceOp::sum);
  }
  void add_gradient_squares() {
    if (counted_) store_.add_gradient_squares();
  }
  void update() { store_.update(number_); }
  [[nodiscard]] StoreView view() {
    StoreView out = store_.view(number_);
    out.counted = counted_;
    return out;
  }

 private:
  Context<D> context_;
  LayerSpec layer_;
  ParameterStore<D, T> store_;
  int number_;
  comm::Group* replicas_;
  bool counted_;
};

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
        table_(context, layer, 0, replicas, true, states),
        rest_(context_, states, body_.layout()) {}

  Table<D, T>& table() { return table_; }

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
    const View<const T> table = table_.rows(table_.store().acquire());
    const View<const T> rest = rest_.acquire();
    body_.forward(table, rest, own(tokens(slot)), internals_[static_cast<std::size_t>(slot)], y);
    if (beside_.sequence > 0)
      target_.forward(table, rest, others(tokens(slot)), {}, carried_[static_cast<std::size_t>(slot)]);
  }
  void backward(int slot, View<T> d) override {
    const device::Scope scope(context_.workspace);
    const View<float> d_table = table_.store().open_gradients();
    const View<float> d_rest = rest_.open_gradients();
    const View<const T> rest = body_.backward_needs_parameters() ? rest_.acquire() : View<const T>{};
    const std::int64_t local = context_.rows_local() * width_;
    body_.backward(rest, table_.rows(d_table), d_rest, own(tokens(slot)), internals_[static_cast<std::size_t>(slot)],
                   d.slice(0, local));
    if (beside_.sequence > 0)
      target_.backward(rest, table_.rows(d_table), d_rest, others(tokens(slot)), {},
                       d.slice(local, beside_.rows_local() * width_));
    table_.store().close_gradients(d_table);
    rest_.close_gradients(d_rest);
  }

  void initialise(const ParameterSource& source) override {
    table_.initialise(source);
    rest_.initialise(source, 0);
  }
  void zero_gradients() override {
    table_.store().zero_gradients();
    rest_.zero_gradients();
  }
  void start_synchronise() override {
    table_.start_synchronise();
    rest_.start_synchronise();
  }
  void synchronise() override {
    table_.synchronise();
    rest_.synchronise();
  }
  void add_gradient_squares() override {
    table_.add_gradient_squares();
    rest_.add_gradient_squares();
  }
  void update() override {
    table_.update();
    rest_.update(0);
  }
  void visit(const StoreVisitor& visitor) override {
    visitor(table_.view());
    if (!rest_.empty()) visitor(rest_.view(0));
  }

 private:
  using Body = Embedding<D, T, Kinds::sequence>;
  View<std::int32_t> own(View<std::int32_t> tokens) const { return tokens.slice(0, context_.rows()); }
  View<std::int32_t> others(View<std::int32_t> tokens) const { return tokens.slice(context_.rows(), beside_.rows()); }

  Context<D> context_;
  Context<D> beside_;  ///< of T5's target
  Body body_;
  Body target_;
  std::int64_t width_;  ///< H
  Table<D, T> table_;
  ParameterStore<D, T> rest_;
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
        own_table_(shared != nullptr ? nullptr
                                     : std::make_unique<Table<D, T>>(context, layer, layer.tied ? 0 : number, replicas,
                                                                     replicas == nullptr, states)),
        table_(shared != nullptr ? shared : own_table_.get()),
        rest_(context_, states, body_.layout()),
        number_(number),
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
    const View<const T> table = table_->store().acquire();
    const View<const T> rest = rest_.acquire();
    const View<float> d_table = table_->store().open_gradients();
    const View<float> d_rest = rest_.open_gradients();
    body_.forward_backward(table_->rows(table), rest, table_->rows(d_table), d_rest, tokens(slot), scale_, input(slot));
    table_->store().close_gradients(d_table);
    rest_.close_gradients(d_rest);
  }
  void backward(int slot, View<T> d) override {
    const auto bytes = [](View<T> v) {
      return View<std::byte>{reinterpret_cast<std::byte*>(v.data), v.count * static_cast<std::int64_t>(sizeof(T))};
    };
    context_.device.copy(bytes(input(slot)), bytes(d));
  }

  void initialise(const ParameterSource& source) override {
    if (own_table_) own_table_->initialise(source);
    rest_.initialise(source, number_);
  }
  void zero_gradients() override {
    if (own_table_) own_table_->store().zero_gradients();
    rest_.zero_gradients();
  }
  void start_synchronise() override {
    if (own_table_) own_table_->start_synchronise();
    rest_.start_synchronise();
  }
  void synchronise() override {
    if (own_table_) own_table_->synchronise();
    rest_.synchronise();
  }
  void add_gradient_squares() override {
    if (own_table_) own_table_->add_gradient_squares();
    rest_.add_gradient_squares();
  }
  void update() override {
    if (own_table_) own_table_->update();
    rest_.update(number_);
  }
  void visit(const StoreVisitor& visitor) override {
    if (own_table_) visitor(own_table_->view());
    visitor(rest_.view(number_));
  }

 private:
  [[nodiscard]] std::int64_t hidden() const { return rest_.layout().find(ParameterName::norm1_gamma)->rows; }

  Context<D> context_;
  Arithmetic<D, T, Kinds::sequence> body_;
  std::unique_ptr<Table<D, T>> own_table_;
  Table<D, T>* table_;
  ParameterStore<D, T> rest_;
  int number_;
  float scale_;
  std::vector<View<T>> inputs_;
  std::vector<View<std::int32_t>> targets_;
};

}  // namespace galvatron::nn
