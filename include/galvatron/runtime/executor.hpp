// Executor: executes the phases of a layer's program (program/program.hpp) on a device and groups of ranks: one loop
// over steps, whatever the layer and the strategy are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/runtime/attention_step.hpp>
#include <galvatron/runtime/compressed_experts.hpp>
#include <galvatron/runtime/contrast.hpp>
#include <galvatron/runtime/experts.hpp>
#include <galvatron/runtime/heads.hpp>
#include <galvatron/runtime/layer.hpp>
#include <galvatron/runtime/logits.hpp>
#include <galvatron/runtime/merge_squares.hpp>
#include <galvatron/runtime/parameter_groups.hpp>
#include <galvatron/runtime/pass_buffers.hpp>

namespace galvatron::runtime {

template <class D, class T>
class Executor {
  using Program = program::LayerProgram;
  using Step = program::Step;
  using Code = program::Code;
  using Phase = program::Phase;

 public:
  /// The arguments must outlive the executor.
  /// @param sequence      S of the model; that of the context is the layer's
  /// @param token_weight  of a token of the layer in a mean over the global batch
  Executor(Context<D>& context, const Program& program, ParameterGroups<D, T>& groups, std::int64_t sequence,
           LossTerm loss = {}, float token_weight = 1, const Rotations<T>& rotations = {})
      : context_(context),
        program_(program),
        groups_(groups),
        layer_(program.graph.layer),
        buffers_(context, program, sequence,
                 [this](const Step& step, const auto& values) { return rounded_operands(step, values); }),
        loss_(loss),
        token_weight_(token_weight),
        rotations_(rotations) {
    const Program::Steps& forward = program.steps(Phase::forward);
    for (int i = 0; i < forward.size; ++i)
      if (forward[i].code == Code::cross_forward) memory_value_ = forward[i].in[1];
  }

  /// See PassBuffers::bind().
  void bind(const program::Numbers& numbers) { buffers_.bind(numbers); }
  void bind(std::int64_t sequence) { buffers_.bind(sequence); }
  [[nodiscard]] const program::Numbers& numbers() const { return buffers_.numbers(); }
  /// The next passes go forward alone; see Layer::infer. Without a value, those of training follow.
  void infer(const std::optional<Inference<T>>& how) { inference_ = how; }
  /// The workspace that a forward pass takes, gathered parameters aside.
  [[nodiscard]] Bytes forward_bytes() const { return {buffers_.frame_bytes(Phase::forward)}; }
  /// Of a prediction, in the gradients of the next passes.
  void weigh(float prediction) { loss_.weight = prediction; }

