// Attention through cuDNN: bfloat16, as graphs of operations in the form that its fused engines recognise.
//
// The library decides which shapes an engine supports; our own kernel computes the others. Backward has two graphs. The
// deterministic one stores dS, (queries, keys) of every head, in its workspace. The other accumulates dQ in float,
// (queries, head_dim) of every head, by atomic additions of all key blocks. If the workspace is too small, samples and
// heads are computed a part at a time.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/device/cuda/cudnn_graph.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device::cuda {

namespace cudnn {

/// The tensors and numbers that a call names.
enum AttentionTensor : std::int64_t { q = 1, k, v, o, lse, d_o, dq, dk, dv, row_sums, dq_sums, scale, masked, one };

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

  [[nodiscard]] Tensor query_rows(AttentionTensor id, std::int64_t row) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, of_queries(), rows(row));
  }
  [[nodiscard]] Tensor key_rows(AttentionTensor id, std::int64_t row) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, of_keys(), rows(row));
  }
  [[nodiscard]] Tensor key_columns(AttentionTensor id, std::int64_t row) const {
    return graph.memory(id, CUDNN_DATA_BFLOAT16, transposed(of_keys()), transposed(rows(row)));
  }
  [[nodiscard]] Tensor statistics() const {
    return graph.memory(lse, CUDNN_DATA_FLOAT, of_rows(), {s.heads * s.lse_row(), s.lse_row(), 1, 1}, sizeof(float));
  }
  [[nodiscard]] Tensor scores() const { return graph.between(CUDNN_DATA_FLOAT, of_scores()); }
  [[nodiscard]] Tensor row_values() const { return graph.between(CUDNN_DATA_FLOAT, of_rows()); }

  /// scale * queries keys^T.
  [[nodiscard]] Tensor scaled_scores(Tensor queries, Tensor keys, Tensor factor) const {
    return graph.apply(CUDNN_POINTWISE_MUL, graph.multiply(queries, keys, scores()), factor, scores());
  }
  /// Minus infinity where the key follows the query.
  [[nodiscard]] Tensor causal(Tensor values) const {
    if (!s.causal) return values;
    const Tensor query = graph.index(values, 2, graph.between(CUDNN_DATA_INT32, of_scores()));
    const Tensor key = graph.index(values, 3, graph.between(CUDNN_DATA_INT32, of_scores()));
    const Tensor seen = graph.at_least(query, key, graph.between(CUDNN_DATA_BOOLEAN, of_scores()));
    return graph.select(values, graph.number(masked), seen, scores());
  }
};

/// o and lse from q, k and v.
inline Graph attention_forward_graph(const AttentionShape& s, const AttentionPart& part) {
  Graph graph;
  const AttentionTensors t{graph, s, part};
  const Tensor values =
      t.causal(t.scaled_scores(t.query_rows(q, s.q_stride), t.key_columns(k, s.kv_stride), graph.number(scale)));

  // Softmax: exp(x - max) / sum, and lse = max + log sum.
  const Tensor greatest = graph.reduce(CUDNN_REDUCE_TENSOR_MAX, values, t.row_values());
  const Tensor less = graph.apply(CUDNN_POINTWISE_SUB, values, greatest, t.scores());
  const Tensor exponentials = graph.apply(CUDNN_POINTWISE_EXP, less, t.scores());
  const Tensor sum = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, exponentials, t.row_values());
  const Tensor logarithm = graph.apply(CUDNN_POINTWISE_LOG, sum, t.row_values());
  graph.apply(CUDNN_POINTWISE_ADD, greatest, logarithm, t.statistics());
  const Tensor weights =
      graph.apply(CUDNN_POINTWISE_DIV, exponentials, sum, graph.between(CUDNN_DATA_BFLOAT16, t.of_scores()));

  graph.multiply(weights, t.key_rows(v, s.kv_stride), t.query_rows(o, s.out_stride));
  return graph;
}

