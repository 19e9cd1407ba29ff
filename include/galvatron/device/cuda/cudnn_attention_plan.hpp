// Attention through cuDNN: bfloat16, as graphs of operations in the form that its fused engines recognise.
//
// The library decides which shapes an engine supports; our own kernel computes the others. Backward has two graphs. The
// deterministic one stores dS, (queries, keys) of every head, in its workspace. The other accumulates dQ in float,
// (queries, head_dim) of every head, by atomic additions of all key blocks. If the workspace is too small, samples and
// heads are computed a part at a time.
//
// Packed documents are samples that begin where a table of offsets says, with lengths of their own up to that of the
// shape: products stop there, and scores outside are masked before the causal mask is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/cudnn_graph.hpp>
#include <galvatron/device/cuda/document_groups.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda::cudnn {

/// The tensors and numbers that a call names. Offsets are in the order of DocumentGroups.
enum AttentionTensor : std::int64_t {
  q = 1,
  k,
  v,
  o,
  lse,
  d_o,
  dq,
  dk,
  dv,
  row_sums,
  dq_sums,
  scale,
  masked,
  one,
  query_lengths,
  key_lengths,
  offsets  ///< the first of several
};

/// The samples and key/value heads that are computed at a time.
struct AttentionPart {
  std::int64_t samples = 0, kv_heads = 0;
  [[nodiscard]] constexpr std::int64_t heads(const AttentionShape& s) const {
    return kv_heads * (s.heads / s.kv_heads);
  }
};

inline std::string to_string(const AttentionShape& s, bool backward) {
  return std::string(backward ? "backward" : "forward") + " attention of " + std::to_string(s.batch) + " x " +
         std::to_string(s.queries) + " queries, " + std::to_string(s.keys) + " keys, " + std::to_string(s.heads) + "/" +
         std::to_string(s.kv_heads) + " heads of " + std::to_string(s.head_dim) + (s.causal ? ", causal" : "");
}

/// The tensors of a part of a shape, as (samples, heads, tokens, head_dim). Where `packed`, samples are documents of up
/// to that many tokens: their rows follow each other, and log-sum-exps are by token, those of its heads next to each
/// other.
struct AttentionTensors {
  Graph& graph;
  const AttentionShape& s;
  const AttentionPart& part;
  bool packed = false;
  Tensor queries = length(query_lengths), keys = length(key_lengths);  ///< null where not packed
  Tensor q_offsets = offset(DocumentGroups::of_q), kv_offsets = offset(DocumentGroups::of_kv);
  Tensor out_offsets = offset(DocumentGroups::of_out), row_offsets = offset(DocumentGroups::of_statistics);

  /// Row token * batch + sample, heads next to each other; of a document, row token.
  [[nodiscard]] Four rows(std::int64_t row) const {
    return packed ? Four{s.queries * row, s.head_dim, row, 1} : Four{row, s.head_dim, s.batch * row, 1};
  }
  [[nodiscard]] static Four transposed(const Four& f) { return {f[0], f[1], f[3], f[2]}; }
  [[nodiscard]] Four of_queries() const { return {part.samples, part.heads(s), s.queries, s.head_dim}; }
  [[nodiscard]] Four of_keys() const { return {part.samples, part.kv_heads, s.keys, s.head_dim}; }
  [[nodiscard]] Four of_all_keys() const { return {part.samples, part.heads(s), s.keys, s.head_dim}; }
  [[nodiscard]] Four of_scores() const { return {part.samples, part.heads(s), s.queries, s.keys}; }
  [[nodiscard]] Four of_rows() const { return {part.samples, part.heads(s), s.queries, 1}; }