  /// The memory of a micro-batch from forward to backward.
  KeptBuffers<T> take_slot(device::Region& stash) const { return buffers_.take_slot(stash); }
  /// The memory of a micro-batch between backward and its weight gradients.
  KeptBuffers<T> take_deferred(device::Region& stash) const {
    return buffers_.take_deferred(stash, groups_.replicated_count());
  }
  /// Where the layer's input goes, or the patches of an embedding; empty where tokens come in.
  View<T> input(const KeptBuffers<T>& slot) const { return buffers_.input(slot); }
  /// @param deferred  null unless backward comes in two phases
  /// @param border    the layer's first output in forward; in backward the gradient of the bundle behind the layer,
  ///                  which becomes that of the bundle before it
  void run(Phase phase, const KeptBuffers<T>& slot, const KeptBuffers<T>* deferred, View<T> border) {
    const device::Scope scope(context_.workspace);
    phase_ = phase;
    buffers_.begin(slot, deferred, border);
    const Program::Steps& steps = program_.steps(phase);
    bool framed = false;
    for (step_ = 0; step_ < steps.size; ++step_) {
      const Step& step = steps[step_];
      const bool parameters = step.code == Code::acquire || step.code == Code::open_gradients;
      if (!framed && !parameters) {  // what ZeRO gathers lies before the frame
        buffers_.set_frame(context_.workspace.template take<std::byte>(buffers_.frame_bytes(phase)).data);
        framed = true;
      }
      if (!is_cached(step)) execute(step);
      // Behind the loss a head's program goes back.
      if (inference_ && (step.code == Code::cross_entropy || step.code == Code::contrast)) break;
    }
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] std::int64_t of(program::ExtentId extent) const { return buffers_.of(extent); }
  [[nodiscard]] std::int64_t of(program::Letter letter) const { return buffers_.of(letter); }
  template <class U = T>
  View<U> value(int id) const {
    if constexpr (std::is_same_v<U, T>)
      if (id >= 0 && id == memory_value_ && keeps_memory()) return inference_->memory;
    return buffers_.template value<U>(id);
  }
  [[nodiscard]] std::vector<std::int64_t> local_ends(const Step& step) const { return buffers_.local_ends(step); }
  [[nodiscard]] const KeptBuffers<T>& slot() const { return buffers_.slot(); }
  [[nodiscard]] const KeptBuffers<T>& deferred() const { return buffers_.deferred(); }
  View<const T> parameter(int weight) const { return groups_.parameter(weight); }
  View<float> gradient(int weight) const { return groups_.gradient(weight); }
  View<const T> norm_parameter(const Step& step, int i) {
    const int weight = step.weights[at(i)];
    const bool is_deferred = step.deferred_norm && phase_ == Phase::weights;
    return is_deferred ? groups_.replicated_part(View<const T>(deferred().replicated), weight) : parameter(weight);
  }
  View<float> norm_gradient(const Step& step, int i) {
    const int weight = step.weights[at(i)];
    return step.deferred_norm ? groups_.replicated_part(deferred().d_replicated, weight) : gradient(weight);
  }

  // ---- products of 8-bit operands

  // Columns of a product: those of all inputs of the activation behind it.
  static std::int64_t columns(const Step& step, std::int64_t n) {
    return (step.code == Code::linear_activation ? inputs_of(step.activation) : 1) * n;
  }
  // Bytes of rounded operands, which lie between the two ends of the frame's stack; 0: they are not rounded.
  [[nodiscard]] std::int64_t rounded_operands(const Step& step, const program::ExtentValues& values) const {
    if (!std::is_same_v<T, bfloat16> || !step.eight_bit || !context_.eight_bit) return 0;
    const std::int64_t n = columns(step, values(step.n));
    const std::int64_t k = values(step.k);
    return cost::fits_8bit(values(step.m), n, k) ? cost::buffer_bytes_8bit(values(step.m), n, k) : 0;
  }
  [[nodiscard]] View<std::byte> rounding_scratch(const Step& step) const {
    return {buffers_.between_ends(phase_, step_), rounded_operands(step, buffers_.values())};
  }
  [[nodiscard]] bool rounds(const Step& step) const { return rounded_operands(step, buffers_.values()) > 0; }
  template <class C>
  void product(const Step& step, op::Kind kind, View<const T> a, View<const T> b, View<C> c, bool accumulate = false,
               View<const T> bias = {}) {
    const std::int64_t m = of(step.m);
    const std::int64_t n = columns(step, of(step.n));
    const std::int64_t k = of(step.k);
    if (k == 0) return context_.device.zero(raw_bytes(c));  // over heads or hidden units that the rank has none of
    if constexpr (std::is_same_v<T, bfloat16>)
      if (rounds(step))
        return context_.device.gemm_8bit(kind, m, n, k, a, b, c, accumulate, bias, rounding_scratch(step));
    context_.device.gemm(kind, m, n, k, a, b, c, accumulate, bias);
  }

  // ---- steps

