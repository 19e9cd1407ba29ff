// Forward: the forward pass of a layer as operations on named tensors, before any rank, device or strategy is known.
//
// A layer's author writes this and nothing else (model/layers.hpp has those of the library). Its backward pass, its
// shards, its bytes and its price are derived in program/.
//
// Activations are rows of tokens; a width is their other extent. A width is split where tensor-parallel ranks share it:
// heads, hidden units of an MLP, the vocabulary. All widths are those of the whole model.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/model/parameter.hpp>
#include <galvatron/model/spec.hpp>

namespace galvatron::forward {

/// Operations of a forward pass. Each can be differentiated and placed.
enum class Kind : std::uint8_t {
  norm,           ///< y = norm(x) * gamma (+ beta)
  linear,         ///< y = x W^T (+ bias)
  activation,     ///< y = act(x); for gated kinds x is gate | up
  multiply,       ///< y = a * b, element by element
  add,            ///< y = a + b
  rotate,         ///< queries and keys of a fused projection turned by their positions (RoPE)
  attend,         ///< self-attention of a fused projection: queries | keys | values
  look_up,        ///< rows of a table by token
  add_positions,  ///< y = x + the table's row of a token's position
  cross_entropy,  ///< the loss of a token, from logits over a table; its gradient is made in forward
};

/// The extent of a tensor beside its rows.
struct Width {
  std::int64_t extent = 0;
  bool split = false;                      ///< tensor-parallel ranks share it
  std::array<std::int64_t, 3> sections{};  ///< parts that are split each for itself: queries, keys, values; gate, up
  friend constexpr bool operator==(const Width&, const Width&) = default;
};

/// A tensor of a forward pass: (rows, width).
struct Tensor {
  int id = -1;
};

/// A parameter of a forward pass.
struct Weight {
  int id = -1;
};

/// One parameter: (outputs, inputs) of a linear layer, (rows, width) of a table, (width) of a norm or a bias.
struct WeightSpec {
  ParameterName name{};
  Width rows;
  Width columns{1};
  bool decays = false;
  ParameterInit init = ParameterInit::zero;
  double deviation = 0;
  bool is_table = false;  ///< the vocabulary's: a parameter group of its own, which tied ends share
};

struct Node {
  Kind operation{};
  std::array<int, 2> inputs{-1, -1};   ///< tensors
  int output = -1;                     ///< tensor; -1 of a loss
  std::array<int, 2> weights{-1, -1};  ///< weight and bias, gamma and beta, or a table
  NormKind norm{};
  ActivationKind activation{};
};

/// A layer's forward pass. `input` is -1 where tokens come in, `output` where a loss comes out.
struct Graph {
  static constexpr int most_tensors = 32;
  static constexpr int most_nodes = 32;
  static constexpr int most_weights = 28;

  std::array<Width, most_tensors> tensors{};
  std::array<Node, most_nodes> nodes{};
  std::array<WeightSpec, most_weights> weights{};
  int tensor_count = 0;
  int node_count = 0;
  int weight_count = 0;
  int input = -1;
  int output = -1;
  LayerSpec layer;  ///< heads, epsilon, theta, causality

  [[nodiscard]] constexpr const Node& node(int i) const { return nodes[static_cast<std::size_t>(i)]; }
  [[nodiscard]] constexpr const Width& width(int tensor) const { return tensors[static_cast<std::size_t>(tensor)]; }
  [[nodiscard]] constexpr const WeightSpec& weight(int i) const { return weights[static_cast<std::size_t>(i)]; }
  /// The node that makes a tensor; -1 for the layer's input.
  [[nodiscard]] constexpr int producer(int tensor) const {
    for (int i = 0; i < node_count; ++i)
      if (node(i).output == tensor) return i;
    return -1;
  }
  /// Nodes that read a tensor; the layer's output counts as one more.
  [[nodiscard]] constexpr int uses(int tensor) const {
    int count = tensor == output ? 1 : 0;
    for (int i = 0; i < node_count; ++i)
      for (const int read : node(i).inputs) count += read == tensor ? 1 : 0;
    return count;
  }
};

/// Writes a forward pass down.
class Builder {
 public:
  explicit constexpr Builder(const LayerSpec& layer) { graph_.layer = layer; }

