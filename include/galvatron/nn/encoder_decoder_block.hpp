// A block of an encoder-decoder model (T5): self-attention with biases by relative position, in the decoder attention
// to the encoder's output, and an MLP, each behind a norm and a residual.
//
//   x -> norm1 -> [qkv -> attention + bias -> out] -> + x = x2
//     -> norm3 -> [query -> attention -> out]      -> + x2 = x3        decoder; else x3 is x2
//                  ^ keys, values <- memory
//     -> norm2 -> [in -> activation -> out]        -> + x3 = y         [last of the encoder: -> closing norm -> y]
//
// Every block has a table of biases of its own, (buckets, A / t).
//
// Shapes as in nn/block.hpp; memory_rows are the encoder's tokens on a rank, memory_local those between the regions.
// The gradient that backward transforms has the encoder's tokens first, the decoder's behind them.
#pragma once

#include <cstdint>

#include <galvatron/nn/block.hpp>
#include <galvatron/nn/closing_norm.hpp>

namespace galvatron::nn {

template <class D, class T, SequenceKind kind>
class EncoderDecoderBlock : Block<D, T, kind> {
  static_assert(kind == SequenceKind::none || kind == SequenceKind::megatron);
  using Base = Block<D, T, kind>;
  using Results = AttentionResults<T>;
  using Base::c_, Base::layer_, Base::heads_, Base::core_, Base::recomputes_core_, Base::keeps_outputs_, Base::layout_;
  using Base::h_, Base::q_, Base::qkv_, Base::f_, Base::f_in_;

 public:
  static constexpr bool splits = false;
  static constexpr bool carries = true;

  /// What the block reads.
  struct Input {
    View<const T> x;       // (rows_local, H)
    View<const T> memory;  // (memory_local, H), the encoder's output; of a decoder
  };

  /// What backward needs besides the input.
  struct Internals : Base::Internals {
    View<float> stats3;     // (rows_local, 2)
    View<T> query;          // (rows, q), of cross attention
    View<T> memory;         // (memory_rows, keys | values)
    View<T> cross;          // (rows, q): its results; empty under selective recomputation
    View<float> cross_lse;  // (b, heads, queries)
    View<T> x3;             // (rows_local, H)
    View<T> n3;             // (rows_local, H): what norm3 gives; empty unless outputs are kept
    typename ClosingNorm<D, T>::Internals closing;
  };
  using typename Base::Deferred;

  EncoderDecoderBlock(Context<D>& context, const LayerSpec& layer)
      : Base(context, layer),
        closing_(c_, layer_, layout_),
        memory_(with_tokens(context, layer.memory.any() ? context.beside : 0)),
        relative_{.tokens = context.sequence, .buckets = layer.bias_rows, .causal = layer.causal},
        crosses_(layer.memory.any()),
        begins_decoder_(layer.begins_decoder),
        kv_(2 * heads_.kv()) {}

  using Base::layout;

  /// Of what comes from the layer before, what this layer keeps; the rest is carried.
  [[nodiscard]] std::int64_t input_elements() const {
    return (begins_decoder_ ? memory_.rows_local() : c_.rows_local()) * h_;
  }
  /// A decoder's first layer gets the encoder's output as its input, and the target was carried.
  Input input_of(View<const T> input, View<const T> carried) const {
    return begins_decoder_ ? Input{carried, input} : Input{input, carried};
  }

  Internals take_internals(device::Region& from) const {
    Internals in{Base::take_internals(from), {}, {}, {}, {}, {}, {}, {}, {}};
    const std::int64_t local = c_.rows_local();
    if (crosses_) {
      in.stats3 = from.take<float>(local * 2);
      in.query = from.take<T>(c_.rows() * q_);
      in.memory = from.take<T>(memory_.rows() * kv_);
      if (!recomputes_core_) take_cross(from, in);
      in.x3 = from.take<T>(local * h_);
      if (keeps_outputs_) in.n3 = from.take<T>(local * h_);
    }
    in.closing = closing_.take_internals(from);
    return in;
  }

  /// -> y (rows_local, H).
  void forward(View<const T> parameters, const Input& from, const Internals& in, View<T> y) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    mlp_forward(parameters, in, forward_to_mlp(parameters, from, in, n), n, y);
  }

  /// The internals again from the input, as forward left them.
  void recompute(View<const T> parameters, const Input& from, const Internals& in) {
    const device::Scope scope(c_.workspace);
    const View<T> n = c_.workspace.template take<T>(c_.rows() * h_);  // (rows, H)
    const View<const T> input = forward_to_mlp(parameters, from, in, n);
    if (closing_.exists())
      mlp_forward(parameters, in, input, n, this->region().own(n));
    else
      this->mlp_in(parameters, input, in.u);
  }

