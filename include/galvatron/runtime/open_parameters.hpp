// OpenParameters: the parameters of a layer and their gradients while a pass works, by the weights of its forward pass.
#pragma once

#include <array>
#include <cstddef>

#include <galvatron/model/forward.hpp>
#include <galvatron/runtime/parameter_groups.hpp>

namespace galvatron::runtime {

template <class D, class T>
class OpenParameters {
 public:
  /// Both must outlive it.
  OpenParameters(const forward::Graph& graph, ParameterGroups<D, T>& groups) : graph_(graph), groups_(groups) {}

  /// The parameters of a group are whole from here on.
  void acquire(int group) { open_[at(group)].parameters = store(group).acquire(); }
  void open_gradients(int group) {
    if (!is_table(group)) adds_ = groups_.rest().adds_gradients();
    open_[at(group)].gradients = store(group).open_gradients();
  }
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
  /// The shard of the vocabulary's table.
  View<const T> table() const { return groups_.table()->rows(open_[0].parameters); }
  View<float> table_gradient() const { return groups_.table()->rows(open_[0].gradients); }
  /// True for the gradient of a weight that products add to: the others are written by the first micro-batch.
  [[nodiscard]] bool adds(int weight) const {
    const ParameterLayout& layout = layout_of(weight);
    return adds_ || layout.find(graph_.weight(weight).name)->offset >= layout.written_end;
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
  [[nodiscard]] bool is_table(int group) const { return groups_.table() != nullptr && group == 0; }
  ParameterStore<D, T>& store(int group) { return is_table(group) ? groups_.table()->store() : groups_.rest(); }
  [[nodiscard]] const Open& group_of(int weight) const {
    return open_[groups_.table() != nullptr && !graph_.weight(weight).is_table ? 1 : 0];
  }
  [[nodiscard]] const ParameterLayout& layout() const { return groups_.rest().layout(); }
  [[nodiscard]] const ParameterLayout& layout_of(int weight) const {
    return graph_.weight(weight).is_table ? groups_.table()->store().layout() : layout();
  }

  const forward::Graph& graph_;
  ParameterGroups<D, T>& groups_;
  std::array<Open, 2> open_{};  ///< by group
  bool adds_ = true;            ///< weight gradients are added to, not written
};

}  // namespace galvatron::runtime