  void execute(const Step& step) {
    D& device = context_.device;
    const std::int64_t m = of(step.m);
    const std::int64_t n = of(step.n);
    const std::int64_t b = context_.batch.samples;
    const std::int64_t k = of(step.k);
    const View<T> in = value(step.in[0]);
    const View<T> out = value(step.out[0]);
    const int weight = step.weights[0];
    const auto gamma = [&] { return norm_parameter(step, 0); };
    const auto beta = [&] { return norm_parameter(step, 1); };
    const auto epsilon = [&] { return program_.graph.weight(weight).epsilon; };
    // No rows on this rank. Gradients of biases by distance are then zeros.
    if (m == 0 && step.code == Code::attention_backward && step.out[1] >= 0)
      device.zero(raw_bytes(value<float>(step.out[1])));
    const bool has_rows = m > 0 || step.n == program::ExtentId::none;
    if (!has_rows && !program::concerns_experts(step.code)) return;
    if (n == 0 && program::works_on_columns(step.code)) return;  // no heads or no hidden units
    switch (step.code) {
      case Code::linear:
        return product(step, op::Kind::gemm_nt, in, parameter(weight), out, false, bias(step));
      case Code::linear_activation: {
        const View<T> g = value(step.out[1]);
        if (rounds(step)) {
          product(step, op::Kind::gemm_nt, in, parameter(weight), out, false, bias(step));
          device.activation_forward(step.activation, m, n, out, g);
        } else {
          device.gemm_activation(step.activation, m, n, k, in, parameter(weight), bias(step), out, g);
        }
        break;
      }
      case Code::input_gradient:
        return product(step, op::Kind::gemm_nn, in, parameter(weight), out, step.adds);
      case Code::adapter_forward:
      case Code::adapter_input_gradient:
      case Code::adapter_gradient:
        return adapt(step);
      case Code::activation_gradient: {
        const View<T> u = value(step.in[1]);
        const View<T> dg = value(step.scratch[0]);
        if (rounds(step)) {
          product(step, op::Kind::gemm_nn, in, parameter(weight), dg);
          device.activation_backward(step.activation, m, n, u, dg, out);
        } else {
          device.gemm_activation_backward(step.activation, m, n, k, in, parameter(weight), u, dg, out);
        }
        break;
      }
      case Code::weight_gradient:
        if (k > 0)
          product(step, op::Kind::gemm_tn, in, value(step.in[1]), gradient(weight), groups_.adds(weight));
        else if (!groups_.adds(weight))
          device.zero(raw_bytes(gradient(weight)));
        break;
      case Code::bias_gradient:
        return device.bias_gradient(m, n, in, gradient(step.weights[1]));
      case Code::norm_forward:
        return device.norm_forward(layer_.norm, m, n, epsilon(), in, gamma(), beta(), out, value<float>(step.out[1]));
      case Code::add_norm_forward:
        return device.add_norm_forward(layer_.norm, m, n, epsilon(), in, value(step.in[1]), gamma(), beta(), out,
                                       value(step.out[1]), value<float>(step.out[2]));
      case Code::norm_recompute:
        return device.norm_recompute(layer_.norm, m, n, in, gamma(), beta(), value<float>(step.in[1]), out);
      case Code::norm_backward:
        return device.norm_backward(layer_.norm, m, n, in, value(step.in[1]), gamma(), value<float>(step.in[2]),
                                    value(step.in[3]), out, norm_gradient(step, 0), norm_gradient(step, 1));
      case Code::activation_forward:
        return device.activation_forward(step.activation, m, n, in, out);
      case Code::activation_backward:
        return device.activation_backward(step.activation, m, n, in, value(step.in[1]), out);
      case Code::add:
        return device.add(m, in, value(step.in[1]), out);
      case Code::multiply:
        return device.multiply(m, in, value(step.in[1]), out);
      case Code::jitter:
        if (inference_) return device.copy(raw_bytes(View<const T>(in)), raw_bytes(out));
        return context_.for_each_piece(m, true, [&](auto first, auto rows, auto token) {
          const device::kernels::Jitter noise{.samples = b,
                                              .tokens = context_.batch.sequence,
                                              .first_token = token,
                                              .columns = n,
                                              .amount = static_cast<float>(layer_.router.jitter)};
          device.jitter(noise, rows, View<const std::int32_t>(slot().tokens),
                        View<const T>(in.slice(first * n, rows * n)), out.slice(first * n, rows * n));
        });
      case Code::view:
        break;
      case Code::merge:
      case Code::merge_back: {
        const bool back = step.code == Code::merge_back;
        merge_squares(context_, m, n / 4, back ? out : in, back ? in : out, back);
        break;
      }
      case Code::rotate:
      case Code::rotate_back:
        return rotate(step, out, step.code == Code::rotate_back);
      case Code::norm_heads:
        return norm_heads(context_, step_heads(step), epsilon(), out, value(step.out[1]), value<float>(step.out[2]),
                          value(step.scratch[0]), parameter(weight), parameter(step.weights[1]));
      case Code::norm_heads_back:
        return norm_heads_backward(context_, step_heads(step), out, value(step.in[1]), value<float>(step.in[2]),
                                   value(step.scratch[0]), value<float>(step.scratch[1]), parameter(weight),
                                   parameter(step.weights[1]), gradient(weight), gradient(step.weights[1]));
      case Code::assemble:
        return LatentHeads<D, T>(context_, layer_, m, n).assemble(in, value(step.in[1]), value(step.in[2]), out);
      case Code::assemble_back:
        return LatentHeads<D, T>(context_, layer_, m, n)
            .assemble_backward(in, out, value(step.out[1]), value(step.out[2]), value<float>(step.scratch[0]));
      case Code::narrow:
        return LatentHeads<D, T>(context_, layer_, m, n).narrow(in, out);
      case Code::narrow_back:
        return LatentHeads<D, T>(context_, layer_, m, n).widen(in, out);
      case Code::attention_forward:
      case Code::attention_backward:
      case Code::cross_forward:
      case Code::cross_backward:
      case Code::ring_forward:
      case Code::ring_backward:
      case Code::to_heads:
      case Code::projection_to_heads:
      case Code::to_tokens:
      case Code::projection_to_tokens:
        return attention_step<T>(
            context_, layer_, step, n, k, [this](int id) { return value(id); },
            [this](int id) { return value<float>(id); }, parameter(weight), gradient(weight),
            inference_ ? inference_->cache : View<T>{}, inference_ ? inference_->biases : View<float>{});
      case Code::spread_biases:
        return device.relative_bias_forward(relative_positions(), m, parameter(weight),
                                            caches_biases() ? inference_->biases : value<float>(step.out[0]));
      case Code::gather_biases:
        return device.relative_bias_backward(relative_positions(), m, value<float>(step.in[0]), gradient(weight));
      case Code::route:
      case Code::experts_forward:
      case Code::experts_backward:
      case Code::route_backward:
      case Code::exchange_counts:
      case Code::exchange_forward:
      case Code::exchange_backward:
        return experts(step, m);
      case Code::compress:
      case Code::exchange_bounds:
      case Code::bucket_means:
      case Code::compressed_forward:
      case Code::decompress:
      case Code::compress_gradient:
      case Code::bucket_weights_back:
      case Code::residual_gradient:
      case Code::compressed_backward:
      case Code::decompress_gradient:
        return compressed_experts(step, m);
      case Code::gate:
        return device.gate_forward(m, n, View<const T>(in), View<const T>(value(step.in[1])), out);
      case Code::gate_backward:
        return device.gate_backward(m, n, View<const T>(in), View<const T>(value(step.in[1])),
                                    View<const T>(value(step.in[2])), out, value(step.out[1]));
      case Code::dropout:
      case Code::dropout_backward:
        throw Failure(ErrorKind::internal, "dropout is planned only");
      case Code::look_up:
        return device.embedding_forward(m, n, tokens_of(step), first_token(), of(program::Letter::vocabulary),
                                        embedding_scale(), parameter(weight), out);
      case Code::look_up_backward:
        return device.embedding_backward(m, n, tokens_of(step), first_token(), of(program::Letter::vocabulary),
                                         embedding_scale(), in, gradient(weight));
      case Code::add_positions:
        return context_.for_each_run(m, true, [&](auto first, auto rows, auto position) {
          device.position_forward(rows, b, n, position, parameter(weight), out.slice(first * n, rows * n));
        });
      case Code::positions_gradient:
        return context_.for_each_run(m, true, [&](auto first, auto rows, auto position) {
          device.position_backward(rows, b, n, position, in.slice(first * n, rows * n), gradient(weight));
        });
      case Code::add_segment:
        return device.position_forward(m, m, n, 0, parameter(weight), out);
      case Code::segment_gradient:
        return device.bias_gradient(m, n, in, gradient(weight).slice(0, n));
      case Code::prepend:
        device.zero(raw_bytes(out.slice(0, m * n)));
        device.position_forward(m, m, n, 0, parameter(weight), out.slice(0, m * n));
        break;
      case Code::prepend_backward:
        return device.bias_gradient(m, n, in.slice(0, m * n), gradient(weight));
      case Code::first_token_gradient:
        if (k > 0) device.zero(raw_bytes(out.slice(out.count - k * n, k * n)));
        break;
      case Code::mean:
        return device.pool_forward(m / b, b, n, token_share(), in, out);
      case Code::mean_backward:
        return device.pool_backward(m / b, b, n, token_share(), in, out);
      case Code::end_of_text:
        device.zero(raw_bytes(out));
        return device.gather_rows(1, n, b, ends(), View<const T>(in), out);
      case Code::end_of_text_backward:
        device.zero(raw_bytes(out));
        return device.gather_rows(1, n, m, ended(), View<const T>(in), out);
      case Code::cross_entropy:
        if (inference_)
          return forward_logits<D, T>(
              context_, layer_, m, parameter(weight), parameter(step.weights[1]), slot().tokens, loss_, in,
              {value(step.scratch[0]), value<float>(step.scratch[1]), value<float>(step.scratch[2])}, *inference_);
        return cross_entropy<D, T>(
            context_, layer_, m, parameter(weight), parameter(step.weights[1]), gradient(weight),
            gradient(step.weights[1]), slot().tokens, loss_, out,
            {value(step.scratch[0]), value<float>(step.scratch[1]), value<float>(step.scratch[2])});
      case Code::contrast:
        return Contrast<D, T>(context_, b, n, loss_, out,
                              {value(step.scratch[0]), value<float>(step.scratch[1]), value(step.scratch[2]),
                               value<float>(step.scratch[3]), value(step.scratch[4]), value<float>(step.scratch[5]),
                               value(step.scratch[6]), value<float>(step.scratch[7])})
            .run(slot().tokens, parameter(weight), gradient(weight));
      case Code::copy:
        return device.copy(raw_bytes(in), raw_bytes(out));
      case Code::all_gather:
        return context_.tensor.all_gather(View<const T>(in), out, local_ends(step));
      case Code::all_reduce:
        if (context_.spec.tensor > 1) context_.tensor.all_reduce(out, comm::ReduceOp::sum);
        break;
      case Code::reduce_scatter:
        return context_.tensor.reduce_scatter(in, out, local_ends(step));
      case Code::broadcast:
        return context_.tensor.broadcast(out, 0);
      case Code::acquire:
        return groups_.acquire(step.group);
      case Code::open_gradients:
        if (inference_) break;
        return groups_.open_gradients(step.group);
      case Code::close_gradients:
        return groups_.close_gradients(step.group);
      case Code::keep_replicated:
        device.copy(raw_bytes(groups_.replicated()), raw_bytes(deferred().replicated));
        device.zero(raw_bytes(deferred().d_replicated));
        break;
      case Code::add_replicated:
        return device.accumulate(groups_.replicated_count(), View<const float>(deferred().d_replicated),
                                 groups_.replicated_gradients());
    }
  }

