// ParameterGroups: the parameters of a layer by the weights of its forward pass, in groups with a store each: the
// vocabulary's table, which tied ends share, the experts, whose ranks are other ones, the frozen ones, and the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

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
                       : std::make_unique<OwnStore>(context, states, ParameterPart::table,
                                                    layout_in(ParameterPart::table, context), layer.tied ? 0 : number,
                                                    replicas,
                                                    layer.kind == LayerKind::embedding || replicas == nullptr)),
        table_(shared != nullptr ? shared : own_table_.get()),
        rest_(context, states, ParameterPart::rest, layout_in(ParameterPart::rest, context), number, nullptr, true,
              bias) {
    if (const ParameterLayout layout = layout_in(ParameterPart::experts, context); layout.elements > 0)
      experts_ = std::make_unique<OwnStore>(context, states, ParameterPart::experts, layout, number);
    if (const ParameterLayout layout = layout_in(ParameterPart::frozen, context); layout.elements > 0)
      frozen_ = std::make_unique<OwnStore>(context, states, ParameterPart::frozen, layout, number);
  }

  [[nodiscard]] const forward::Graph& graph() const { return graph_; }
  /// Null where there is none.
  OwnStore* table() { return table_; }
  OwnStore& rest() { return rest_; }
  /// Calls f(store) for the stores that are this layer's own.
  template <class F>
  void for_each_store(const F& f) {
    if (own_table_) f(*own_table_);
    if (!rest_.empty()) f(rest_);
    if (experts_) f(*experts_);
    if (frozen_) f(*frozen_);
  }

  // Of a pass.

  /// The parameters of a group are whole from here on.
  void acquire(ParameterPart group) { open(group).parameters = store(group).acquire(); }
  void open_gradients(ParameterPart group) { open(group).gradients = store(group).open_gradients(); }
  void close_gradients(ParameterPart group) { store(group).close_gradients(open(group).gradients); }

  /// The gradients that open_gradients() opened.
  [[nodiscard]] View<float> opened(ParameterPart group) const { return open(group).gradients; }

  /// A parameter, and its gradient; empty for weight -1, the gradient also where it is frozen.
  View<const T> parameter(int weight) const {
    if (weight < 0) return {};
    return tensor_of(layout_of(weight), open(part(weight)).parameters, graph_.weight(weight).name);
  }
  View<float> gradient(int weight) const {
    if (weight < 0 || graph_.weight(weight).frozen) return {};
    return tensor_of(layout_of(weight), open(part(weight)).gradients, graph_.weight(weight).name);
  }
  /// True for the gradient of a weight that products add to: the others are written by the first micro-batch.
  [[nodiscard]] bool adds(int weight) const {
    const OwnStore& own = store(part(weight));
    return own.adds_gradients() || own.layout().find(graph_.weight(weight).name)->offset >= own.layout().written_end;
  }

  /// Parameters of a block that are replicated on tensor ranks: one run of its store.
  [[nodiscard]] std::int64_t replicated_count() const { return layout().whole_end - layout().whole_begin; }
  View<const T> replicated() const {
    return open(ParameterPart::rest).parameters.slice(layout().whole_begin, replicated_count());
  }
  View<float> replicated_gradients() const {
    return open(ParameterPart::rest).gradients.slice(layout().whole_begin, replicated_count());
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
  [[nodiscard]] ParameterLayout layout_in(ParameterPart part, const Context<D>& context) const {
    const StorePlace place = context.place(part);
    const StoreRanks ranks(context.spec, part);
    return parameter_layout(
        graph_, part,
        part == ParameterPart::experts ? RankShares::even(place.tensor_degree, place.tensor_rank) : context.shares(),
        ranks.shards(), ranks.experts());
  }
  [[nodiscard]] ParameterPart part(int weight) const { return part_of(graph_.weight(weight)); }
  OwnStore& store(ParameterPart part) { return const_cast<OwnStore&>(std::as_const(*this).store(part)); }
  [[nodiscard]] const OwnStore& store(ParameterPart part) const {
    switch (part) {
      case ParameterPart::table:
        return *table_;
      case ParameterPart::experts:
        return *experts_;
      case ParameterPart::frozen:
        return *frozen_;
      case ParameterPart::rest:
        break;
    }
    return rest_;
  }
  Open& open(ParameterPart part) { return open_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] const Open& open(ParameterPart part) const { return open_[static_cast<std::size_t>(part)]; }
  [[nodiscard]] const ParameterLayout& layout() const { return rest_.layout(); }
  [[nodiscard]] const ParameterLayout& layout_of(int weight) const { return store(part(weight)).layout(); }

  forward::Graph graph_;
  std::unique_ptr<OwnStore> own_table_;
  OwnStore* table_;
  OwnStore rest_;
  std::unique_ptr<OwnStore> experts_;
  std::unique_ptr<OwnStore> frozen_;
  std::array<Open, parameter_parts.size()> open_{};  ///< by part
};

}  // namespace galvatron::runtime
