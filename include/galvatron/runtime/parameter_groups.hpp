// ParameterGroups: the parameters of a layer by the weights of its forward pass, in two groups with a store each: the
// vocabulary's table, which tied ends share, and the others.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/model/forward.hpp>
#include <galvatron/model/layers.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/parameter_store.hpp>

namespace galvatron::runtime {

/// Blocks and embeddings of images have no table.
template <class D, class T>
class ParameterGroups {
  using OwnStore = ParameterStore<D, T>;

 public:
  /// The context must outlive them.
  /// @param number    of the layer in the model; the embedding is 0
  /// @param shared    of a head: the embedding's table where a tied model has both on one stage; else null
  /// @param replicas  for tied models over several stages, whose ends have a table each: see ParameterStore
  /// @param bias      how the bias of a router moves
  ParameterGroups(Context<D>& context, const LayerSpec& layer, int number, OwnStore* shared, comm::Group* replicas,
                  device::Region& states, BiasUpdate bias = {})
      : graph_(forward_of(layer)),
        own_table_(layer.kind == LayerKind::block || layer.patch_width > 0 || shared != nullptr
                       ? nullptr
                       : std::make_unique<OwnStore>(context, states, layout_in(ParameterPart::table, context.spec),
                                                    layer.tied ? 0 : number, replicas,
                                                    layer.kind == LayerKind::embedding || replicas == nullptr)),
        table_(shared != nullptr ? shared : own_table_.get()),
        rest_(context, states, layout_in(ParameterPart::rest, context.spec), number, nullptr, true, bias) {}

  [[nodiscard]] const forward::Graph& graph() const { return graph_; }
  /// Null where there is none.
  OwnStore* table() { return table_; }
  OwnStore& rest() { return rest_; }
  /// Calls f(store) for the stores that are this layer's own.
  template <class F>
  void for_each_store(const F& f) {
    if (own_table_) f(*own_table_);
    if (!rest_.empty()) f(rest_);
  }

  // Of a pass, by the number of a group.

  /// The parameters of a group are whole from here on.
  void acquire(int group) { open_[at(group)].parameters = store(group).acquire(); }
  void open_gradients(int group) { open_[at(group)].gradients = store(group).open_gradients(); }
  void close_gradients(int group) { store(group).close_gradients(open_[at(group)].gradients); }

  /// A parameter, and its gradient; empty for weight -1.
  View<const T> parameter(int weight) const {
    if (weight < 0) return {};
    return tensor_of(layout_of(weight), group_of(weight).parameters, graph_.weight(weight).name);
  }
  View<float> gradient(int weight) const {
    if (weight < 0) return {};
    return tensor_of(layout_of(weight), group_of(weight).gradients, graph_.weight(weight).name);
  }
  /// True for the gradient of a weight that products add to: the others are written by the first micro-batch.
  [[nodiscard]] bool adds(int weight) const {
    const ParameterLayout& layout = layout_of(weight);
    return rest_.adds_gradients() || layout.find(graph_.weight(weight).name)->offset >= layout.written_end;
  }

  /// Parameters of a block that are replicated on tensor ranks: one run of its store.
  [[nodiscard]] std::int64_t replicated_count() const { return layout().whole_end - layout().whole_begin; }
  View<const T> replicated() const { return open_[0].parameters.slice(layout().whole_begin, replicated_count()); }
  View<float> replicated_gradients() const {
    return open_[0].gradients.slice(layout().whole_begin, replicated_count());
  }
  /// Of a copy of that run, the part of one parameter.
  template <class U>
  View<U> replicated_part(View<U> copy, int weight) const {
    if (weight < 0) return {};
    const ParameterTensor* tensor = layout().find(graph_.weight(weight).name);
    return copy.slice(tensor->offset - layout().whole_begin, tensor->count());
  }

 private:
  struct Open {
    View<const T> parameters;
    View<float> gradients;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] ParameterLayout layout_in(ParameterPart part, const StrategySpec& spec) const {
    return parameter_layout(graph_, part, spec.tensor, spec.shards());
  }
  OwnStore& store(int group) { return table_ != nullptr && group == 0 ? *table_ : rest_; }
  [[nodiscard]] const Open& group_of(int weight) const {
    return open_[table_ != nullptr && !graph_.weight(weight).is_table ? 1 : 0];
  }
  [[nodiscard]] const ParameterLayout& layout() const { return rest_.layout(); }
  [[nodiscard]] const ParameterLayout& layout_of(int weight) const {
    return graph_.weight(weight).is_table ? table_->layout() : layout();
  }

  forward::Graph graph_;
  std::unique_ptr<OwnStore> own_table_;
  OwnStore* table_;
  OwnStore rest_;
  std::array<Open, 2> open_{};  ///< by group
};

}  // namespace galvatron::runtime