  // Products of the factor B of adapters. A rank may have no columns of a section.
  void adapt(const Step& step) {
    const std::int64_t m = of(step.m);
    const std::int64_t n = of(step.n);
    const std::int64_t all = of(step.k);
    const int b = step.weights[0];
    const std::int64_t rank = program_.graph.weight(b).columns.extent;
    const auto scale = static_cast<float>(layer_.adapters.scale());
    const View<T> in = value(step.in[0]);
    program::for_each_adapter(program_.graph, b, numbers(), [&](const program::LocalAdapter& part) {
      const View<const T> factor = parameter(b).slice(part.first_row * rank, part.columns * rank);
      const std::int64_t low = part.first_column;
      if (step.code == Code::adapter_forward)
        context_.device.gemm_columns(op::Kind::gemm_nt, m, part.columns, rank, {.a = all, .c = n}, scale,
                                     behind(in, low), factor, behind(value(step.out[0]), part.first), true);
      else if (step.code == Code::adapter_gradient)
        context_.device.gemm_columns(op::Kind::gemm_tn, part.columns, rank, m, {.a = n, .b = all}, scale,
                                     behind(in, part.first), View<const T>(behind(value(step.in[1]), low)),
                                     gradient(b).slice(part.first_row * rank, part.columns * rank), true);
      else if (part.columns == 0)
        context_.device.zero(raw_bytes(value(step.out[0]).slice(m * low, m * rank)));
      else
        context_.device.gemm_columns(op::Kind::gemm_nn, m, rank, part.columns, {.a = n, .c = all}, scale,
                                     behind(in, part.first), factor, behind(value(step.out[0]), low), false);
    });
  }

