// The attention core of images with windows: tokens attend to those of their own window, with biases by distance.
//
// Tensor ranks have whole images of some heads, and the biases of those heads. Shapes as in runtime/attention.hpp.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/runtime/attention.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

template <class D, class T>
class WindowAttention {
 public:
  WindowAttention(Context<D>& context, const LayerSpec& layer)
      : c_(context), heads_(layer, context.spec.tensor), window_(layer.window), shift_(layer.shift) {}

  /// @param table  of biases (bias rows, A / t)
  void forward(View<T> qkv, View<const T> table, const AttentionResults<T>& r) {
    const Projections<T> in = heads_.fused(qkv);
    c_.device.window_attention_forward(shape(), in.q, in.k, in.v, table, r.o, r.lse);
  }
  /// @param d_table  of the table: grows
  void backward(View<T> qkv, View<const T> table, const AttentionResults<T>& r, View<T> d_o, View<T> d_qkv,
                View<float> d_table) {
    const Projections<T> in = heads_.fused(qkv);
    const Projections<T> d = heads_.fused(d_qkv);
    c_.device.window_attention_backward(shape(), in.q, in.k, in.v, table, r.lse, d_o, d.q, d.k, d.v, d_table);
  }

 private:
  [[nodiscard]] device::WindowShape shape() const {
    return {.batch = c_.samples,
            .side = side_of_square(c_.sequence),
            .window = window_,
            .shift = shift_,
            .heads = heads_.heads,
            .head_dim = heads_.head_dim,
            .stride = heads_.qkv(),
            .out_stride = heads_.q()};
  }

  Context<D>& c_;
  AttentionHeads heads_;
  std::int64_t window_;
  std::int64_t shift_;
};

}  // namespace galvatron::runtime
