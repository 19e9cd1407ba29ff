// The head of language models: final norm and logits of every token; for masked language models (BERT) a linear layer
// and an activation before the norm, and logits with biases.
//
//   x -> [transform -> activation ->] norm -> logits        [masked language models]
//
// Forward computes the loss and at once the gradients (nn/logits.hpp). Backward then has nothing left to do.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/logits.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

template <class D, class T, SequenceKind kind>
class Head : public HeadBase<D, T> {
  using Base = HeadBase<D, T>;
  using Base::c_, Base::layer_, Base::layout_, Base::logits_;

 public:
  using Base::Base;

  /// Rows that have a target.
  [[nodiscard]] std::int64_t targets() const { return c_.rows(); }

  /// x (rows_local, H) becomes the gradient of the loss with respect to x; targets (rows).
  /// @param table   (V/t, H); `d_table` its gradient, which grows
  /// @param rest    the other parameters, `d_rest` their gradients, as layout() says
  /// @param scale   the weight of a token in the loss
  void forward_backward(View<const T> table, View<const T> rest, View<float> d_table, View<float> d_rest,
                        View<const std::int32_t> targets, float scale, View<T> x) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const Region<T, kind, D> region{c_, layer_.hidden};
    const std::int64_t h = layer_.hidden;
    const std::int64_t local = c_.rows_local();
    const bool transforms = layer_.head == HeadKind::masked_language;
    const auto of = [this](auto store, ParameterName name) { return tensor_of(layout_, store, name); };
    const View<const T> gamma = of(rest, ParameterName::norm1_gamma);
    const View<const T> transform = of(rest, ParameterName::transform_weight);
    const View<T> n = ws.take<T>(c_.rows() * h);  // (rows, H)
    const View<float> stats = ws.take<float>(local * 2);
    const View<T> u = transforms ? ws.take<T>(local * h) : x;  // (rows_local, H)
    const View<T> g = transforms ? ws.take<T>(local * h) : x;  // (rows_local, H)

    if (transforms) {
      c_.device.gemm(op::Kind::gemm_nt, local, h, h, x, transform, u, false, of(rest, ParameterName::transform_bias));
      c_.device.activation_forward(layer_.activation, local, h, u, g);
    }
    c_.device.norm_forward(layer_.norm, local, h, layer_.norm_epsilon, g, gamma, of(rest, ParameterName::norm1_beta),
                           region.own(n), stats);
    region.gather(n);
    logits_.cross_entropy(c_.rows(), table, of(rest, ParameterName::logits_bias), d_table,
                          of(d_rest, ParameterName::logits_bias), targets, scale, n);
    c_.device.norm_backward(layer_.norm, local, h, region.reduce(n), g, gamma, stats, {}, g,
                            of(d_rest, ParameterName::norm1_gamma), of(d_rest, ParameterName::norm1_beta));
    if (!transforms) return;
    c_.device.activation_backward(layer_.activation, local, h, u, g, u);
    c_.device.gemm(op::Kind::gemm_tn, h, h, local, u, x, of(d_rest, ParameterName::transform_weight), true, {});
    c_.device.bias_gradient(local, h, u, of(d_rest, ParameterName::transform_bias));
    c_.device.gemm(op::Kind::gemm_nn, local, h, h, u, transform, x, false, {});
  }
};

}  // namespace galvatron::nn
