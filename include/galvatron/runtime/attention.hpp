// The attention core: from projected queries, keys and values to the input of the output projection.
//
// Shapes: rows = tokens * b of this rank; q = A / t * head_dim, kv = kv_heads / t * head_dim, qkv = q + 2 kv. It gives
// o (rows, q) and lse (b, heads, queries).
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

/// The elements of a view from one on.
template <class T>
View<T> behind(View<T> all, std::int64_t first) {
  return all.slice(first, all.count - first);
}

/// Queries, keys and values of rows, or their gradients.
template <class T>
struct Projections {
  View<T> q, k, v;
  std::int64_t q_stride, kv_stride;  ///< from row to row
};

/// The heads that a rank has between the projections.
struct AttentionHeads {
  std::int64_t heads, kv_heads, head_dim;
  bool causal;

  /// @param share  of the rank
  AttentionHeads(const LayerSpec& layer, const Share& share)
      : heads(layer.heads / layer.kv_heads * share.count(layer.kv_heads)),
        kv_heads(share.count(layer.kv_heads)),
        head_dim(layer.head_dim),
        causal(layer.causal) {}
  [[nodiscard]] std::int64_t q() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv() const { return kv_heads * head_dim; }
  [[nodiscard]] std::int64_t qkv() const { return q() + 2 * kv(); }

  /// Of a fused projection (rows, qkv).
  template <class T>
  [[nodiscard]] Projections<T> fused(View<T> all) const {
    return {all, behind(all, q()), behind(all, q() + kv()), qkv(), qkv()};
  }
  /// Of queries (rows, q), and keys and values (other rows, 2 kv).
  template <class T>
  [[nodiscard]] Projections<T> separate(View<T> queries, View<T> keys_and_values) const {
    return {queries, keys_and_values, behind(keys_and_values, kv()), q(), 2 * kv()};
  }
};

}  // namespace galvatron::runtime