/// dq, dk and dv from what forward had and gave, and d_o. With P the weights and D = row sums of o * d_o:
/// dV = P^T dO; dS = scale P * (dO V^T - D); dQ = dS K; dK = dS^T Q. D is stored in
/// memory between the engine's kernels. A dQ in float that is stored in memory selects cuDNN's accumulating engine.
inline Graph attention_backward_graph(const AttentionShape& s, const AttentionPart& part, bool deterministic) {
  Graph graph;
  const AttentionTensors t{graph, s, part};
  const Tensor queries = t.query_rows(q, s.q_stride);
  const Tensor keys = t.key_columns(k, s.kv_stride);
  const Tensor gradient = t.query_rows(d_o, s.out_stride);
  const Tensor factor = graph.number(scale);

  const Tensor products = graph.apply(CUDNN_POINTWISE_MUL, gradient, t.query_rows(o, s.out_stride),
                                      graph.between(CUDNN_DATA_FLOAT, t.of_queries()));
  const Tensor unscaled = graph.reduce(CUDNN_REDUCE_TENSOR_ADD, products, t.row_values());
  const Tensor sums = graph.apply(CUDNN_POINTWISE_MUL, unscaled, graph.number(one),
                                  graph.memory(row_sums, CUDNN_DATA_FLOAT, t.of_rows(), Graph::dense(t.of_rows())));

  const Tensor less =
      graph.apply(CUDNN_POINTWISE_SUB, t.scaled_scores(queries, keys, factor), t.statistics(), t.scores());
  const Tensor weights = graph.apply(CUDNN_POINTWISE_EXP, t.causal(less), t.scores());

  // out = a^T b, summed over the query heads of a key head; a is (samples, heads, queries, keys).
  const auto multiply_transposed = [&](Tensor a, Tensor b, Tensor out) {
    const Tensor turned =
        graph.reshape(a, graph.between(CUDNN_DATA_BFLOAT16, AttentionTensors::transposed(t.of_scores()),
                                       AttentionTensors::transposed(Graph::dense(t.of_scores()))));
    if (s.heads == s.kv_heads) return graph.multiply(turned, b, out);
    const Tensor all = graph.multiply(turned, b, graph.between(CUDNN_DATA_BFLOAT16, t.of_all_keys()));
    return graph.reduce(CUDNN_REDUCE_TENSOR_ADD, all, out);
  };
  multiply_transposed(weights, gradient, t.key_rows(dv, s.dkv_row()));

  const Tensor raw = graph.multiply(gradient, t.key_columns(v, s.kv_stride), t.scores());
  const Tensor centred = graph.apply(CUDNN_POINTWISE_SUB, raw, sums, t.scores());
  const Tensor weighted = graph.apply(CUDNN_POINTWISE_MUL, centred, weights, t.scores());
  const Tensor scaled =
      graph.apply(CUDNN_POINTWISE_MUL, weighted, factor, graph.between(CUDNN_DATA_BFLOAT16, t.of_scores()));
  multiply_transposed(scaled, queries, t.key_rows(dk, s.dkv_row()));

  const Tensor key_rows = graph.reshape(keys, graph.between(CUDNN_DATA_BFLOAT16, t.of_keys(), t.rows(s.kv_stride)));
  const Tensor out = t.query_rows(dq, s.dq_row());
  if (deterministic) {
    graph.multiply(scaled, key_rows, out);
  } else {
    const Tensor sum = graph.memory(dq_sums, CUDNN_DATA_FLOAT, t.of_queries(), Graph::dense(t.of_queries()));
    graph.apply(CUDNN_POINTWISE_IDENTITY, graph.multiply(scaled, key_rows, sum), out);
  }
  return graph;
}

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
  void tensor(AttentionTensor id, const void* address, std::int64_t bytes = 0) {
    ids.push_back(id);
    data.push_back(const_cast<std::byte*>(static_cast<const std::byte*>(address)) + bytes);
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
                                                bool deterministic) {
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
      return {
          part,
          Plan(attention_backward_graph(s, part, deterministic), target, workspace - row_sums - dq_sums, deterministic),
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
                                       std::int64_t workspace, bool deterministic) {
  const AttentionPart all{s.batch, s.kv_heads};
  if (!backward) return {all, Plan(attention_forward_graph(s, all), target, workspace)};
  if (!deterministic) try {
      return plan_attention_backward(s, target, workspace, false);
    } catch (const Unsupported&) {
    }
  return plan_attention_backward(s, target, workspace, true);
}

/// Why a shape is not even asked about on a card of that compute capability; empty when it may be.
///
/// cuDNN's notes know no gradients of a single key, and none of heads above 128 before Hopper. On Hopper its backward
/// walks 128 keys and 64 queries at a time, and tiles that are not full give NaN where a row's log-sum-exp is far below
/// zero, unless a causal mask covers them (pytorch/pytorch#196678, NVIDIA/cudnn-frontend#628 and #1072).
inline std::string unsuited(const AttentionShape& s, bool backward, int major) {
  if (s.head_dim % 8 != 0 || s.head_dim > 256) return "cuDNN takes heads of a multiple of 8 up to 256 elements";
  for (const std::int64_t row : {s.q_stride, s.kv_stride, s.out_stride, s.dq_row(), s.dkv_row()})
    if (row % 8 != 0) return "cuDNN takes rows on 16-byte boundaries";
  if (backward && s.keys == 1) return "cuDNN has no gradients for a single key";
  if (backward && major == 9 && !s.causal && (s.keys % 128 == 64 || (s.keys % 128 == 0 && s.queries % 64 != 0)))
    return "cuDNN's gradients may be NaN for these lengths without a causal mask";
  if (backward && major < 9 && s.head_dim > 128) return "cuDNN has gradients of heads up to 128 elements on this card";
  return {};
}

}  // namespace cudnn

