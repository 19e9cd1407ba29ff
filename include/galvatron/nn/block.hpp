// A Transformer block: attention and MLP, each behind a norm and a residual.
//
//   x -> norm1 -> [qkv -> attention -> out] -> + x = x2 -> norm2 -> [in -> activation -> out] -> + x2 = y
//                  `--- region cut over ---'                         `- tensor-parallel ranks -'
//
// Shapes: rows = S / c * b tokens, row s * b + i; rows_local = rows / t under Megatron sequence parallelism, else rows;
// q = A / t * head_dim, qkv = q + 2 * (kv_heads / t) * head_dim, f = ffn / t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/nn/attention.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/linear.hpp>
#include <galvatron/nn/parameter_store.hpp>
#include <galvatron/nn/ring.hpp>
#include <galvatron/nn/ulysses.hpp>

namespace galvatron::nn {

/// @tparam Core  the attention core: see nn/attention.hpp
template <class D, class T, SequenceKind kind, class Core>
class BlockAround {
  using Results = AttentionResults<T>;

 public:
  static constexpr bool splits = true;    ///< backward comes in two parts where it is asked to
  static constexpr bool carries = false;  ///< reads more than its input: see Layer::carry

  /// What backward needs besides the input.
  struct Internals {
    View<float> stats1;  // (rows_local, 2)
    View<T> attention;   // what the attention core reads: queries, keys and values, rotated; at least (rows, qkv)
    Results results;     // of the attention core; empty under selective recomputation
    View<T> x2;          // (rows_local, H)
    View<float> stats2;  // (rows_local, 2)
    View<T> u;           // (rows, f), or (rows, 2f) for SwiGLU
    View<T> n1, n2;      // (rows_local, H): what the norms give, and
    View<T> g;           // (rows, f): the activation; all three empty unless outputs are kept
  };

  /// What backward_weight needs besides the input and the internals, when backward comes in two parts.
  struct Deferred {
    View<T> d_out;        // (rows_local, H): the gradient of the output
    View<T> g;            // (rows, f); empty where the internals have it
    View<T> d_x2;         // (rows_local, H)
    View<T> whole;        // the parameters that no rank cuts, norms among them: ZeRO-3 has them in backward_input only
    View<float> d_whole;  // their gradients, as far as backward_input gives them
  };

  BlockAround(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        layer_(layer),
        heads_(layer, context.spec.tensor),
        core_(context, layer),
        h_(layer.hidden),
        q_(heads_.q()),
        qkv_(heads_.qkv()),
        f_(layer.ffn / context.spec.tensor),
        f_in_(layer.ffn_inputs() / context.spec.tensor),
        recomputes_core_(context.spec.recompute == RecomputeKind::selective),
        keeps_outputs_(context.spec.recompute == RecomputeKind::never) {
    layout_ = parameter_layout(layer, ParameterPart::rest, context.spec.tensor, static_cast<int>(context.shards()));
  }

  [[nodiscard]] const ParameterLayout& layout() const { return layout_; }
  [[nodiscard]] std::int64_t input_elements() const { return c_.rows_local() * h_; }

  /// @param second_norm  whether backward needs what norm2 gives
  Internals take_internals(device::Region& from, bool second_norm = true) const {
    Internals in;
    in.stats1 = from.take<float>(c_.rows_local() * 2);
    in.attention = core_.take_input(from);
    if (!recomputes_core_) in.results = core_.take_results(from);
    in.x2 = from.take<T>(c_.rows_local() * h_);
    in.stats2 = from.take<float>(c_.rows_local() * 2);
    in.u = from.take<T>(c_.rows() * f_in_);
    if (!keeps_outputs_) return in;
    in.n1 = from.take<T>(c_.rows_local() * h_);
    if (second_norm) in.n2 = from.take<T>(c_.rows_local() * h_);
    in.g = from.take<T>(c_.rows() * f_);
    return in;
  }

  Deferred take_deferred(device::Region& from) const {
    Deferred kept;
    kept.d_out = from.take<T>(c_.rows_local() * h_);
    if (!keeps_outputs_) kept.g = from.take<T>(c_.rows() * f_);
    kept.d_x2 = from.take<T>(c_.rows_local() * h_);
    kept.whole = from.take<T>(layout_.whole_end - layout_.whole_begin);
    kept.d_whole = from.take<float>(kept.whole.count);
    return kept;
  }

  /// x (rows_local, H) -> y (rows_local, H).
  void forward(View<const T> parameters, View<const T> x, const Internals& in, View<T> y) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    const View<const T> input = forward_to_mlp(parameters, x, in, n);
    const View<T> g = hidden_place(in);
    hidden_units(parameters, input, in.u, g);
    linear(c_, op::Kind::gemm_nt, c_.rows(), h_, f_, g, weight(parameters, ParameterName::mlp_out_weight), n, false,
           bias_once(parameters, ParameterName::mlp_out_bias));
    c_.device.add(y.count, in.x2, region().reduce(n), y);
  }

