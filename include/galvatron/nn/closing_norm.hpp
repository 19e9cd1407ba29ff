// ClosingNorm: the norm at the end of a layer, where the layer has one (LayerSpec::closing_norm). Shapes as in
// nn/block.hpp.
#pragma once

#include <galvatron/device/device.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

template <class D, class T>
class ClosingNorm {
 public:
  /// What backward needs; empty without a norm.
  struct Internals {
    View<T> sum;        // (rows_local, H): what the norm gets
    View<float> stats;  // (rows_local, 2)
  };

  /// All three belong to the layer and live as long.
  ClosingNorm(Context<D>& context, const LayerSpec& layer, const ParameterLayout& layout)
      : c_(context), layer_(layer), layout_(layout) {}
  ClosingNorm(const ClosingNorm&) = delete;
  ClosingNorm& operator=(const ClosingNorm&) = delete;

  [[nodiscard]] bool exists() const { return layer_.closing_norm; }
  Internals take_internals(device::Region& from) const {
    if (!exists()) return {};
    const View<T> sum = from.take<T>(c_.rows_local() * layer_.hidden);
    return {sum, from.take<float>(c_.rows_local() * 2)};
  }
  /// Where the layer puts what the norm gets: y itself without a norm.
  View<T> input(const Internals& in, View<T> y) const { return exists() ? in.sum : y; }

  /// From input() to y (rows_local, H).
  void forward(View<const T> parameters, const Internals& in, View<T> y) const {
    if (!exists()) return;
    c_.device.norm_forward(layer_.norm, c_.rows_local(), layer_.hidden, layer_.norm_epsilon, in.sum,
                           of(parameters, ParameterName::closing_gamma), of(parameters, ParameterName::closing_beta), y,
                           in.stats);
  }
  /// From x + r (rows_local, H) to y (rows_local, H), which may be r; writes the sum to input().
  void add_forward(View<const T> parameters, View<const T> x, View<const T> r, const Internals& in, View<T> y) const {
    if (!exists()) return c_.device.add(y.count, x, r, y);
    c_.device.add_norm_forward(layer_.norm, c_.rows_local(), layer_.hidden, layer_.norm_epsilon, x, r,
                               of(parameters, ParameterName::closing_gamma),
                               of(parameters, ParameterName::closing_beta), in.sum, y, in.stats);
  }
  /// d (rows_local, H): the gradient of y becomes that of input(). `parameters` may be empty without a norm.
  void backward(View<const T> parameters, View<float> gradients, const Internals& in, View<T> d) const {
    if (!exists()) return;
    c_.device.norm_backward(layer_.norm, c_.rows_local(), layer_.hidden, d, in.sum,
                            of(parameters, ParameterName::closing_gamma), in.stats, {}, d,
                            of(gradients, ParameterName::closing_gamma), of(gradients, ParameterName::closing_beta));
  }

 private:
  template <class U>
  View<U> of(View<U> store, ParameterName name) const {
    return tensor_of(layout_, store, name);
  }

  Context<D>& c_;
  const LayerSpec& layer_;
  const ParameterLayout& layout_;
};

}  // namespace galvatron::nn