  // Widths.
  static constexpr Width whole(std::int64_t extent) { return {extent, false, {}}; }
  static constexpr Width split(std::int64_t extent, std::array<std::int64_t, 3> sections = {}) {
    return {extent, true, sections};
  }

  // Parameters.
  /// A matrix (outputs, inputs) that is initialised from normal(0, deviation) and decays.
  constexpr Weight weight(ParameterName name, Width outputs, Width inputs, double deviation = 0.02) {
    return parameter({name, outputs, inputs, true, ParameterInit::normal, deviation, false});
  }
  /// The vocabulary's table (V, H).
  constexpr Weight table(std::int64_t vocabulary, Width width) {
    return parameter({ParameterName::table, split(vocabulary), width, true, ParameterInit::normal, 0.02, true});
  }
  /// A vector that begins with zeros or ones and does not decay.
  constexpr Weight vector(ParameterName name, Width width, ParameterInit init = ParameterInit::zero) {
    return parameter({name, width, {1}, false, init, 0, false});
  }

  // Tensors.
  /// What comes from the layer before: (rows, H).
  constexpr Tensor input(Width width) {
    graph_.input = tensor(width);
    return {graph_.input};
  }
  constexpr Tensor norm(Tensor x, Weight gamma, Weight beta = {}) {
    Node node = unary(Kind::norm, x, width_of(x));
    node.weights = {gamma.id, beta.id};
    node.norm = graph_.layer.norm;
    return push(node);
  }
  constexpr Tensor linear(Tensor x, Weight w, Weight bias = {}) {
    Node node = unary(Kind::linear, x, graph_.weight(w.id).rows);
    node.weights = {w.id, bias.id};
    return push(node);
  }
  /// @param width  of the result, which differs from that of x for gated kinds
  constexpr Tensor activation(ActivationKind kind, Tensor x, Width width) {
    Node node = unary(Kind::activation, x, width);
    node.activation = kind;
    return push(node);
  }
  constexpr Tensor multiply(Tensor a, Tensor b) { return binary(Kind::multiply, a, b); }
  constexpr Tensor add(Tensor a, Tensor b) { return binary(Kind::add, a, b); }
  constexpr Tensor rotate(Tensor qkv) { return push(unary(Kind::rotate, qkv, width_of(qkv))); }
  constexpr Tensor attend(Tensor qkv, Width out) { return push(unary(Kind::attend, qkv, out)); }
  /// Tokens to rows of the table.
  constexpr Tensor look_up(Weight table) {
    Node node = unary(Kind::look_up, {}, graph_.weight(table.id).columns);
    node.weights = {table.id, -1};
    return push(node);
  }
  constexpr Tensor add_positions(Tensor x, Weight table) {
    Node node = unary(Kind::add_positions, x, width_of(x));
    node.weights = {table.id, -1};
    return push(node);
  }
  constexpr void cross_entropy(Tensor x, Weight table) {
    Node node{.operation = Kind::cross_entropy, .inputs = {x.id, -1}};
    node.weights = {table.id, -1};
    graph_.nodes[static_cast<std::size_t>(graph_.node_count++)] = node;
  }
  /// What goes to the layer after.
  constexpr void output(Tensor y) { graph_.output = y.id; }

  [[nodiscard]] constexpr const Graph& graph() const { return graph_; }

 private:
  [[nodiscard]] constexpr Width width_of(Tensor x) const { return graph_.width(x.id); }
  constexpr int tensor(Width width) {
    graph_.tensors[static_cast<std::size_t>(graph_.tensor_count)] = width;
    return graph_.tensor_count++;
  }
  constexpr Weight parameter(const WeightSpec& spec) {
    graph_.weights[static_cast<std::size_t>(graph_.weight_count)] = spec;
    return {graph_.weight_count++};
  }
  constexpr Node unary(Kind operation, Tensor x, Width width) {
    return {.operation = operation, .inputs = {x.id, -1}, .output = tensor(width)};
  }
  constexpr Tensor binary(Kind operation, Tensor a, Tensor b) {
    Node node = unary(operation, a, width_of(a));
    node.inputs[1] = b.id;
    return push(node);
  }
  constexpr Tensor push(const Node& node) {
    graph_.nodes[static_cast<std::size_t>(graph_.node_count++)] = node;
    return {node.output};
  }

  Graph graph_;
};

}  // namespace galvatron::forward
