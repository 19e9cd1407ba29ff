// What forward keeps for backward, and what backward recomputes.
//
// Backward needs the operands of gradients. Of them the outputs of norms and of element-wise operations are recomputed
// unless recomputation is `none`, and results of attention too under `selective`. Full recomputation makes what the
// others keep from the layer's input, before the rest of backward.
#pragma once

#include <array>
#include <cstddef>

#include <galvatron/model/forward.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::program::detail {

class KeptTensors {
 public:
  constexpr KeptTensors(const forward::Graph& graph, const StrategySpec& kinds, const Options& options)
      : graph_(graph), kinds_(kinds), keeps_outputs_(options.keeps_outputs || kinds.recompute == RecomputeKind::none) {
    for (int i = 0; i < graph_.node_count; ++i)
      for (std::size_t k = 0; k < needed_operands(graph_.node(i)); ++k) need(graph_.node(i).inputs[k]);
  }

  [[nodiscard]] constexpr bool recomputes_core() const { return kinds_.recompute == RecomputeKind::selective; }
  /// Outputs of norms and activations are kept.
  [[nodiscard]] constexpr bool keeps_outputs() const { return keeps_outputs_; }
  /// Results of attention are not kept.
  [[nodiscard]] constexpr bool drops_results() const { return recomputes_core() && !keeps_outputs_; }
  /// True for tensors that forward leaves to backward, or that full recomputation makes for it.
  [[nodiscard]] constexpr bool keeps(int tensor) const {
    if (!needs_[at(tensor)] || graph_.is_input(tensor) || is_recomputed(tensor)) return false;
    return !drops_results() || !forward::is_attention(graph_.node(graph_.producer(tensor)).operation);
  }

 private:
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  constexpr void need(int tensor) {
    if (tensor < 0 || needs_[at(tensor)]) return;
    needs_[at(tensor)] = true;
    // What is recomputed needs its own operands.
    const int producer = graph_.producer(tensor);
    if (producer < 0 || !is_recomputed(tensor)) return;
    for (const int input : graph_.node(producer).inputs) need(input);
  }
  /// True for outputs that backward computes again from what is kept. A change of order always is one, as noise is, and
  /// with it what is made of it element by element. Results of attention are told apart in keeps().
  [[nodiscard]] constexpr bool is_recomputed(int tensor) const {
    const int producer = graph_.producer(tensor);
    if (producer < 0) return false;
    const forward::Node& node = graph_.node(producer);
    switch (node.operation) {
      case forward::Kind::merge:
      case forward::Kind::narrow:
      case forward::Kind::jitter:
        return true;
      case forward::Kind::norm:
      case forward::Kind::activation:
      case forward::Kind::multiply:
        return !keeps_outputs_ || is_recomputed(node.inputs[0]);
      default:
        return false;
    }
  }
  /// How many of an operation's operands its gradients need. The others need nothing but the result's gradient, or
  /// tokens, or what forward has made already; Ulysses keeps what its exchange gives.
  [[nodiscard]] constexpr std::size_t needed_operands(const forward::Node& node) const {
    switch (node.operation) {
      case forward::Kind::linear:  // of the gradient of its weight, or of an adapter's
        return graph_.weight(node.weights[0]).frozen && !node.has_adapter() ? 0 : 1;
      case forward::Kind::norm:
      case forward::Kind::activation:
      case forward::Kind::experts:
        return 1;
      case forward::Kind::multiply:
      case forward::Kind::gate:
      case forward::Kind::cross_attend:
        return 2;
      case forward::Kind::attend:
        return kinds_.exchanges_heads() ? 0 : 1;
      default:
        return 0;
    }
  }
  const forward::Graph& graph_;
  const StrategySpec& kinds_;
  bool keeps_outputs_;
  std::array<bool, forward::Graph::most_tensors> needs_{};
};

}  // namespace galvatron::program::detail
