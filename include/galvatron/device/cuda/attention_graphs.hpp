// Attention as graphs of cuDNN's operations, in the form that its fused engines recognise.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <galvatron/device/cuda/cudnn_graph.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda::cudnn {

/// The tensors and numbers that a call names.
enum AttentionTensor : std::int64_t { q = 1, k, v, o, lse, d_o, dq, dk, dv, row_sums, dq_sums, scale, masked, one };

/// The samples and key/value heads that are computed at a time.
struct AttentionPart {
  std::int64_t samples = 0;
  std::int64_t kv_heads = 0;
  friend constexpr bool operator==(const AttentionPart&, const AttentionPart&) = default;
  [[nodiscard]] constexpr std::int64_t heads(const AttentionShape& s) const {
    return kv_heads * (s.heads / s.kv_heads);
  }
};

inline std::string to_string(const AttentionShape& s, bool backward) {
  return std::string(backward ? "backward" : "forward") + " attention of " + std::to_string(s.batch) + " x " +
         std::to_string(s.queries) + " queries, " + std::to_string(s.keys) + " keys, " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " heads of " + std::to_string(s.head_dim) + (s.causal ? ", causal" : "");
}

/// The tensors of a part of a shape, as (samples, heads, tokens, head_dim).
struct AttentionTensors {
  Graph& graph;
  const AttentionShape& s;
  const AttentionPart& part;

  /// Row token * batch + sample, heads next to each other.
  [[nodiscard]] Four rows(std::int64_t row) const { return {row, s.head_dim, s.batch * row, 1}; }
  [[nodiscard]] static Four transposed(const Four& f) { return {f[0], f[1], f[3], f[2]}; }
  [[nodiscard]] Four of_queries() const { return {part.samples, part.heads(s), s.queries, s.head_dim}; }
  [[nodiscard]] Four of_keys() const { return {part.samples, part.kv_heads, s.keys, s.head_dim}; }
  [[nodiscard]] Four of_all_keys() const { return {part.samples, part.heads(s), s.keys, s.head_dim}; }
  [[nodiscard]] Four of_scores() const { return {part.samples, part.heads(s), s.queries, s.keys}; }
  [[nodiscard]] Four of_rows() const { return {part.samples, part.heads(s), s.queries, 1}; }

  [[nodiscard]] Graph::Tensor query_rows(AttentionTensor id, std::int64_t row) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, of_queries(), rows(row));
  }
  [[nodiscard]] Graph::Tensor key_rows(AttentionTensor id, std::int64_t row) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, of_keys(), rows(row));
  }
  [[nodiscard]] Graph::Tensor key_columns(AttentionTensor id, std::int64_t row) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, transposed(of_keys()), transposed(rows(row)));
  }
  [[nodiscard]] Graph::Tensor statistics() const {
    return graph.memory(lse, CUDNN_DATA_FLOAT, of_rows(), {s.heads * s.lse_row(), s.lse_row(), 1, 1}, sizeof(float));
  }
  [[nodiscard]] Graph::Tensor scores() const { return graph.between(CUDNN_DATA_FLOAT, of_scores()); }
  [[nodiscard]] Graph::Tensor row_values() const { return graph.between(CUDNN_DATA_FLOAT, of_rows()); }

  /// scale * queries keys^T.
  [[nodiscard]] Graph::Tensor scaled_scores(const Graph::Tensor& queries, const Graph::Tensor& keys,
                                            const Graph::Tensor& factor) const {
    const Graph::Tensor product = scores();
    graph.multiply(queries, keys, product);
    const Graph::Tensor scaled = scores();
    graph.apply(CUDNN_POINTWISE_MUL, product, factor, scaled);
    return scaled;
  }
  /// Minus infinity where the key follows the query.
  [[nodiscard]] Graph::Tensor causal(const Graph::Tensor& values) const {
    if (!s.causal) return values;
    const Graph::Tensor query = graph.between(CUDNN_DATA_INT32, of_scores());
    graph.index(values, 2, query);
    const Graph::Tensor key = graph.between(CUDNN_DATA_INT32, of_scores());
    graph.index(values, 3, key);
    const Graph::Tensor seen = graph.between(CUDNN_DATA_BOOLEAN, of_scores());
    graph.at_least(query, key, seen);
    const Graph::Tensor out = scores();
    graph.select(values, graph.number(masked), seen, out);
    return out;
  }
};

/// o and lse from q, k and v.
inline Graph attention_forward_graph(const AttentionShape& s, const AttentionPart& part) {
  Graph graph;
  const AttentionTensors t{graph, s, part};
  const Graph::Tensor values =
      t.causal(t.scaled_scores(t.query_rows(q, s.q_stride), t.key_columns(k, s.kv_stride), graph.number(scale)));

  // Softmax: exp(x - max) / sum, and lse = max + log sum.
  const Graph::Tensor greatest = t.row_values();
  graph.reduce(CUDNN_REDUCE_TENSOR_MAX, values, greatest);
  const Graph::Tensor less = t.scores();
  graph.apply(CUDNN_POINTWISE_SUB, values, greatest, less);
  const Graph::Tensor exponentials = t.scores();
  graph.apply(CUDNN_POINTWISE_EXP, less, exponentials);
  const Graph::Tensor sum = t.row_values();
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, sum);
  const Graph::Tensor logarithm = t.row_values();
  graph.apply(CUDNN_POINTWISE_LOG, sum, logarithm);
  graph.apply(CUDNN_POINTWISE_ADD, greatest, logarithm, t.statistics());
  const Graph::Tensor weights = graph.between(CUDNN_DATA_BFLOAT16, t.of_scores());
  graph.apply(CUDNN_POINTWISE_DIV, exponentials, sum, weights);

  graph.multiply(weights, t.key_rows(v, s.kv_stride), t.query_rows(o, s.out_stride));
  return graph;
}