  [[nodiscard]] Tensor query_rows(AttentionTensor id, std::int64_t row, Tensor begins) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, of_queries(), rows(row), 16, begins);
  }
  [[nodiscard]] Tensor key_rows(AttentionTensor id, std::int64_t row, Tensor begins) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, of_keys(), rows(row), 16, begins);
  }
  [[nodiscard]] Tensor key_columns(AttentionTensor id, std::int64_t row, Tensor begins) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, transposed(of_keys()), transposed(rows(row)), 16, begins);
  }
  [[nodiscard]] Tensor statistics() const {
    const Four distances =
        packed ? Four{s.heads * s.queries, 1, s.heads, 1} : Four{s.heads * s.lse_row(), s.lse_row(), 1, 1};
    return graph.memory(lse, CUDNN_DATA_FLOAT, of_rows(), distances, sizeof(float), row_offsets);
  }
  [[nodiscard]] Tensor scores() const { return graph.between(CUDNN_DATA_FLOAT, of_scores()); }
  [[nodiscard]] Tensor row_values() const { return graph.between(CUDNN_DATA_FLOAT, of_rows()); }
  [[nodiscard]] Tensor test(cudnnPointwiseMode_t mode, Tensor x, Tensor b) const {
    return graph.test(mode, x, b, graph.between(CUDNN_DATA_BOOLEAN, of_scores()));
  }
  [[nodiscard]] Tensor index(Tensor values, std::int64_t axis) const {
    return graph.index(values, axis, graph.between(CUDNN_DATA_INT32, of_scores()));
  }

  /// a b^T of two tensors with rows of queries and columns of keys.
  [[nodiscard]] Tensor multiply_heads(Tensor a, Tensor b) const {
    return graph.multiply(a, b, scores(), {.rows = queries, .columns = keys});
  }
  /// scale * queries keys^T; minus infinity outside a document.
  [[nodiscard]] Tensor scaled_scores(Tensor of_q, Tensor of_k, Tensor factor) const {
    const Tensor values = graph.apply(CUDNN_POINTWISE_MUL, multiply_heads(of_q, of_k), factor, scores());
    if (!packed) return values;
    const Tensor rows_inside = test(CUDNN_POINTWISE_CMP_LT, index(values, 2), queries);
    const Tensor columns_inside = test(CUDNN_POINTWISE_CMP_LT, index(values, 3), keys);
    const Tensor inside = test(CUDNN_POINTWISE_LOGICAL_AND, rows_inside, columns_inside);
    return graph.select(values, graph.number(masked), inside, scores());
  }
  /// Minus infinity where the key follows the query.
  [[nodiscard]] Tensor causal(Tensor values) const {
    if (!s.causal) return values;
    const Tensor seen = test(CUDNN_POINTWISE_CMP_GE, index(values, 2), index(values, 3));
    return graph.select(values, graph.number(masked), seen, scores());
  }

  /// Of each document; null where not packed.
  [[nodiscard]] Tensor length(AttentionTensor id) const {
    if (!packed) return nullptr;
    return graph.memory(id, CUDNN_DATA_INT32, {part.samples, 1, 1, 1}, {1, 1, 1, 1}, sizeof(std::int32_t));
  }
  /// Where the documents of tensors of that kind begin; null where not packed.
  [[nodiscard]] Tensor offset(DocumentGroups::Rows kind) const {
    if (!packed) return nullptr;
    return graph.memory(offsets + std::int64_t{kind}, CUDNN_DATA_INT64, {part.samples + 1, 1, 1, 1}, {1, 1, 1, 1},
                        sizeof(std::int64_t));
  }
};

/// o and lse from q, k and v.
inline Graph attention_forward_graph(const AttentionShape& s, const AttentionPart& part, bool packed = false) {
  Graph graph;
  const AttentionTensors t{graph, s, part, packed};
  const Tensor values = t.causal(t.scaled_scores(t.query_rows(q, s.q_stride, t.q_offsets),
                                                 t.key_columns(k, s.kv_stride, t.kv_offsets), graph.number(scale)));

  // Softmax: exp(x - max) / sum, and lse = max + log sum.
  const Tensor greatest = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, values, t.row_values());
  const Tensor less = graph.apply(CUDNN_POINTWISE_SUB, values, greatest, t.scores());
  const Tensor exponentials = graph.apply(CUDNN_POINTWISE_EXP, less, t.scores());
  const Tensor sum = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, t.row_values());
  const Tensor logarithm = graph.apply(CUDNN_POINTWISE_LOG, sum, t.row_values());
  graph.apply(CUDNN_POINTWISE_ADD, greatest, logarithm, t.statistics());
  const Tensor weights =
      graph.apply(CUDNN_POINTWISE_DIV, exponentials, sum, graph.between(CUDNN_DATA_BFLOAT16, t.of_scores()));

  graph.multiply(weights, t.key_rows(v, s.kv_stride, t.kv_offsets), t.query_rows(o, s.out_stride, t.out_offsets),
                 {.rows = t.queries, .summands = t.keys});
  return graph;
}