  // The weights of a node of experts: router, inputs, outputs, bias of the choice.
  void experts(const Step& step, std::int64_t rows) {
    const auto values = [this]<class U>(std::type_identity<U> /*type*/, int id) { return value<U>(id); };
    ExpertSteps<D, T, decltype(values)> steps(context_, layer_, step, token_weight_, numbers(), values);
    const auto [router, in, out, bias, gain] = step.weights;
    switch (step.code) {
      case Code::route:
        return steps.route(rows, parameter(router), parameter(bias));
      case Code::experts_forward:
        return steps.forward(rows, parameter(in), parameter(out));
      case Code::experts_backward:
        return steps.backward(rows, parameter(in), parameter(out), gradient(in), groups_.adds(in), gradient(out),
                              groups_.adds(out));
      case Code::exchange_counts:
        counts_ = steps.exchange_counts();
        break;
      case Code::exchange_forward:
        context_.experts.finish(counts_);
        return steps.exchange_forward(rows, parameter(in), parameter(out));
      case Code::exchange_backward:
        return steps.exchange_backward(rows, parameter(in), parameter(out), gradient(in), groups_.adds(in),
                                       gradient(out), groups_.adds(out));
      default:
        return steps.route_backward(rows, parameter(router), gradient(router), gradient(bias));
    }
  }

