// The single-device graph of HAP (Zhang et al., EuroSys'24): tensors, and the operations that make them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace galvatron::hap {

/// Operations of a forward pass. Their operands, flops and rules: rules.hpp.
enum class Operation : std::uint8_t {
  placeholder,  ///< data of the batch
  parameter,    ///< what is trained
  linear,       ///< y = x W^T: x [.., i], W [o, i]
  linear_bias,  ///< y = x W^T + b: b [o]
  relu,         ///< element by element, as the next three
  gelu,
  sigmoid,
  dropout,
  scale,           ///< y = a x
  rotate,          ///< pairs of elements turned by their position: x [batch, tokens, heads]
  add,             ///< y = a + b
  multiply,        ///< y = a * b
  add_bias,        ///< y = x + b: b [last extent of x]
  gated,           ///< y = act(gate) * up: x [.., gate | up] -> [.., up]
  sum,             ///< of all elements
  layer_norm,      ///< over the last dimension; with gamma, or gamma and beta, as further operands
  attention,       ///< q, k, v [b, s, h]
  self_attention,  ///< x [b, s, queries | keys | values] -> [b, s, queries]
  mha_fused,       ///< self-attention with its projections: x [L, N, E], two weights and two biases
  transpose01,     ///< dimensions 0 and 1 change places
  embedding,       ///< rows of a table: ids [b, s], table [V, H] -> [b, s, H]
  add_rows,        ///< x [b, s, h] + a row of a table [.., h] for each token: positions, segments
  prepend,         ///< a learned token before the others: x [b, s, h], token [1, h] -> [b, s + 1, h]
  first_token,     ///< [b, s, h] -> [b, h]
  mean_token,      ///< the same, of all
  cross_entropy,   ///< logits [.., V] -> the sum of the rows' losses
  dispatch,        ///< tokens x [b, s, h] with scores [b, s, E] to slots of experts [E, C, h], those of a sample apart
  expert_linear,   ///< y = x W^T of each expert: x [E, C, i], W [E, o, i]
  combine,         ///< slots y [E, C, h] with scores [b, s, E] back to tokens [b, s, h]
  convolution,     ///< x [b, i, h, w], W [o, i, k, l] -> [b, o, ., .]
  pool,            ///< [b, c, h, w] -> [b, c, ., .]
  flatten,         ///< [b, c, ..] -> [b, c ..]
};

struct Tensor {
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t heads = 0;  ///< into which the last dimension is cut; 0: into its elements
  int split = -1;          ///< of a model: the dimension that tensor parallelism shards; -1: none
  int samples = 0;         ///< of a model: the one that data parallelism shards, of activations

  /// The shards that a dimension may have at most.
  [[nodiscard]] std::int64_t pieces(int dimension) const {
    return heads > 0 && dimension + 1 == rank() ? heads : shape[static_cast<std::size_t>(dimension)];
  }
  [[nodiscard]] int rank() const { return static_cast<int>(shape.size()); }
  [[nodiscard]] double elements() const {
    double out = 1;
    for (const std::int64_t extent : shape) out *= static_cast<double>(extent);
    return out;
  }
};

struct Node {
  Operation operation{};
  std::vector<int> inputs;  ///< tensors
  int output = -1;          ///< tensor
  int layer = 0;            ///< of a model
};

/// Nodes are in topological order; every tensor that is read has one node that makes it (check.hpp).
struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Node> nodes;
  int loss = -1;  ///< tensor

  [[nodiscard]] const Tensor& tensor(int id) const { return tensors[static_cast<std::size_t>(id)]; }
  [[nodiscard]] const Node& node(int i) const { return nodes[static_cast<std::size_t>(i)]; }
  int add(std::string name, std::vector<std::int64_t> shape) {
    tensors.push_back({std::move(name), std::move(shape)});
    return static_cast<int>(tensors.size()) - 1;
  }
  /// The tensor that the operation makes.
  int add(Operation operation, std::vector<int> inputs, std::string name, std::vector<std::int64_t> shape) {
    const int out = add(std::move(name), std::move(shape));
    nodes.push_back({operation, std::move(inputs), out});
    return out;
  }
};

constexpr bool is_source(Operation operation) {
  return operation == Operation::placeholder || operation == Operation::parameter;
}

/// How a tensor lies on the devices: HAP's properties Id, AR, AG(d).
struct Layout {
  std::int16_t code = -1;  ///< -1: whole everywhere; -2: partial sums; d: sharded on dimension d

  friend constexpr bool operator==(Layout, Layout) = default;
  friend constexpr auto operator<=>(Layout, Layout) = default;
  [[nodiscard]] constexpr bool is_shard() const { return code >= 0; }
};
inline constexpr Layout replicate{-1};
inline constexpr Layout partial_sums{-2};
constexpr Layout shard(int dimension) { return {static_cast<std::int16_t>(dimension)}; }

/// `I`, `R`, `G0`, `G1`, ...
inline std::string name_of(Layout layout) {
  if (layout == replicate) return "I";
  return layout == partial_sums ? "R" : "G" + std::to_string(layout.code);
}

}  // namespace galvatron::hap