/// dq, dk and dv from what forward had and gave, and d_o. With P the weights and D = row sums of o * d_o:
/// dV = P^T dO; dS = scale P * (dO V^T - D); dQ = dS K; dK = dS^T Q. D lies in memory between the engine's kernels; so
/// does, unless `deterministic`, dQ in float, to which tiles add in any order.
inline Graph attention_backward_graph(const AttentionShape& s, const AttentionPart& part, bool deterministic) {
  Graph graph;
  const AttentionTensors t{graph, s, part};
  const Graph::Tensor queries = t.query_rows(q, s.q_stride);
  const Graph::Tensor keys = t.key_columns(k, s.kv_stride);
  const Graph::Tensor gradient = t.query_rows(d_o, s.out_stride);
  const Graph::Tensor factor = graph.number(scale);

  const Graph::Tensor products = graph.between(CUDNN_DATA_FLOAT, t.of_queries());
  graph.apply(CUDNN_POINTWISE_MUL, gradient, t.query_rows(o, s.out_stride), products);
  const Graph::Tensor unscaled = t.row_values();
  graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, unscaled);
  const Graph::Tensor sums = graph.memory(row_sums, CUDNN_DATA_FLOAT, t.of_rows(), Graph::dense(t.of_rows()));
  graph.apply(CUDNN_POINTWISE_MUL, unscaled, graph.number(one), sums);

  const Graph::Tensor less = t.scores();
  graph.apply(CUDNN_POINTWISE_SUB, t.scaled_scores(queries, keys, factor), t.statistics(), less);
  const Graph::Tensor weights = t.scores();
  graph.apply(CUDNN_POINTWISE_EXP, t.causal(less), weights);

  // out = a^T b, summed over the query heads of a key head; a is (samples, heads, queries, keys).
  const auto multiply_transposed = [&](const Graph::Tensor& a, const Graph::Tensor& b, const Graph::Tensor& out) {
    const Graph::Tensor turned = graph.between(CUDNN_DATA_BFLOAT16, AttentionTensors::transposed(t.of_scores()),
                                               AttentionTensors::transposed(Graph::dense(t.of_scores())));
    graph.reshape(a, turned);
    if (s.heads == s.kv_heads) return graph.multiply(turned, b, out);
    const Graph::Tensor all = graph.between(CUDNN_DATA_BFLOAT16, t.of_all_keys());
    graph.multiply(turned, b, all);
    graph.reduce(CUDNN_REDUCE_TENSOR_ADD, all, out);
  };
  multiply_transposed(weights, gradient, t.key_rows(dv, s.dkv_row()));

  const Graph::Tensor raw = t.scores();
  graph.multiply(gradient, t.key_columns(v, s.kv_stride), raw);
  const Graph::Tensor centred = t.scores();
  graph.apply(CUDNN_POINTWISE_SUB, raw, sums, centred);
  const Graph::Tensor weighted = t.scores();
  graph.apply(CUDNN_POINTWISE_MUL, centred, weights, weighted);
  const Graph::Tensor scaled = graph.between(CUDNN_DATA_BFLOAT16, t.of_scores());
  graph.apply(CUDNN_POINTWISE_MUL, weighted, factor, scaled);
  multiply_transposed(scaled, queries, t.key_rows(dk, s.dkv_row()));

  const Graph::Tensor key_rows = graph.between(CUDNN_DATA_BFLOAT16, t.of_keys(), t.rows(s.kv_stride));
  graph.reshape(keys, key_rows);
  const Graph::Tensor out = t.query_rows(dq, s.dq_row());
  if (deterministic) {
    graph.multiply(scaled, key_rows, out);
  } else {
    const Graph::Tensor total = graph.memory(dq_sums, CUDNN_DATA_FLOAT, t.of_queries(), Graph::dense(t.of_queries()));
    graph.multiply(scaled, key_rows, total);
    graph.apply(CUDNN_POINTWISE_IDENTITY, total, out);
  }
  return graph;
}

/// What a plan is executed with.
struct Call {
  float scale_value = 0;
  float masked_value = -std::numeric_limits<float>::infinity();
  float one_value = 1;
  std::vector<std::int64_t> ids{};
  std::vector<void*> data{};

  explicit Call(const AttentionShape& s) : scale_value(1.0F / std::sqrt(static_cast<float>(s.head_dim))) {}
  Call(const Call&) = delete;  // `data` points into it
  Call& operator=(const Call&) = delete;

  /// The tensor that lies `bytes` behind an address.
  void tensor(AttentionTensor id, const void* address, std::int64_t bytes) {
    ids.push_back(id);
    data.push_back(const_cast<std::byte*>(static_cast<const std::byte*>(address)) + bytes);
  }
  void number(AttentionTensor id, float& value) {
    ids.push_back(id);
    data.push_back(&value);
  }
};

}  // namespace galvatron::device::cuda::cudnn