  /// d (memory_local + rows_local, H), or with the target that passes an encoder behind: the gradient of what the block
  /// gives becomes that of what it gets. Uses up the internals.
  void backward(View<const T> parameters, View<float> gradients, const Input& from, const Internals& in, View<T> d) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const View<T> n = ws.take<T>(c_.rows() * h_);  // (rows, H)
    const std::int64_t before = memory_.rows_local() * h_;
    const View<T> d_x = d.slice(before, c_.rows_local() * h_);
    // All rows of d_x; d_x itself unless the sequence is cut.
    const View<T> whole = kind == SequenceKind::megatron ? ws.take<T>(c_.rows() * h_) : d_x;
    closing_.backward(parameters, gradients, in.closing, d_x);
    mlp_backward(parameters, gradients, in, n, whole, d_x);
    if (crosses_) cross_backward(parameters, gradients, from, in, n, whole, d_x, d.slice(0, before));
    attention_backward(parameters, gradients, from, in, n, whole, d_x);
  }

 private:
  /// A norm's weights, or their gradients.
  template <class U>
  struct Norm {
    View<U> gamma, beta;
  };
  template <class U>
  Norm<U> norm_of(View<U> store, ParameterName gamma, ParameterName beta) const {
    return {this->weight(store, gamma), this->weight(store, beta)};
  }
  template <class U>
  Norm<U> norm2_of(View<U> store) const {
    return norm_of(store, ParameterName::norm2_gamma, ParameterName::norm2_beta);
  }
  template <class U>
  Norm<U> norm3_of(View<U> store) const {
    return norm_of(store, ParameterName::norm3_gamma, ParameterName::norm3_beta);
  }
  // The MLP's input.
  View<T> x3_of(const Internals& in) const { return crosses_ ? in.x3 : in.x2; }

  // Everything up to the MLP's input (rows, H), or to that of cross attention, which is returned; n (rows, H) is
  // scratch and may become it.
  View<const T> forward_to_mlp(View<const T> parameters, const Input& from, const Internals& in, View<T> n) {
    const View<const T> input = attention_forward(parameters, from, in, n);
    return crosses_ ? cross_forward(parameters, from, in, input, n) : input;
  }
  View<const T> attention_forward(View<const T> parameters, const Input& from, const Internals& in, View<T> n) {
    const View<T> n1 = this->norm_place(in.n1, n);
    c_.device.norm_forward(layer_.norm, c_.rows_local(), h_, layer_.norm_epsilon, from.x,
                           this->weight(parameters, ParameterName::norm1_gamma),
                           this->weight(parameters, ParameterName::norm1_beta), n1, in.stats1);
    {
      const device::Scope scope(c_.workspace);
      const Results results = recomputes_core_ ? core_.take_results(c_.workspace) : in.results;
      const device::AttentionBias bias = spread_bias(parameters);
      const View<T> qkv = core_.take_projection(in.attention);  // (rows, qkv)
      linear(c_, op::Kind::gemm_nt, c_.rows(), qkv_, h_, this->all_rows(n1, n),
             this->weight(parameters, ParameterName::qkv_weight), qkv, false, {});
      core_.forward(qkv, in.attention, results, bias);
      linear(c_, op::Kind::gemm_nt, c_.rows(), h_, q_, results.o,
             this->weight(parameters, ParameterName::attention_out_weight), n, false, {});
    }
    return crosses_ ? add_norm(norm3_of(parameters), from.x, in.x2, in.stats3, in.n3, n)
                    : add_norm(norm2_of(parameters), from.x, in.x2, in.stats2, in.n2, n);
  }
  View<const T> cross_forward(View<const T> parameters, const Input& from, const Internals& in, View<const T> input,
                              View<T> n) {
    linear(c_, op::Kind::gemm_nt, c_.rows(), q_, h_, input, this->weight(parameters, ParameterName::cross_query_weight),
           in.query, false, {});
    {
      const device::Scope scope(c_.workspace);
      const View<T> room = kind == SequenceKind::megatron ? take_memory() : View<T>{};
      linear(c_, op::Kind::gemm_nt, memory_.rows(), kv_, h_, whole_memory(from, room),
             this->weight(parameters, ParameterName::cross_memory_weight), in.memory, false, {});
    }
    {
      const device::Scope scope(c_.workspace);
      Internals results = in;
      if (recomputes_core_) take_cross(c_.workspace, results);
      cross_results(results);
      linear(c_, op::Kind::gemm_nt, c_.rows(), h_, q_, results.cross,
             this->weight(parameters, ParameterName::cross_out_weight), n, false, {});
    }
    return add_norm(norm2_of(parameters), in.x2, in.x3, in.stats2, in.n2, n);
  }
  // From the MLP's input (rows, H) to y; n (rows, H) is scratch, which may be the input, and y its own rows.
  void mlp_forward(View<const T> parameters, const Internals& in, View<const T> input, View<T> n, View<T> y) {
    const device::Scope scope(c_.workspace);
    const View<T> g = this->hidden_place(in);  // (rows, f)
    this->hidden_units(parameters, input, in.u, g);
    linear(c_, op::Kind::gemm_nt, c_.rows(), h_, f_, g, this->weight(parameters, ParameterName::mlp_out_weight), n,
           false, {});
    closing_.add_forward(parameters, x3_of(in), this->region().reduce(n), in.closing, y);
  }

  // In all of these d (rows_local, H) is the gradient of what comes out and becomes that of what went in.
  void mlp_backward(View<const T> parameters, View<float> gradients, const Internals& in, View<T> n, View<T> whole,
                    View<T> d) {
    const device::Scope scope(c_.workspace);
    this->gather(d, whole);
    const View<T> g = this->hidden_place(in);  // (rows, f)
    this->hidden_again(in, g);
    this->mlp_out_weights(gradients, d, whole, g);
    const View<T> d_u = this->hidden_gradient(parameters, whole, in.u, g);
    this->weight_gradient(gradients, ParameterName::mlp_in_weight, f_in_, h_, d_u,
                          norm_recompute(norm2_of(parameters), x3_of(in), in.stats2, in.n2, n));
    this->input_gradient(parameters, ParameterName::mlp_in_weight, h_, f_in_, d_u, n);
    const Norm<float> d_norm = norm2_of(gradients);
    this->norm_backward(this->region().reduce(n), x3_of(in), norm2_of(parameters).gamma, in.stats2, d, d_norm.gamma,
                        d_norm.beta);
  }
  // d_memory (memory_local, H) grows.
  void cross_backward(View<const T> parameters, View<float> gradients, const Input& from, const Internals& in,
                      View<T> n, View<T> whole, View<T> d, View<T> d_memory) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    this->gather(d, whole);
    Internals results = in;
    if (recomputes_core_) {
      take_cross(ws, results);
      cross_results(results);
    }
    const View<T> d_o = ws.take<T>(c_.rows() * q_);         // (rows, q)
    const View<T> d_q = ws.take<T>(c_.rows() * q_);         // (rows, q)
    const View<T> d_kv = ws.take<T>(memory_.rows() * kv_);  // (memory_rows, keys | values)
    this->weight_gradient(gradients, ParameterName::cross_out_weight, h_, q_, whole, results.cross);
    this->input_gradient(parameters, ParameterName::cross_out_weight, q_, h_, whole, d_o);
    {
      const device::Scope inner(ws);
      const View<float> delta = ws.take<float>(results.cross_lse.count);
      c_.device.attention_backward(cross_shape(), in.query, in.memory, values_of(in.memory), results.cross,
                                   results.cross_lse, d_o, d_q, d_kv, values_of(d_kv), delta);
    }
    {
      const device::Scope inner(ws);
      const View<T> room = take_memory();
      linear(c_, op::Kind::gemm_tn, kv_, h_, memory_.rows(), d_kv, whole_memory(from, room),
             this->weight(gradients, ParameterName::cross_memory_weight), this->adds(), {});
      linear(c_, op::Kind::gemm_nn, memory_.rows(), h_, kv_, d_kv,
             this->weight(parameters, ParameterName::cross_memory_weight), room, false, {});
      c_.device.add(d_memory.count, d_memory, Region<T, kind, D>{memory_, h_}.reduce(room), d_memory);
    }
    this->weight_gradient(gradients, ParameterName::cross_query_weight, q_, h_, d_q,
                          norm_recompute(norm3_of(parameters), in.x2, in.stats3, in.n3, n));
    this->input_gradient(parameters, ParameterName::cross_query_weight, h_, q_, d_q, n);
    const Norm<float> d_norm = norm3_of(gradients);
    this->norm_backward(this->region().reduce(n), in.x2, norm3_of(parameters).gamma, in.stats3, d, d_norm.gamma,
                        d_norm.beta);
  }
  void attention_backward(View<const T> parameters, View<float> gradients, const Input& from, const Internals& in,
                          View<T> n, View<T> whole, View<T> d) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    this->gather(d, whole);
    device::AttentionBias bias = spread_bias(parameters);
    bias.gradient = ws.take<float>(bias.values.count);
    c_.device.zero(Base::bytes_of(bias.gradient));
    const Results results = recomputes_core_ ? core_.take_results(ws) : in.results;
    if (recomputes_core_) core_.attend(in.attention, results, bias);
    const View<T> d_o = ws.take<T>(c_.rows() * q_);      // (rows, q)
    const View<T> d_qkv = ws.take<T>(c_.rows() * qkv_);  // (rows, qkv)
    this->attention_out_weights(gradients, d, whole, results);
    this->input_gradient(parameters, ParameterName::attention_out_weight, q_, h_, whole, d_o);
    core_.backward(in.attention, results, d_o, d_qkv, bias);
    c_.device.relative_bias_backward(relative_, heads_.heads, bias.gradient,
                                     this->weight(gradients, ParameterName::relative_positions));
    this->qkv_weights(this->norms_of(parameters, 0), gradients, from.x, in, d_qkv, n);
    this->input_gradient(parameters, ParameterName::qkv_weight, h_, qkv_, d_qkv, n);
    this->norm_backward(this->region().reduce(n), from.x, this->weight(parameters, ParameterName::norm1_gamma),
                        in.stats1, d, this->weight(gradients, ParameterName::norm1_gamma),
                        this->weight(gradients, ParameterName::norm1_beta));
  }

  // The table's biases by distance, in the workspace: (heads, distances).
  device::AttentionBias spread_bias(View<const T> parameters) {
    const View<float> values = c_.workspace.template take<float>(heads_.heads * relative_.distances());
    c_.device.relative_bias_forward(relative_, heads_.heads,
                                    this->weight(parameters, ParameterName::relative_positions), values);
    return {
        .values = values, .gradient = {}, .first = relative_.tokens - 1, .head = relative_.distances(), .query = -1};
  }
  // sum (rows_local, H) = x + n, and all rows of a norm of it.
  View<const T> add_norm(const Norm<const T>& norm, View<const T> x, View<T> sum, View<float> stats, View<T> kept,
                         View<T> n) {
    const View<T> own = this->norm_place(kept, n);
    c_.device.add_norm_forward(layer_.norm, c_.rows_local(), h_, layer_.norm_epsilon, x, this->region().reduce(n),
                               norm.gamma, norm.beta, sum, own, stats);
    return this->all_rows(own, n);
  }
  View<const T> norm_recompute(const Norm<const T>& norm, View<const T> x, View<const float> stats, View<T> kept,
                               View<T> n) {
    return Base::norm_recompute(kept, x, norm.gamma, norm.beta, stats, n);
  }

  View<T> take_memory() { return c_.workspace.template take<T>(memory_.rows() * h_); }
  // The encoder's output of all tensor ranks: as it lies unless the sequence is cut, then in `room`.
  View<const T> whole_memory(const Input& from, View<T> room) {
    if constexpr (kind == SequenceKind::megatron) {
      c_.tensor.all_gather(from.memory, room);
      return room;
    } else {
      (void)room;
      return from.memory;
    }
  }
  void take_cross(device::Region& region, Internals& in) const {
    in.cross = region.take<T>(c_.rows() * q_);
    in.cross_lse = region.take<float>(c_.samples * heads_.heads * c_.sequence);
  }
  void cross_results(const Internals& in) {
    c_.device.attention_forward(cross_shape(), in.query, in.memory, values_of(in.memory), in.cross, in.cross_lse);
  }
  View<T> values_of(View<T> memory) const { return memory.slice(kv_ / 2, memory.count - kv_ / 2); }
  [[nodiscard]] device::AttentionShape cross_shape() const {
    return {.batch = c_.samples,
            .queries = c_.sequence,
            .keys = memory_.sequence,
            .heads = heads_.heads,
            .kv_heads = heads_.kv_heads,
            .head_dim = heads_.head_dim,
            .causal = false,
            .q_stride = q_,
            .kv_stride = kv_,
            .out_stride = q_};
  }

  ClosingNorm<D, T> closing_;
  Context<D> memory_;  ///< of the encoder's tokens; none without cross attention
  device::RelativePositions relative_;
  bool crosses_;
  bool begins_decoder_;
  std::int64_t kv_;  ///< width of keys and values
};

}  // namespace galvatron::nn
