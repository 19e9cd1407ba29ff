// The attention core: from projected queries, keys and values to the input of the output projection.
//
// One class for each way of splitting a sequence, all with the same members, which Block calls. This is the core of a
// rank that has whole sequences; ulysses.hpp and ring.hpp have the others.
//
//   projection (rows, q + 2 kv) -> input (what the core reads; kept) -> results (kept, or recomputed by attend())
//
// Shapes: rows = tokens * b of this rank; q = A / t * head_dim, kv = kv_heads / t * head_dim, qkv = q + 2 kv.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/nn/context.hpp>

namespace galvatron::nn {

/// What the core gives.
template <class T>
struct AttentionResults {
  View<T> core;     ///< as the core has it
  View<float> lse;  ///< (b, heads, queries) of the core
  View<T> o;        ///< (rows, q), as the output projection reads it; where layouts agree the same memory as `core`
};

/// The heads that a rank has between the projections.
struct AttentionHeads {
  std::int64_t heads, kv_heads, head_dim;
  bool causal;

  AttentionHeads(const LayerSpec& layer, int tensor)
      : heads(layer.heads / tensor),
        kv_heads(layer.kv_heads / tensor),
        head_dim(layer.head_dim),
        causal(layer.causal) {}
  [[nodiscard]] std::int64_t q() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv() const { return kv_heads * head_dim; }
  [[nodiscard]] std::int64_t qkv() const { return q() + 2 * kv(); }
};

template <class D, class T, SequenceKind kind>
class Attention {
  static_assert(kind == SequenceKind::none);

 public:
  Attention(Context<D>& context, const LayerSpec& layer) : c_(context), heads_(layer, context.spec.tensor) {}

  /// Room for the core's input.
  View<T> take_input(device::Region& from) const { return from.take<T>(c_.rows() * heads_.qkv()); }
  AttentionResults<T> take_results(device::Region& from) const {
    const View<T> o = from.take<T>(c_.rows() * heads_.q());
    return {o, from.take<float>(c_.samples * heads_.heads * c_.sequence), o};
  }
  /// Where the projection (rows, qkv) goes: into the core's input where that is the same.
  View<T> take_projection(View<T> input) const { return input; }

  /// @param bias  of the scores; backward adds to its gradient
  void forward(View<T> /*projection*/, View<T> input, const AttentionResults<T>& results,
               const device::AttentionBias& bias = {}) {
    attend(input, results, bias);
  }
  /// The results from the input.
  void attend(View<T> input, const AttentionResults<T>& r, const device::AttentionBias& bias = {}) {
    c_.device.attention_forward(shape(), input, k_of(input), v_of(input), r.core, r.lse, bias);
  }
  /// d_o (rows, q) -> d_qkv (rows, qkv).
  void backward(View<T> input, const AttentionResults<T>& r, View<T> d_o, View<T> d_qkv,
                const device::AttentionBias& bias = {}) {
    const device::Scope scope(c_.workspace);
    backward(input, r, d_o, c_.workspace.template take<float>(r.lse.count), d_qkv, bias);
  }
  /// The same with scratch of the caller: delta (b, heads, queries).
  void backward(View<T> input, const AttentionResults<T>& r, View<T> d_o, View<float> delta, View<T> d_qkv,
                const device::AttentionBias& bias = {}) {
    c_.device.attention_backward(shape(), input, k_of(input), v_of(input), r.core, r.lse, d_o, d_qkv, k_of(d_qkv),
                                 v_of(d_qkv), delta, bias);
  }

 private:
  [[nodiscard]] device::AttentionShape shape() const {
    return {.batch = c_.samples,
            .queries = c_.sequence,
            .keys = c_.sequence,
            .heads = heads_.heads,
            .kv_heads = heads_.kv_heads,
            .head_dim = heads_.head_dim,
            .causal = heads_.causal,
            .q_stride = heads_.qkv(),
            .kv_stride = heads_.qkv(),
            .out_stride = heads_.q()};
  }
  View<T> k_of(View<T> qkv) const { return qkv.slice(heads_.q(), qkv.count - heads_.q()); }
  View<T> v_of(View<T> qkv) const {
    const std::int64_t skip = heads_.q() + heads_.kv();
    return qkv.slice(skip, qkv.count - skip);
  }

  Context<D>& c_;
  AttentionHeads heads_;
};

}  // namespace galvatron::nn