/// The attention of one GPU, in one stream.
class Attention {
 public:
  /// The workspace starts on a 256-byte boundary.
  /// @param major  of the GPU's compute capability
  /// @param deterministic  backward gives the same bits every time
  Attention(const Stream& stream, View<std::byte> workspace, int major, bool deterministic = true)
      : stream_(stream), workspace_(workspace), major_(major), deterministic_(deterministic) {}

  /// One line for every shape that cuDNN does not support.
  [[nodiscard]] const std::set<std::string>& refusals() const { return refusals_; }

  /// Forward, or with d_o backward. False: nothing was done, cuDNN does not take it.
  bool compute(const AttentionShape& s, Precision precision, const void* q, const void* k, const void* v, const void* o,
               const float* lse, const void* d_o = nullptr, void* dq = nullptr, void* dk = nullptr,
               void* dv = nullptr) {
    const bool backward = d_o != nullptr;
    cudnn::PlannedAttention* planned = plan(s, precision, backward, {q, k, v, o, d_o, dq, dk, dv});
    if (planned == nullptr) return false;
    const cudnn::AttentionPart part = planned->part;
    for (std::int64_t sample = 0; sample < s.batch; sample += part.samples)
      for (std::int64_t group = 0; group < s.kv_heads; group += part.kv_heads) {
        const std::int64_t head = group * (s.heads / s.kv_heads);
        const auto place = [&](std::int64_t row, std::int64_t of) {
          return (sample * row + of * s.head_dim) * static_cast<std::int64_t>(sizeof(bfloat16));
        };
        cudnn::Call call(s, backward);
        call.tensor(cudnn::q, q, place(s.q_stride, head));
        call.tensor(cudnn::k, k, place(s.kv_stride, group));
        call.tensor(cudnn::v, v, place(s.kv_stride, group));
        call.tensor(cudnn::o, o, place(s.out_stride, head));
        call.tensor(cudnn::lse, lse,
                    (sample * s.heads + head) * s.lse_row() * static_cast<std::int64_t>(sizeof(float)));
        if (backward) {
          call.tensor(cudnn::d_o, d_o, place(s.out_stride, head));
          call.tensor(cudnn::dq, dq, place(s.dq_row(), head));
          call.tensor(cudnn::dk, dk, place(s.dkv_row(), group));
          call.tensor(cudnn::dv, dv, place(s.dkv_row(), group));
          call.tensor(cudnn::row_sums, workspace_.data);
          if (planned->dq_sum_bytes > 0) call.tensor(cudnn::dq_sums, workspace_.data, planned->row_sum_bytes);
        }
        try {
          planned->plan.execute(handle_.get(), call.ids, call.data,
                                workspace_.data + planned->row_sum_bytes + planned->dq_sum_bytes);
        } catch (const cudnn::Unsupported& unsupported) {
          throw DeviceFailure("cuDNN: attention failed: " + std::string(unsupported.what()));
        }
      }
    return true;
  }

 private:
  /// Before 9.16, backward is wrong where keys are not a multiple of 128.
  static constexpr std::size_t oldest = 91600;

  cudnn::PlannedAttention* plan(const AttentionShape& s, Precision precision, bool backward,
                                std::initializer_list<const void*> tensors) {
    if (precision != Precision::bf16 || s.keys == 0) return nullptr;
    for (const void* tensor : tensors)
      if (reinterpret_cast<std::uintptr_t>(tensor) % 16 != 0) {
        refusals_.insert(cudnn::to_string(s, backward) + ": cuDNN takes tensors on 16-byte boundaries");
        return nullptr;
      }
    const auto [found, fresh] = plans_.try_emplace(std::pair(s, backward));
    if (fresh) try {
        if (const std::string reason = cudnn::unsuited(s, backward, major_); !reason.empty())
          throw cudnn::Unsupported(reason);
        open();
        found->second = cudnn::plan_attention(s, backward, {.handle = handle_.get()}, workspace_.count, deterministic_);
      } catch (const cudnn::Unsupported& unsupported) {
        refusals_.insert(cudnn::to_string(s, backward) + ": " + unsupported.what());
      }
    return found->second ? &*found->second : nullptr;
  }
  // Makes the handle when it is first needed, which takes its time and memory.
  void open() {
    if (handle_.get() != nullptr) return;
    if (cudnnGetVersion() < oldest)
      throw cudnn::Unsupported("version " + std::to_string(cudnnGetVersion()) + " is older than " +
                               std::to_string(oldest));
    Owner<cudnnHandle_t, cudnnDestroy> handle;
    cudnn::check(cudnnCreate(handle.out()), "handle");
    cudnn::check(cudnnSetStream(handle.get(), stream_.get()), "stream");
    handle_ = std::move(handle);
  }

  const Stream& stream_;
  View<std::byte> workspace_;
  int major_;
  bool deterministic_;
  Owner<cudnnHandle_t, cudnnDestroy> handle_;
  std::set<std::string> refusals_;
  std::map<std::pair<AttentionShape, bool>, std::optional<cudnn::PlannedAttention>> plans_;  ///< forward, backward
};

}  // namespace galvatron::device::cuda