  /// The internals again from the input, as forward left them.
  void recompute(View<const T> parameters, View<const T> x, const Internals& in) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    mlp_in(parameters, forward_to_mlp(parameters, x, in, n), in.u);
  }

  /// d (rows_local, H): the gradient of the output becomes that of the input. Uses up the internals.
  void backward(View<const T> parameters, View<float> gradients, View<const T> x, const Internals& in, View<T> d) {
    pass_back<false>(parameters, gradients, x, in, {}, d);
  }

  /// The first part of backward: the same for d. Leaves in `in` and `kept` what the second part needs.
  void backward_input(View<const T> parameters, View<const T> x, const Internals& in, const Deferred& kept, View<T> d) {
    c_.device.copy(bytes_of(whole_part(parameters)), bytes_of(kept.whole));
    c_.device.zero(bytes_of(kept.d_whole));
    pass_back<true>(parameters, {}, x, in, kept, d);
  }

  /// The second part of backward: the gradients of the weights. Uses up the internals.
  void backward_weight(View<float> gradients, View<const T> x, const Internals& in, const Deferred& kept) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    const auto gathered = [&](View<T> d) {
      const View<T> whole = kind == SequenceKind::megatron ? c_.workspace.template take<T>(c_.rows() * h_) : d;
      gather(d, whole);
      return whole;
    };
    const Norms<const T> norms = norms_of(View<const T>(kept.whole), layout_.whole_begin);
    {
      const device::Scope inner(c_.workspace);
      mlp_out_weights(gradients, kept.d_out, gathered(kept.d_out), keeps_outputs_ ? in.g : kept.g);
      mlp_in_weights(norms, gradients, in, in.u, n);
    }
    attention_out_weights(gradients, kept.d_x2, gathered(kept.d_x2), in.results);
    qkv_weights(norms, gradients, x, in, in.attention.slice(0, c_.rows() * qkv_), n);
    c_.device.accumulate(kept.d_whole.count, View<const float>(kept.d_whole), whole_part(gradients));
  }

 protected:
  // The norms' weights, or their gradients.
  template <class U>
  struct Norms {
    View<U> gamma1, beta1, gamma2, beta2;
  };

  // Everything up to the MLP's input (rows, H), which is returned; n (rows, H) is scratch and may become it.
  View<const T> forward_to_mlp(View<const T> parameters, View<const T> x, const Internals& in, View<T> n) {
    const std::int64_t rows = c_.rows();
    const View<T> n1 = norm_place(in.n1, n);
    c_.device.norm_forward(layer_.norm, c_.rows_local(), h_, layer_.norm_epsilon, x,
                           weight(parameters, ParameterName::norm1_gamma),
                           weight(parameters, ParameterName::norm1_beta), n1, in.stats1);
    {
      const device::Scope scope(c_.workspace);
      const Results results = recomputes_core_ ? core_.take_results(c_.workspace) : in.results;
      const View<T> qkv = core_.take_projection(in.attention);  // (rows, qkv)
      linear(c_, op::Kind::gemm_nt, rows, qkv_, h_, all_rows(n1, n), weight(parameters, ParameterName::qkv_weight), qkv,
             false, weight(parameters, ParameterName::qkv_bias));
      rotate(qkv, false);
      core_.forward(qkv, in.attention, results);
      linear(c_, op::Kind::gemm_nt, rows, h_, q_, results.o, weight(parameters, ParameterName::attention_out_weight), n,
             false, bias_once(parameters, ParameterName::attention_out_bias));
    }
    const View<T> n2 = norm_place(in.n2, n);
    c_.device.add_norm_forward(layer_.norm, c_.rows_local(), h_, layer_.norm_epsilon, x, region().reduce(n),
                               weight(parameters, ParameterName::norm2_gamma),
                               weight(parameters, ParameterName::norm2_beta), in.x2, n2, in.stats2);
    return all_rows(n2, n);
  }
  // From the MLP's input n (rows, H) to what its activation gets, u.
  void mlp_in(View<const T> parameters, View<const T> n, View<T> u) {
    linear(c_, op::Kind::gemm_nt, c_.rows(), f_in_, h_, n, weight(parameters, ParameterName::mlp_in_weight), u, false,
           weight(parameters, ParameterName::mlp_in_bias));
  }
  // And to what it gives, g (rows, f): kept, or in the workspace.
  View<T> hidden_place(const Internals& in) {
    return keeps_outputs_ ? in.g : c_.workspace.template take<T>(c_.rows() * f_);
  }
  void hidden_units(View<const T> parameters, View<const T> n, View<T> u, View<T> g) {
    if (rounds_operands<T>(c_, c_.rows(), f_in_, h_)) {
      mlp_in(parameters, n, u);
      c_.device.activation_forward(layer_.activation, c_.rows(), f_, u, g);
    } else {
      c_.device.gemm_activation(layer_.activation, c_.rows(), f_, h_, n,
                                weight(parameters, ParameterName::mlp_in_weight),
                                weight(parameters, ParameterName::mlp_in_bias), u, g);
    }
  }
  // g again from u, unless it is kept.
  void hidden_again(const Internals& in, View<T> g) {
    if (!keeps_outputs_) c_.device.activation_forward(layer_.activation, c_.rows(), f_, in.u, g);
  }
  // The gradient of u from `whole` (rows, H), that of the MLP's output; d_g (rows, f) is used up. It lies in the place
  // of d_g where it fits, which spares a device to write d_g at all; or in that of u.
  View<T> hidden_gradient(View<const T> parameters, View<const T> whole, View<T> u, View<T> d_g, bool in_u = false) {
    const View<T> d_u = in_u || f_in_ != f_ ? u : d_g;
    if (rounds_operands<T>(c_, c_.rows(), f_, h_)) {
      input_gradient(parameters, ParameterName::mlp_out_weight, f_, h_, whole, d_g);
      c_.device.activation_backward(layer_.activation, c_.rows(), f_, u, d_g, d_u);
    } else {
      c_.device.gemm_activation_backward(layer_.activation, c_.rows(), f_, h_, whole,
                                         weight(parameters, ParameterName::mlp_out_weight), u, d_g, d_u);
    }
    return d_u;
  }

  // The gradients of output and internals back to the input. Fused, the weights' gradients come along; `split`, what
  // they need stays: the gradients of u and of qkv in the place of u and of the core's input, the others in `kept`.
  template <bool split>
  void pass_back(View<const T> parameters, View<float> gradients, View<const T> x, const Internals& in,
                 const Deferred& kept, View<T> d) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const std::int64_t rows = c_.rows();
    const Norms<const T> norms = norms_of(parameters, 0);
    const Norms<float> d_norms = split ? norms_of(kept.d_whole, layout_.whole_begin) : norms_of(gradients, 0);
    const View<T> n = ws.take<T>(rows * h_);  // (rows, H)
    // All rows of d; d itself unless the sequence is cut.
    const View<T> whole = kind == SequenceKind::megatron ? ws.take<T>(rows * h_) : d;

    {  // MLP
      const device::Scope inner(ws);
      gather(d, whole);
      const View<T> d_g = split ? ws.take<T>(rows * f_) : hidden_place(in);  // (rows, f)
      const View<T> g = !split ? d_g : keeps_outputs_ ? in.g : kept.g;
      hidden_again(in, g);
      if constexpr (split)
        c_.device.copy(bytes_of(d), bytes_of(kept.d_out));
      else
        mlp_out_weights(gradients, d, whole, g);
      const View<T> d_u = hidden_gradient(parameters, whole, in.u, d_g, split);
      if constexpr (!split) mlp_in_weights(norms, gradients, in, d_u, n);
      input_gradient(parameters, ParameterName::mlp_in_weight, h_, f_in_, d_u, n);
      norm_backward(region().reduce(n), in.x2, norms.gamma2, in.stats2, d, d_norms.gamma2, d_norms.beta2);
    }
    {  // attention
      gather(d, whole);
      const Results results = recomputes_core_ ? core_.take_results(ws) : in.results;
      if (recomputes_core_) core_.attend(in.attention, results);
      const View<T> d_o = ws.take<T>(rows * q_);      // (rows, q)
      const View<T> d_qkv = ws.take<T>(rows * qkv_);  // (rows, qkv)
      if constexpr (split)
        c_.device.copy(bytes_of(d), bytes_of(kept.d_x2));
      else
        attention_out_weights(gradients, d, whole, results);
      input_gradient(parameters, ParameterName::attention_out_weight, q_, h_, whole, d_o);
      core_.backward(in.attention, results, d_o, d_qkv);
      rotate(d_qkv, true);
      if constexpr (split)
        c_.device.copy(bytes_of(d_qkv), bytes_of(in.attention.slice(0, d_qkv.count)));
      else
        qkv_weights(norms, gradients, x, in, d_qkv, n);
      input_gradient(parameters, ParameterName::qkv_weight, h_, qkv_, d_qkv, n);
      norm_backward(region().reduce(n), x, norms.gamma1, in.stats1, d, d_norms.gamma1, d_norms.beta1);
    }
  }

  // The gradients of one weight each, with its bias. d (rows_local, H) is the gradient of what the weight is added to,
  // `whole` (rows, H) all rows of it; in n (rows, H) there is room for all rows of the input.
  void mlp_out_weights(View<float> gradients, View<const T> d, View<const T> whole, View<const T> g) {
    weight_gradient(gradients, ParameterName::mlp_out_weight, h_, f_, whole, g);
    bias_gradient(gradients, ParameterName::mlp_out_bias, c_.rows_local(), h_, d);
  }
  void mlp_in_weights(const Norms<const T>& norms, View<float> gradients, const Internals& in, View<const T> d_u,
                      View<T> n) {
    weight_gradient(gradients, ParameterName::mlp_in_weight, f_in_, h_, d_u,
                    norm_recompute(in.n2, in.x2, norms.gamma2, norms.beta2, in.stats2, n));
    bias_gradient(gradients, ParameterName::mlp_in_bias, c_.rows(), f_in_, d_u);
  }
  void attention_out_weights(View<float> gradients, View<const T> d, View<const T> whole, const Results& results) {
    weight_gradient(gradients, ParameterName::attention_out_weight, h_, q_, whole, results.o);
    bias_gradient(gradients, ParameterName::attention_out_bias, c_.rows_local(), h_, d);
  }
  void qkv_weights(const Norms<const T>& norms, View<float> gradients, View<const T> x, const Internals& in,
                   View<const T> d_qkv, View<T> n) {
    weight_gradient(gradients, ParameterName::qkv_weight, qkv_, h_, d_qkv,
                    norm_recompute(in.n1, x, norms.gamma1, norms.beta1, in.stats1, n));
    bias_gradient(gradients, ParameterName::qkv_bias, c_.rows(), qkv_, d_qkv);
  }

  [[nodiscard]] Region<T, kind, D> region() const { return {c_, h_}; }
  // A norm of this rank's rows: kept, or in its part of n (rows, H).
  View<T> norm_place(View<T> kept, View<T> n) const { return keeps_outputs_ ? kept : region().own(n); }
  // The norm of x again, of all rows.
  View<const T> norm_recompute(View<T> kept, View<const T> x, View<const T> gamma, View<const T> beta,
                               View<const float> stats, View<T> n) {
    const View<T> own = norm_place(kept, n);
    if (!keeps_outputs_) c_.device.norm_recompute(layer_.norm, c_.rows_local(), h_, x, gamma, beta, stats, own);
    return all_rows(own, n);
  }
  // The rows of all tensor ranks: `local` itself unless the sequence is cut, then in `n`, of which it may be a part.
  View<const T> all_rows(View<const T> local, View<T> n) {
    if constexpr (kind == SequenceKind::megatron) {
      c_.tensor.all_gather(local, n);
      return n;
    } else {
      (void)n;
      return local;
    }
  }
  // Copies nothing unless the sequence is cut: then all tensor ranks' rows come together in `whole`.
  void gather(View<T> local, View<T> whole) {
    if constexpr (kind == SequenceKind::megatron) c_.tensor.all_gather(View<const T>(local), whole);
  }
  // Queries and keys, piece by piece of the sequence.
  void rotate(View<T> qkv, bool inverse) {
    if (layer_.position != PositionKind::rotary) return;
    const std::int64_t rows = c_.rows() / c_.pieces();
    for (int i = 0; i < c_.pieces(); ++i)
      c_.device.rotary(rows, c_.samples, c_.first_position(i), heads_.heads + heads_.kv_heads, layer_.head_dim, qkv_,
                       layer_.rope_theta, inverse, qkv.slice(i * rows * qkv_, rows * qkv_));
  }
  // A tensor of a store, or of a part of it that begins with element `first`.
  template <class U>
  View<U> weight(View<U> store, ParameterName name, std::int64_t first = 0) const {
    const ParameterTensor* tensor = layout_.find(name);
    return tensor == nullptr ? View<U>{} : store.slice(tensor->offset - first, tensor->count());
  }
  template <class U>
  Norms<U> norms_of(View<U> store, std::int64_t first) const {
    return {weight(store, ParameterName::norm1_gamma, first), weight(store, ParameterName::norm1_beta, first),
            weight(store, ParameterName::norm2_gamma, first), weight(store, ParameterName::norm2_beta, first)};
  }
  template <class U>
  View<U> whole_part(View<U> store) const {
    return store.slice(layout_.whole_begin, layout_.whole_end - layout_.whole_begin);
  }
  template <class U>
  static View<std::byte> bytes_of(View<U> v) {
    return {reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<U>*>(v.data)),
            v.count * static_cast<std::int64_t>(sizeof(U))};
  }
  // The bias of a row-cut weight enters the sum over tensor ranks once.
  View<const T> bias_once(View<const T> parameters, ParameterName name) const {
    return c_.tensor_rank() == 0 ? weight(parameters, name) : View<const T>{};
  }
  void weight_gradient(View<float> gradients, ParameterName name, std::int64_t outputs, std::int64_t inputs,
                       View<const T> dy, View<const T> x) {
    linear(c_, op::Kind::gemm_tn, outputs, inputs, c_.rows(), dy, x, weight(gradients, name), adds(), {});
  }
  // Gradients of weights that are not written are added to zeros.
  [[nodiscard]] bool adds() const { return c_.adds_gradients || layout_.written_end == 0; }
  void input_gradient(View<const T> parameters, ParameterName name, std::int64_t inputs, std::int64_t outputs,
                      View<const T> dy, View<T> dx) {
    linear(c_, op::Kind::gemm_nn, c_.rows(), inputs, outputs, dy, weight(parameters, name), dx, false, {});
  }
  void bias_gradient(View<float> gradients, ParameterName name, std::int64_t rows, std::int64_t n, View<const T> dy) {
    if (layer_.bias) c_.device.bias_gradient(rows, n, dy, weight(gradients, name));
  }
  void norm_backward(View<const T> dy, View<const T> x, View<const T> gamma, View<const float> stats, View<T> d,
                     View<float> d_gamma, View<float> d_beta) {
    c_.device.norm_backward(layer_.norm, c_.rows_local(), h_, dy, x, gamma, stats, d, d, d_gamma, d_beta);
  }

  Context<D>& c_;
  LayerSpec layer_;
  AttentionHeads heads_;
  Core core_;
  ParameterLayout layout_;
  std::int64_t h_, q_, qkv_, f_, f_in_;
  bool recomputes_core_;  ///< selective recomputation
  bool keeps_outputs_;    ///< what norms and the activation give is kept
};

/// A block whose attention is over the whole sequence.
template <class D, class T, SequenceKind kind>
using Block = BlockAround<D, T, kind, Attention<D, T, kind>>;

}  // namespace galvatron::nn
