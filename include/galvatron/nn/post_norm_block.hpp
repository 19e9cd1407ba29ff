// A block whose norms come after the residuals, as BERT has them.
//
//   x -> [qkv -> attention -> out] -> + x = sum1 -> norm1 = n1 -> [in -> activation -> out] -> + n1 = sum2 -> norm2 = y
//         `--- region cut over ---'                               `- tensor-parallel ranks -'
//
// Shapes as in nn/block.hpp. Unless outputs are kept, backward makes n1 again from sum1, and in forward it lies where
// sum2 will be.
#pragma once

#include <cstdint>

#include <galvatron/nn/block.hpp>

namespace galvatron::nn {

template <class D, class T, SequenceKind kind>
class PostNormBlock : Block<D, T, kind> {
  using Base = Block<D, T, kind>;
  using Results = AttentionResults<T>;
  using Base::c_, Base::layer_, Base::core_, Base::recomputes_core_, Base::keeps_outputs_;
  using Base::h_, Base::q_, Base::qkv_, Base::f_, Base::f_in_;

 public:
  /// What backward needs besides the input; x2 is sum1.
  struct Internals : Base::Internals {
    View<T> sum2;  // (rows_local, H)
  };

  using typename Base::Deferred;
  static constexpr bool splits = false;

  using Base::Base, Base::layout, Base::input_elements, Base::carries;

  Internals take_internals(device::Region& from) const {
    Internals in{Base::take_internals(from, false), {}};
    in.sum2 = from.take<T>(c_.rows_local() * h_);
    return in;
  }

  /// x (rows_local, H) -> y (rows_local, H).
  void forward(View<const T> parameters, View<const T> x, const Internals& in, View<T> y) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    forward_to(parameters, x, in, n, y);
  }

  /// The internals again from the input, as forward left them.
  void recompute(View<const T> parameters, View<const T> x, const Internals& in) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    forward_to(parameters, x, in, n, this->region().own(n));
  }

  /// d (rows_local, H): the gradient of the output becomes that of the input. Uses up the internals.
  void backward(View<const T> parameters, View<float> gradients, View<const T> x, const Internals& in, View<T> d) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const std::int64_t rows = c_.rows();
    const View<T> n = ws.take<T>(rows * h_);  // (rows, H)
    // All rows of d; d itself unless the sequence is cut.
    const View<T> whole = kind == SequenceKind::megatron ? ws.take<T>(rows * h_) : d;

    {  // MLP
      const device::Scope inner(ws);
      norm_backward(parameters, gradients, ParameterName::norm2_gamma, ParameterName::norm2_beta, in.sum2, in.stats2,
                    d);
      this->gather(d, whole);
      const View<T> g = this->hidden_place(in);  // (rows, f)
      this->hidden_again(in, g);
      this->mlp_out_weights(gradients, d, whole, g);
      const View<T> d_u = this->hidden_gradient(parameters, whole, in.u, g);
      this->weight_gradient(gradients, ParameterName::mlp_in_weight, f_in_, h_, d_u,
                            this->norm_recompute(in.n1, in.x2, this->weight(parameters, ParameterName::norm1_gamma),
                                                 this->weight(parameters, ParameterName::norm1_beta), in.stats1, n));
      this->bias_gradient(gradients, ParameterName::mlp_in_bias, rows, f_in_, d_u);
      this->input_gradient(parameters, ParameterName::mlp_in_weight, h_, f_in_, d_u, n);
      c_.device.add(d.count, d, this->region().reduce(n), d);
    }
    {  // attention
      norm_backward(parameters, gradients, ParameterName::norm1_gamma, ParameterName::norm1_beta, in.x2, in.stats1, d);
      this->gather(d, whole);
      const Results results = recomputes_core_ ? core_.take_results(ws) : in.results;
      if (recomputes_core_) core_.attend(in.attention, results);
      const View<T> d_o = ws.take<T>(rows * q_);      // (rows, q)
      const View<T> d_qkv = ws.take<T>(rows * qkv_);  // (rows, qkv)
      this->attention_out_weights(gradients, d, whole, results);
      this->input_gradient(parameters, ParameterName::attention_out_weight, q_, h_, whole, d_o);
      core_.backward(in.attention, results, d_o, d_qkv);
      this->rotate(d_qkv, true);
      this->weight_gradient(gradients, ParameterName::qkv_weight, qkv_, h_, d_qkv, this->all_rows(x, n));
      this->bias_gradient(gradients, ParameterName::qkv_bias, rows, qkv_, d_qkv);
      this->input_gradient(parameters, ParameterName::qkv_weight, h_, qkv_, d_qkv, n);
      c_.device.add(d.count, d, this->region().reduce(n), d);
    }
  }

 private:
  // n (rows, H) is scratch; y may be this rank's own rows of it.
  void forward_to(View<const T> parameters, View<const T> x, const Internals& in, View<T> n, View<T> y) {
    const device::Scope scope(c_.workspace);
    const std::int64_t rows = c_.rows();
    {
      const device::Scope inner(c_.workspace);
      const Results results = recomputes_core_ ? core_.take_results(c_.workspace) : in.results;
      const View<T> qkv = core_.take_projection(in.attention);  // (rows, qkv)
      linear(c_, op::Kind::gemm_nt, rows, qkv_, h_, this->all_rows(x, n),
             this->weight(parameters, ParameterName::qkv_weight), qkv, false,
             this->weight(parameters, ParameterName::qkv_bias));
      this->rotate(qkv, false);
      core_.forward(qkv, in.attention, results);
      linear(c_, op::Kind::gemm_nt, rows, h_, q_, results.o,
             this->weight(parameters, ParameterName::attention_out_weight), n, false,
             this->bias_once(parameters, ParameterName::attention_out_bias));
    }
    const View<T> n1 = keeps_outputs_ ? in.n1 : in.sum2;
    add_norm(parameters, ParameterName::norm1_gamma, ParameterName::norm1_beta, x, this->region().reduce(n), in.x2, n1,
             in.stats1);
    const View<T> g = this->hidden_place(in);  // (rows, f)
    this->hidden_units(parameters, this->all_rows(n1, n), in.u, g);
    linear(c_, op::Kind::gemm_nt, rows, h_, f_, g, this->weight(parameters, ParameterName::mlp_out_weight), n, false,
           this->bias_once(parameters, ParameterName::mlp_out_bias));
    add_norm(parameters, ParameterName::norm2_gamma, ParameterName::norm2_beta, n1, this->region().reduce(n), in.sum2,
             y, in.stats2);
  }

  void add_norm(View<const T> parameters, ParameterName gamma, ParameterName beta, View<const T> x, View<const T> r,
                View<T> sum, View<T> y, View<float> stats) {
    c_.device.add_norm_forward(layer_.norm, c_.rows_local(), h_, layer_.norm_epsilon, x, r,
                               this->weight(parameters, gamma), this->weight(parameters, beta), sum, y, stats);
  }
  // d: the gradient of the norm's output becomes that of its input x.
  void norm_backward(View<const T> parameters, View<float> gradients, ParameterName gamma, ParameterName beta,
                     View<const T> x, View<const float> stats, View<T> d) {
    c_.device.norm_backward(layer_.norm, c_.rows_local(), h_, d, x, this->weight(parameters, gamma), stats, {}, d,
                            this->weight(gradients, gamma), this->weight(gradients, beta));
  }
};

}  // namespace galvatron::nn
