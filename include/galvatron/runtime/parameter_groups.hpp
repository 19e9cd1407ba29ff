// The parameter groups of a layer: the vocabulary's table, which tied ends share, and the other parameters.
#pragma once

#include <memory>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/parameter_store.hpp>
#include <galvatron/runtime/store_view.hpp>

namespace galvatron::runtime {

/// The vocabulary table as a store of its own: tied models use one for the embedding and the head, or, across pipeline
/// stages, two replicas that an all-reduce of `replicas` keeps equal.
template <class D, class T>
class VocabularyTable {
 public:
  /// @param number  of the layer whose initial values the table has: the embedding's for tied models
  /// @param replicas  this rank and the rank that has the same shard of the other replica, or null
  /// @param counted false for the second copy: its gradient is in the norm once already
  VocabularyTable(Context<D> context, const LayerSpec& layer, int number, comm::Group* replicas, bool counted,
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

/// Blocks and embeddings of images have no table.
template <class D, class T>
class ParameterGroups {
 public:
  /// @param number    of the layer in the model; the embedding is 0
  /// @param shared    of a head: the embedding's table where a tied model has both on one stage; else null
  /// @param replicas  as for VocabularyTable
  ParameterGroups(Context<D>& context, const LayerSpec& layer, int number, VocabularyTable<D, T>* shared,
                  comm::Group* replicas, device::Region& states)
      : own_table_(!has_table(layer) || shared != nullptr
                       ? nullptr
                       : std::make_unique<VocabularyTable<D, T>>(
                             context, layer, layer.tied ? 0 : number, replicas,
                             layer.kind == LayerKind::embedding || replicas == nullptr, states)),
        table_(shared != nullptr ? shared : own_table_.get()),
        rest_(context, states,
              parameter_layout(layer, ParameterPart::rest, context.spec.tensor, static_cast<int>(context.shards()))),
        number_(number) {}

  static bool has_table(const LayerSpec& layer) { return layer.kind != LayerKind::block && layer.patch_width == 0; }
  /// Null where there is none.
  VocabularyTable<D, T>* table() { return table_; }
  ParameterStore<D, T>& rest() { return rest_; }
  [[nodiscard]] const ParameterStore<D, T>& rest() const { return rest_; }

  void initialise(const ParameterSource& source) {
    if (own_table_) own_table_->initialise(source);
    rest_.initialise(source, number_);
  }
  void zero_gradients() {
    if (own_table_) own_table_->store().zero_gradients();
    rest_.zero_gradients();
  }
  void start_synchronise() {
    if (own_table_) own_table_->start_synchronise();
    rest_.start_synchronise();
  }
  void synchronise() {
    if (own_table_) own_table_->synchronise();
    rest_.synchronise();
  }
  void add_gradient_squares() {
    if (own_table_) own_table_->add_gradient_squares();
    rest_.add_gradient_squares();
  }
  void update() {
    if (own_table_) own_table_->update();
    rest_.update(number_);
  }
  template <class Visitor>
  void visit(const Visitor& visitor) {
    if (own_table_) visitor(own_table_->view());
    if (!rest_.empty()) visitor(rest_.view(number_));
  }

 private:
  std::unique_ptr<VocabularyTable<D, T>> own_table_;
  VocabularyTable<D, T>* table_;
  ParameterStore<D, T> rest_;
  int number_;
};

}  // namespace galvatron::runtime
