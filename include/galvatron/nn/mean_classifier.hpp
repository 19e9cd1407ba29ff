// The head of a model of images without a class token (Swin): norm, mean over the tokens, logits over classes.
//
// Under Megatron sequence parallelism every tensor rank adds up its own tokens. Shapes as in nn/block.hpp.
#pragma once

#include <cstdint>

#include <galvatron/device/device.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/logits.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

/// The arithmetic of a HeadLayer.
template <class D, class T, SequenceKind kind>
class MeanClassifier : public HeadBase<D, T> {
  using Base = HeadBase<D, T>;
  using Base::c_, Base::layer_, Base::layout_, Base::logits_;

 public:
  using Base::Base;

  /// Rows that have a target: the samples.
  [[nodiscard]] std::int64_t targets() const { return c_.samples; }

  /// x (rows_local, H) becomes the gradient of the loss with respect to x; targets (b) are classes. The other
  /// arguments as for Head.
  void forward_backward(View<const T> table, View<const T> rest, View<float> d_table, View<float> d_rest,
                        View<const std::int32_t> targets, float scale, View<T> x) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const std::int64_t h = layer_.hidden;
    const std::int64_t b = c_.samples;
    const std::int64_t local = c_.rows_local();
    const float share = 1.0F / static_cast<float>(c_.sequence);
    const auto of = [this](auto store, ParameterName name) { return tensor_of(layout_, store, name); };
    const View<const T> gamma = of(rest, ParameterName::norm1_gamma);
    const View<T> n = ws.take<T>(local * h);  // (rows_local, H)
    const View<T> mean = ws.take<T>(b * h);   // (b, H)
    const View<float> stats = ws.take<float>(local * 2);
    c_.device.norm_forward(layer_.norm, local, h, layer_.norm_epsilon, x, gamma, of(rest, ParameterName::norm1_beta), n,
                           stats);
    c_.device.pool_forward(local / b, b, h, share, n, mean);
    if constexpr (kind == SequenceKind::megatron) c_.tensor.all_reduce(mean, comm::ReduceOp::sum);
    logits_.cross_entropy(b, table, of(rest, ParameterName::logits_bias), d_table,
                          of(d_rest, ParameterName::logits_bias), targets, scale, mean);
    if (c_.spec.tensor > 1) c_.tensor.all_reduce(mean, comm::ReduceOp::sum);
    c_.device.pool_backward(local / b, b, h, share, mean, n);
    c_.device.norm_backward(layer_.norm, local, h, n, x, gamma, stats, {}, x, of(d_rest, ParameterName::norm1_gamma),
                            of(d_rest, ParameterName::norm1_beta));
  }
};

}  // namespace galvatron::nn