  void compressed_experts(const Step& step, std::int64_t rows) {
    const auto values = [this]<class U>(std::type_identity<U> /*type*/, int id) { return value<U>(id); };
    CompressedExperts<D, T, decltype(values)> steps(context_, layer_, step, token_weight_, numbers(), values,
                                                    rotations_, parameter(step.weights[4]));
    const int in = step.weights[1];
    const int out = step.weights[2];
    switch (step.code) {
      case Code::compress:
        return steps.compress(rows);
      case Code::exchange_bounds:
        return steps.exchange_bounds(rows);
      case Code::bucket_means:
        return steps.bucket_means(rows);
      case Code::compressed_forward:
        return steps.forward(parameter(in), parameter(out));
      case Code::decompress:
        return steps.decompress(rows);
      case Code::compress_gradient:
        return steps.compress_gradient(rows);
      case Code::bucket_weights_back:
        return steps.weights_backward(rows);
      case Code::residual_gradient:
        return steps.residual_gradient(rows, gradient(step.weights[4]));
      case Code::compressed_backward:
        return steps.backward(parameter(in), parameter(out), gradient(in), groups_.adds(in), gradient(out),
                              groups_.adds(out));
      default:
        return steps.decompress_gradient(rows);
    }
  }

  // The bias of a product whose results are added up over tensor ranks enters the sum once: on the first of them that
  // has a part of what it sums over.
  View<const T> bias(const Step& step) {
    const bool enters = !step.bias_once || numbers().is_first_part(program_.extents[static_cast<int>(step.k)]);
    return enters ? parameter(step.weights[1]) : View<const T>{};
  }
  [[nodiscard]] View<const std::int32_t> tokens_of(const Step& step) const {
    const std::int64_t own = of(program::Letter::rows);
    if (step.rows == forward::Rows::target) return slot().tokens.slice(own, slot().tokens.count - own);
    return slot().tokens.slice(0, own);
  }
  [[nodiscard]] device::RelativePositions relative_positions() const {
    // Behind others of a cache a token has the place of the last one.
    const std::int64_t before = caches_biases() ? inference_->first : 0;
    return {.tokens = before + context_.batch.sequence, .buckets = layer_.bias_rows, .causal = layer_.causal};
  }
  [[nodiscard]] bool caches_biases() const { return inference_ && !inference_->biases.empty(); }
  [[nodiscard]] bool keeps_memory() const { return inference_ && !inference_->memory.empty(); }
  /// True for a step whose result an earlier pass has left.
  [[nodiscard]] bool is_cached(const Step& step) const {
    return keeps_memory() && inference_->first > 0 && step.out[0] >= 0 && step.out[0] == memory_value_;
  }
  // Of each sample the row of this rank with which its text ends, and of each row the sample that it ends; -1: none.
  [[nodiscard]] View<const std::int32_t> ends() const { return slot().tokens.slice(0, context_.batch.samples); }
  [[nodiscard]] View<const std::int32_t> ended() const {
    return slot().tokens.slice(context_.batch.samples, slot().tokens.count - context_.batch.samples);
  }
  // Of a token in the mean of its sample.
  [[nodiscard]] float token_share() const { return 1.0F / static_cast<float>(context_.batch.sequence); }
  // The first token of this rank's part of the vocabulary.
  [[nodiscard]] std::int64_t first_token() const { return context_.shares().vocabulary(layer_.vocabulary).begin; }
  [[nodiscard]] float embedding_scale() const { return static_cast<float>(layer_.embedding_scale); }
  // The first heads of rows.
  void rotate(const Step& step, View<T> x, bool inverse) {
    const std::int64_t width = of(step.k);
    const std::int64_t head = of(step.l);
    const device::kernels::RotaryFrequencies frequencies = rotary_frequencies(layer_, head);
    const std::int64_t samples = context_.batch.samples;
    context_.for_each_piece(of(step.m), step.local, [&](auto first, auto rows, auto token) {
      std::vector<std::int32_t> tokens, positions;  // of its documents
      context_.batch.for_each_run(token, rows, [&](auto row, auto, auto position) {
        tokens.push_back(static_cast<std::int32_t>(row / samples));
        positions.push_back(static_cast<std::int32_t>(position));
      });
      if (tokens.empty()) return;
      const bool one = tokens.size() == 1;
      context_.device.rotary(
          rows, samples, one ? device::TokenPositions(positions.front()) : device::TokenPositions(tokens, positions),
          of(step.n) / head, head, width, frequencies, inverse, x.slice(first * width, rows * width));
    });
  }
  [[nodiscard]] HeadNorms step_heads(const Step& step) const {
    return {.rows = of(step.m), .queries = of(step.n), .keys = of(step.k), .width = of(step.l), .kind = layer_.norm};
  }

  Context<D>& context_;
  const Program& program_;
  ParameterGroups<D, T>& groups_;
  const LayerSpec& layer_;
  PassBuffers<D, T> buffers_;
  LossTerm loss_;
  float token_weight_;
  Rotations<T> rotations_;
  int memory_value_ = -1;                  ///< keys and values of an encoder's output
  std::optional<Inference<T>> inference_;  ///< how passes go that are not of training

  // Of the pass that runs now.
  Phase phase_ = Phase::forward;
  int step_ = 0;
  comm::Pending counts_;  ///< of the ranks that exchange tokens, while they are under way
};

}  // namespace galvatron::runtime