/// dq, dk and dv from what forward had and gave, and d_o. With P the weights and D = row sums of o * d_o:
/// dV = P^T dO; dS = scale P * (dO V^T - D); dQ = dS K; dK = dS^T Q. D is stored in
/// memory between the engine's kernels. A dQ in float that is stored in memory selects cuDNN's accumulating engine.
inline Graph attention_backward_graph(const AttentionShape& s, const AttentionPart& part, bool deterministic,
                                      bool packed = false) {
  Graph graph;
  const AttentionTensors t{graph, s, part, packed};
  const Tensor queries = t.query_rows(q, s.q_stride, t.q_offsets);
  const Tensor keys = t.key_columns(k, s.kv_stride, t.kv_offsets);
  const Tensor gradient = t.query_rows(d_o, s.out_stride, t.out_offsets);
  const Tensor dkv_offsets = t.offset(DocumentGroups::of_dkv);
  const Tensor factor = graph.number(scale);

  const Tensor products = graph.apply(CUDNN_POINTWISE_MUL, gradient, t.query_rows(o, s.out_stride, t.out_offsets),
                                      graph.between(CUDNN_DATA_FLOAT, t.of_queries()));
  const Tensor unscaled = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, t.row_values());
  const Tensor sums = graph.apply(CUDNN_POINTWISE_MUL, unscaled, graph.number(one),
                                  graph.memory(row_sums, CUDNN_DATA_FLOAT, t.of_rows(), Graph::dense(t.of_rows())));

  const Tensor less =
      graph.apply(CUDNN_POINTWISE_SUB, t.scaled_scores(queries, keys, factor), t.statistics(), t.scores());
  const Tensor weights = graph.apply(CUDNN_POINTWISE_EXP, t.causal(less), t.scores());

  // out = a^T b, summed over the query heads of a key head; a is (samples, heads, queries, keys).
  const auto multiply_transposed = [&](Tensor a, Tensor b, Tensor out) {
    const Extents valid{.rows = t.keys, .summands = t.queries};
    const Tensor turned =
        graph.reshape(a, graph.between(CUDNN_DATA_BFLOAT16, AttentionTensors::transposed(t.of_scores()),
                                       AttentionTensors::transposed(Graph::dense(t.of_scores()))));
    if (s.heads == s.kv_heads) return graph.multiply(turned, b, out, valid);
    const Tensor all = graph.multiply(turned, b, graph.between(CUDNN_DATA_BFLOAT16, t.of_all_keys()), valid);
    return graph.reduce(CUDNN_REDUCE_TENSOR_ADD, all, out);
  };
  multiply_transposed(weights, gradient, t.key_rows(dv, s.dkv_row(), dkv_offsets));

  const Tensor raw = t.multiply_heads(gradient, t.key_columns(v, s.kv_stride, t.kv_offsets));
  const Tensor centred = graph.apply(CUDNN_POINTWISE_SUB, raw, sums, t.scores());
  const Tensor weighted = graph.apply(CUDNN_POINTWISE_MUL, centred, weights, t.scores());
  const Tensor scaled =
      graph.apply(CUDNN_POINTWISE_MUL, weighted, factor, graph.between(CUDNN_DATA_BFLOAT16, t.of_scores()));
  multiply_transposed(scaled, queries, t.key_rows(dk, s.dkv_row(), dkv_offsets));

  const Tensor key_rows =
      graph.reshape(keys, graph.between(CUDNN_DATA_BFLOAT16, t.of_keys(), t.rows(s.kv_stride), t.kv_offsets));
  const Tensor out = t.query_rows(dq, s.dq_row(), t.offset(DocumentGroups::of_dq));
  const Extents valid{.rows = t.queries, .summands = t.keys};
  if (deterministic) {
    graph.multiply(scaled, key_rows, out, valid);
  } else {
    const Tensor sum = graph.memory(dq_sums, CUDNN_DATA_FLOAT, t.of_queries(), Graph::dense(t.of_queries()));
    graph.apply(CUDNN_POINTWISE_IDENTITY, graph.multiply(scaled, key_rows, sum, valid), out);
  }
  return graph;
}

