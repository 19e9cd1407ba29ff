// ModelGraph: a model as layers that read each other's outputs, and its order as a chain.
//
// Stages of a pipeline are runs of a chain, so that a graph is put into one: its layers in an order in which each comes
// behind what it reads, and at every border between two layers the bundle of all values that layers further on read.
// A layer's output takes the place of its first input, if nothing else reads that; other values stay in their places
// and go past the layers between:
//
//     T5         embedding ==> encoder ==> .. ==> encoder --> decoder --> .. --> decoder           ==> worked on
//                          --> encoder --> .. --> encoder ==> decoder ==> .. ==> decoder ==> head  --> goes past, read
//     two losses embedding ==> block ==> .. ==> block ==> head --> block ==> .. ==> head
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron {

/// A value of a model: what a node makes. An embedding with a target (LayerSpec::target) makes two.
struct NodeOutput {
  int node = -1;  ///< -1: none
  int output = 0;
  friend constexpr bool operator==(const NodeOutput&, const NodeOutput&) = default;
};

struct ModelGraph {
  struct Node {
    LayerSpec layer;
    std::array<NodeOutput, 2> inputs{};  ///< in the order in which its forward pass has them
  };
  std::string name;
  std::vector<Node> nodes;

  /// The number of the new node.
  int add(const LayerSpec& layer, NodeOutput first = {}, NodeOutput second = {}) {
    nodes.push_back({layer, {first, second}});
    return static_cast<int>(nodes.size()) - 1;
  }
};

namespace detail {

/// Follows the values of a graph through the places of bundles.
class Chain {
 public:
  explicit Chain(const ModelGraph& graph) : graph_(graph), readers_(graph.nodes.size(), {-1, -1}) {
    for (int i = 0; i < size(); ++i)
      for (const NodeOutput& input : node(i).inputs)
        if (input.node >= 0 && input.node < i) last_reader(input) = i;
  }

  /// The layers with their places. Errors (usage): what makes no chain.
  Result<ModelSpec> run() {
    ModelSpec out;
    out.name = graph_.name;
    if (size() < 3 || node(0).layer.kind != LayerKind::embedding || node(size() - 1).layer.kind != LayerKind::head)
      return refuse(0, "a model begins with an embedding, ends with a head and has a block between them");
    for (int i = 0; i < size(); ++i) {
      LayerSpec layer = node(i).layer;
      if (auto placed = place(i, layer); !placed) return tl::unexpected<Error>(std::move(placed.error()));
      if (i == 0)
        out.embedding = layer;
      else if (i + 1 == size())
        out.head = layer;
      else
        out.blocks.push_back(layer);
    }
    return out;
  }

 private:
  struct Held {
    NodeOutput value;
    BundlePart shape;
  };
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] int size() const { return static_cast<int>(graph_.nodes.size()); }
  [[nodiscard]] const ModelGraph::Node& node(int i) const { return graph_.nodes[at(i)]; }
  int& last_reader(const NodeOutput& value) { return readers_[at(value.node)][at(value.output)]; }
  [[nodiscard]] tl::unexpected<Error> refuse(int i, const std::string& why) const {
    return usage_error("the graph of model " + graph_.name + " (node " + std::to_string(i) + "): " + why);
  }
  /// Held, and read by node `i` or later.
  bool lives(int part, int i) { return held_[at(part)].value.node >= 0 && last_reader(held_[at(part)].value) >= i; }

  Result<void> place(int i, LayerSpec& layer) {
    const bool last = i + 1 == size();
    BundlePlace place;
    // A value crosses one border more than it has to, so that all its readers are alike; the last layer takes its own.
    for (int p = 0; p < most_parts; ++p)
      if (lives(p, last ? i : i - 1)) place.before[at(p)] = held_[at(p)].shape;
    place.arrives = i == 0 ? std::int16_t{0} : made_;
    for (std::size_t k = 0; k < 2; ++k) {
      const NodeOutput& input = node(i).inputs[k];
      place.inputs[k] = -1;
      if (input.node < 0) continue;
      for (int p = 0; p < most_parts; ++p)
        if (lives(p, i) && held_[at(p)].value == input) place.inputs[k] = static_cast<std::int16_t>(p);
      if (place.inputs[k] < 0) return refuse(i, "it reads a value that no node before it makes");
    }
    if ((layer.kind == LayerKind::embedding) != (place.inputs[0] < 0))
      return refuse(i, "an embedding reads no other node, and all others do");
    place.outputs = {last ? place.inputs[0] : std::int16_t{-1}, -1};  // nothing goes on behind the last layer
    made_ = -1;
    if (layer.kind != LayerKind::head) {
      if (auto made = make(i, {i, 0}, {layer.tokens, layer.hidden}, place, 0); !made) return made;
      made_ = place.outputs[0];
    }
    if (layer.target.any()) {
      if (i > 0) return refuse(i, "only the first layer makes two values");
      if (auto made = make(i, {i, 1}, {layer.target, layer.hidden}, place, 1); !made) return made;
    }
    for (int p = 0; p < most_parts; ++p)
      if (lives(p, i)) place.after[at(p)] = held_[at(p)].shape;
    if (i == 0) place.before = place.after;
    // A rank keeps the parts one after the other, and in backward a bundle only grows or shrinks at its end.
    bool changed = false;
    for (int p = 0; p < most_parts && !last; ++p) {
      if (changed && (place.before[at(p)].tokens.any() || place.after[at(p)].tokens.any()))
        return refuse(i, "a value ends or changes its size before another one of its bundle; make it later");
      changed = changed || place.before[at(p)] != place.after[at(p)];
    }
    layer.place = {};
    if (!is_default(place, layer, last)) layer.place = place;
    return {};
  }
  /// Puts an output where the first input was, or where nothing is.
  Result<void> make(int i, NodeOutput value, BundlePart shape, BundlePlace& place, std::size_t output) {
    if (last_reader(value) < 0) return refuse(i, "nothing reads what it makes");
    int part = place.inputs[0];
    if (output > 0 || part < 0 || last_reader(node(i).inputs[0]) > i)
      for (part = 0; part < most_parts && (lives(part, i) || place.before[at(part)].tokens.any());) ++part;
    if (part == most_parts)
      return refuse(i, "more than " + std::to_string(most_parts) + " values are read by layers further on");
    held_[at(part)] = {value, shape};
    place.outputs[output] = static_cast<std::int16_t>(part);
    return {};
  }
  /// True where a layer of a chain stands like this.
  static bool is_default(const BundlePlace& place, const LayerSpec& layer, bool last) {
    for (int p = 0; p < most_parts; ++p)
      if (place.before[at(p)] != layer.before(p) || place.after[at(p)] != layer.after(p)) return false;
    return place.arrives == 0 && place.inputs[1] < 0 && (layer.kind != LayerKind::head || last);
  }

  const ModelGraph& graph_;
  std::vector<std::array<int, 2>> readers_;  ///< of each output of each node: the last one; -1: none
  std::array<Held, most_parts> held_{};
  std::int16_t made_ = -1;  ///< where the last node's output is
};

}  // namespace detail

/// The chain of a graph whose nodes come behind those that they read (topological_order.hpp orders others). Not
/// checked as a model: see checked(). Errors (usage): no embedding first or no head last, an input or an output that is
/// missing, more than `most_parts` values at a border.
inline Result<ModelSpec> chain_of(const ModelGraph& graph) { return detail::Chain(graph).run(); }

}  // namespace galvatron
