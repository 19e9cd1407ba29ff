// The attention core of images with windows: tokens attend to those of their own window, with biases by distance.
//
// Tensor ranks have whole images of some heads, and the biases of those heads. The members are those of
// nn/attention.hpp, whose shapes these are too.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/model/image_grid.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/nn/attention.hpp>
#include <galvatron/nn/context.hpp>

namespace galvatron::nn {

template <class D, class T, SequenceKind kind>
class WindowAttention {
  static_assert(kind == SequenceKind::none || kind == SequenceKind::megatron);

 public:
  WindowAttention(Context<D>& context, const LayerSpec& layer)
      : c_(context), heads_(layer, context.spec.tensor), window_(layer.window), shift_(layer.shift) {}

  /// The table of biases (bias rows, A / t) of the calls that follow, and its gradient, which backward() adds to.
  void use(View<const T> table, View<float> d_table) {
    table_ = table;
    d_table_ = d_table;
  }

  View<T> take_input(device::Region& from) const { return from.take<T>(c_.rows() * heads_.qkv()); }
  AttentionResults<T> take_results(device::Region& from) const {
    const View<T> o = from.take<T>(c_.rows() * heads_.q());
    return {o, from.take<float>(c_.rows() * heads_.heads), o};
  }
  View<T> take_projection(View<T> input) const { return input; }

  void forward(View<T> /*projection*/, View<T> input, const AttentionResults<T>& results) { attend(input, results); }
  void attend(View<T> input, const AttentionResults<T>& r) {
    c_.device.window_attention_forward(shape(), input, part(input, 1), part(input, 2), table_, r.core, r.lse);
  }
  void backward(View<T> input, const AttentionResults<T>& r, View<T> d_o, View<T> d_qkv) {
    c_.device.window_attention_backward(shape(), input, part(input, 1), part(input, 2), table_, r.lse, d_o, d_qkv,
                                        part(d_qkv, 1), part(d_qkv, 2), d_table_);
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
  // Queries, keys or values.
  View<T> part(View<T> qkv, std::int64_t number) const {
    return qkv.slice(number * heads_.q(), qkv.count - number * heads_.q());
  }

  Context<D>& c_;
  AttentionHeads heads_;
  std::int64_t window_;
  std::int64_t shift_;
  View<const T> table_;
  View<float> d_table_;
};

}  // namespace galvatron::nn