/// Where the tensors of a call begin.
struct AttentionData {
  const void *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;
  const float* lse = nullptr;
  const void* d_o = nullptr;  ///< null: forward
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;

  [[nodiscard]] bool backward() const { return d_o != nullptr; }
  [[nodiscard]] bool on_boundaries() const {
    for (const void* tensor :
         {q, k, v, o, d_o, static_cast<const void*>(dq), static_cast<const void*>(dk), static_cast<const void*>(dv)})
      if (reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0) return false;
    return true;
  }
};

/// What a plan is executed with: its numbers, and where its tensors lie.
struct Call {
  static constexpr float masked_value = -std::numeric_limits<float>::infinity();
  static constexpr float one_value = 1;
  float scale_value = 0;
  std::vector<std::int64_t> ids{};
  std::vector<void*> data{};

  Call(const AttentionShape& s, bool backward) : scale_value(s.score_scale()) {
    tensor(scale, &scale_value);
    if (s.causal) tensor(masked, &masked_value);
    if (backward) tensor(one, &one_value);
  }
  Call(const Call&) = delete;  // `data` points into it
  Call& operator=(const Call&) = delete;

  /// The tensor that lies `bytes` behind an address.
  void tensor(std::int64_t id, const void* address, std::int64_t bytes = 0) {
    ids.push_back(id);
    data.push_back(const_cast<std::byte*>(static_cast<const std::byte*>(address)) + bytes);
  }
  /// Tensors of a part from sample `sample` and key/value head `group` on.
  void tensors(const AttentionShape& s, const AttentionData& from, std::int64_t sample, std::int64_t group) {
    add(s, from, sample, group, (sample * s.heads + group * (s.heads / s.kv_heads)) * s.lse_row());
  }
  /// The same of packed documents from slot `slot` on, whose log-sum-exps are by token.
  void tensors(const AttentionShape& s, const AttentionData& from, const DocumentGroups::Table& table,
               std::int64_t slot, std::int64_t group) {
    add(s, from, 0, group, group * (s.heads / s.kv_heads));
    tensor(query_lengths, table.lengths + slot);
    tensor(key_lengths, table.lengths + slot);
    for (const DocumentGroups::Rows kind : DocumentGroups::kinds_of(from.backward()))
      tensor(offsets + std::int64_t{kind}, table.offsets[static_cast<std::size_t>(kind)] + slot);
  }

 private:
  void add(const AttentionShape& s, const AttentionData& from, std::int64_t sample, std::int64_t group,
           std::int64_t statistic) {
    const std::int64_t head = group * (s.heads / s.kv_heads);
    const auto place = [&](std::int64_t row, std::int64_t of) {
      return (sample * row + of * s.head_dim) * static_cast<std::int64_t>(sizeof(bfloat16));
    };
    tensor(q, from.q, place(s.q_stride, head));
    tensor(k, from.k, place(s.kv_stride, group));
    tensor(v, from.v, place(s.kv_stride, group));
    tensor(o, from.o, place(s.out_stride, head));
    tensor(lse, from.lse + statistic);
    if (!from.backward()) return;
    tensor(d_o, from.d_o, place(s.out_stride, head));
    tensor(dq, from.dq, place(s.dq_row(), head));
    tensor(dk, from.dk, place(s.dkv_row(), group));
    tensor(dv, from.dv, place(s.dkv_row(), group));
  }
};

/// A plan for a part of the samples and heads, executed for one part after the other. The workspace has its row sums,
/// its float dq, and the plan's own workspace.
struct PlannedAttention {
  AttentionPart part{};
  Plan plan;
  std::int64_t row_sum_bytes = 0;
  std::int64_t dq_sum_bytes = 0;
};

/// Backward for as many samples and heads as fit the workspace. Throws Unsupported.
inline PlannedAttention plan_attention_backward(const AttentionShape& s, const Target& target, std::int64_t workspace,
                                                bool deterministic, bool packed = false) {
  AttentionPart part{s.batch, s.kv_heads};
  const auto next_divisor = [](std::int64_t& part_of_all, std::int64_t all) {
    do --part_of_all;
    while (all % part_of_all != 0);
  };
  while (true) {
    const auto floats = [&](std::int64_t of_a_row) {
      return round_up(part.samples * part.heads(s) * s.queries * of_a_row * static_cast<std::int64_t>(sizeof(float)),
                      256);
    };
    const std::int64_t row_sums = floats(1);
    const std::int64_t dq_sums = deterministic ? 0 : floats(s.head_dim);
    try {
      return {part,
              Plan(attention_backward_graph(s, part, deterministic, packed), target, workspace - row_sums - dq_sums,
                   deterministic),
              row_sums, dq_sums};
    } catch (const InsufficientWorkspace&) {
      if (part.samples == 1 && part.kv_heads == 1) throw;
    }
    if (part.samples > 1)
      next_divisor(part.samples, s.batch);
    else
      next_divisor(part.kv_heads, s.kv_heads);
  }
}

/// Forward for all samples and heads, or backward; deterministic too where the other way does not take the shape.
/// Throws Unsupported.
inline PlannedAttention plan_attention(const AttentionShape& s, bool backward, const Target& target,
                                       std::int64_t workspace, bool deterministic, bool packed = false) {
  const AttentionPart all{s.batch, s.kv_heads};
  if (!backward) return {all, Plan(attention_forward_graph(s, all, packed), target, workspace)};
  if (!deterministic) try {
      return plan_attention_backward(s, target, workspace, false, packed);
    } catch (const Unsupported&) {
    }
  return plan_attention_backward(s, target, workspace, true, packed);
}

/// Why a shape is not even asked about on a card of that compute capability; empty when it may be.
///
/// cuDNN's notes know no gradients of a single key, and none of heads above 128 before Hopper. On Hopper its backward
/// walks 128 keys and 64 queries at a time, and tiles that are not full give NaN where a row's log-sum-exp is far below
/// zero, unless a causal mask covers them (pytorch/pytorch#196678, NVIDIA/cudnn-frontend#628 and #1072). Before Hopper,
/// its backward reads log-sum-exps as if heads had no distance of their own (NVIDIA/cudnn-frontend#304).
inline std::string unsuited(const AttentionShape& s, bool backward, int major) {
  if (s.sliding_window > 0) return "sliding windows are left to the library's own kernels";
  if (s.score_cap > 0) return "soft-capped scores are left to the library's own kernels";
  if (s.head_dim % 8 != 0 || s.head_dim > 256) return "cuDNN takes heads of a multiple of 8 up to 256 elements";
  for (const std::int64_t row : {s.q_stride, s.kv_stride, s.out_stride, s.dq_row(), s.dkv_row()})
    if (row % 8 != 0) return "cuDNN takes rows on 16-byte boundaries";
  if (backward && s.keys == 1) return "cuDNN has no gradients for a single key";
  if (backward && major == 9 && !s.causal && (s.keys % 128 == 64 || (s.keys % 128 == 0 && s.queries % 64 != 0)))
    return "cuDNN's gradients may be NaN for these lengths without a causal mask";
  if (backward && major < 9 && s.head_dim > 128) return "cuDNN has gradients of heads up to 128 elements on this card";
  if (backward && major < 9 && s.lse_row() != s.queries)
    return "cuDNN's gradients on this card take log-sum-exps that lie next to each other";
  return {};
}

/// The same of packed documents, which are asked about on Hopper. Before, cuDNN has no deterministic gradients of them
/// and takes no log-sum-exps by token (NVIDIA/cudnn-frontend, its checks for SM 8x). Before version 9.18 gradients on
/// Hopper did not set up their workspace for all lengths (NVIDIA/TransformerEngine#2186).
inline std::string unsuited_documents(const AttentionShape& s, bool backward, int major) {
  constexpr std::size_t oldest = 91800;
  if (major != 9) return "cuDNN is asked for packed documents on Hopper only";
  if (cudnnGetVersion() < oldest)
    return "version " + std::to_string(cudnnGetVersion()) + " is older than " + std::to_string(oldest);
  return unsuited(s, backward, major);
}

}  // namespace galvatron::device::cuda::cudnn
