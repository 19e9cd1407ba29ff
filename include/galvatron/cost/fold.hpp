// Fold: what a layer's program does and keeps on one rank, in the terms of LayerCounts.
//
// Every step is one or a few items of work, whose extents Numbers evaluates; buffers add up by storage, and a frame is
// as large as the buffers that live at one of its steps. What its parameters cost is parameter_counts'.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/composite.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/cost/ring_attention.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// Steps of a layer that are counted: those of its experts, with the router, the exchange, and what is computed beside
/// that of counts, depend on the degrees of experts, the others do not.
enum class Steps { all, experts, others };

class Fold {
 public:
  constexpr Fold(const program::LayerProgram& program, const StrategySpec& spec, const Batch& batch)
      : p_(program),
        layer_(program.graph.layer),
        shape_(layer_, spec, batch),
        numbers_(numbers_of(program, spec, batch)),
        values_(program, numbers_),
        defers_in_place_(program.options.keeps_outputs && shape_.splits_backward()) {
    for (int b = 0; b < p_.buffers.size; ++b)
      bytes_[static_cast<std::size_t>(b)] = program::bytes_of(p_.buffer(b), values_, shape_.e);
  }

  /// All bytes, and the work of some steps.
  [[nodiscard]] constexpr LayerCounts passes(Steps counted = Steps::all) const {
    LayerCounts out;
    out.input = shape_.local_bytes([this](int i) { return layer_.before(i); });
    out.activation = shape_.local_bytes([this](int i) { return layer_.after(i); });
    out.pass_through =
        shape_.local_bytes([this](int i) { return layer_.is_pass_through(i) ? layer_.before(i) : BundlePart{}; });
    if (layer_.keeps_unread())
      out.stash +=
          shape_.local_bytes([this](int i) { return i == layer_.place.arrives ? layer_.before(i) : BundlePart{}; });
    add(counted, program::Phase::forward, out.forward, out.forward, out.forward_workspace);
    add(counted, program::Phase::backward, out.backward, defers_in_place_ ? out.weights : out.backward,
        out.backward_workspace);
    add(counted, program::Phase::weights, out.weights, out.weights, out.weights_workspace);
    if (defers_in_place_) out.weights_workspace = out.backward_workspace;
    out.forward_workspace += more_logits();
    // The gradient of a bundle that changes its size from behind the layer to before it may have to move. What a block
    // gathers beside its neighbours lies there, too; what an end gathers is gone then (LayerBytes::add).
    if (out.input != out.activation) {
      out.backward_workspace += max(out.input, out.activation) - out.activation;
      if (layer_.kind == LayerKind::block) out.backward_workspace = max(out.backward_workspace, out.input);
    }
    const RuntimeTraits& traits = shape_.traits;
    if (shape_.cut && layer_.kind == LayerKind::block) out.tensor_pieces = traits.tensor_pieces;
    out.host = traits.host;
    out.device_spread = traits.device_spread;
    for (const program::Buffer& buffer : p_.buffers) {
      if (buffer.storage == program::Storage::slot || buffer.storage == program::Storage::input)
        out.stash += bytes(buffer);
      else if (buffer.storage == program::Storage::deferred)
        out.deferred += bytes(buffer);
    }
    if (has_rotations()) out.states += Bytes{aligned_bytes(shape_.batch.lsh.rotation_elements(shape_.h) * shape_.e)};
    if (p_.splits) {
      const std::int64_t whole = whole_parameters();
      out.deferred += Bytes{aligned_bytes(whole * shape_.e) + aligned_bytes(whole * 4)};
    }
    out.stash += Bytes{aligned_bytes(program::token_count(layer_, numbers_) * 4)};
    return out;
  }
  /// The messages of both passes that take tokens to the ranks of their experts and back.
  [[nodiscard]] constexpr op::WorkList expert_messages() const {
    op::WorkList steps;
    for (const program::Phase phase : {program::Phase::forward, program::Phase::backward})
      for (const Step& step : p_.steps(phase))
        if (exchanges(step.code)) add(step, steps);
    op::WorkList out;
    for (const op::Work& work : steps)
      if (is_communication(work.kind)) out.push(work);
    return out;
  }

 private:
  using Code = program::Code;
  using Step = program::Step;
  static constexpr program::Numbers numbers_of(const program::LayerProgram& program, const StrategySpec& spec,
                                               const Batch& batch) {
    const LayerSpec& layer = program.graph.layer;
    program::Numbers out(layer, spec, batch.microbatch, batch.sequence, batch.precision,
                         RankShares(spec, batch.ratios, batch.local_rank).of_any_rank(), batch.expert_imbalance,
                         batch.lsh, batch.exchanged);
    if (program.options.whole_logits)
      out.set(program::Letter::chunk,
              out(layer.head == HeadKind::classifier ? program::Letter::samples : program::Letter::rows));
    return out;
  }
  // What other trainers take of whole logits beyond the program's: two elements and one in fp32.
  [[nodiscard]] constexpr Bytes more_logits() const {
    const std::int64_t counted = 2 * shape_.e + 4;
    if (layer_.head != HeadKind::language || layer_.kind != LayerKind::head || shape_.traits.logit_bytes <= counted)
      return {};
    return {aligned_bytes(numbers_(program::Letter::rows) * numbers_(program::Letter::vocabulary) *
                          (shape_.traits.logit_bytes - counted))};
  }
  [[nodiscard]] constexpr std::int64_t of(program::ExtentId extent) const { return values_(extent); }

  static constexpr bool exchanges(Code code) {
    switch (code) {
      case Code::exchange_counts:
      case Code::exchange_forward:
      case Code::exchange_backward:
      case Code::compress:
      case Code::compressed_forward:
      case Code::compressed_backward:
      case Code::compress_gradient:
      case Code::decompress:
      case Code::decompress_gradient:
        return true;
      default:
        return false;
    }
  }

  static constexpr bool is_of_experts(Code code) {
    switch (code) {
      case Code::route:
      case Code::exchange_counts:
      case Code::experts_forward:
      case Code::exchange_forward:
      case Code::experts_backward:
      case Code::exchange_backward:
      case Code::route_backward:
      case Code::compress:
      case Code::exchange_bounds:
      case Code::bucket_means:
      case Code::compress_gradient:
      case Code::decompress:
      case Code::decompress_gradient:
      case Code::bucket_weights_back:
      case Code::residual_gradient:
      case Code::compressed_forward:
      case Code::compressed_backward:
        return true;
      default:
        return false;
    }
  }
  // Other trainers divide one backward pass where weight gradients are deferred.
  /// @param weights  takes the gradients of weights
  constexpr void add(Steps counted, program::Phase phase, op::WorkList& out, op::WorkList& weights,
                     Bytes& workspace) const {
    bool exchanges_counts = false;  // beside what is computed until they are needed
    for (const Step& step : p_.steps(phase)) {
      if (step.code == Code::exchange_counts) exchanges_counts = true;
      if (step.code == Code::exchange_forward) exchanges_counts = false;
      const bool of_experts = exchanges_counts || is_of_experts(step.code);
      if (counted != Steps::all && of_experts != (counted == Steps::experts)) continue;
      if (exchanges_counts) {
        add_beside_counts(step, out);
        continue;
      }
      add(step, step.code == Code::weight_gradient || step.code == Code::bias_gradient ? weights : out);
    }
    workspace += frame(phase);
  }
  constexpr void add_beside_counts(const Step& step, op::WorkList& out) const {
    op::WorkList own;
    add(step, own);
    for (op::Work work : own) {
      if (step.code == Code::exchange_counts || !is_communication(work.kind)) work.overlap = op::overlaps;
      out.push(work);
    }
  }
  constexpr void add(const Step& step, op::WorkList& out) const {
    using K = op::Kind;
    const std::int64_t m = of(step.m);
    const std::int64_t n = of(step.n);
    const std::int64_t k = of(step.k);
    const std::int64_t e = shape_.e;
    // What depends on positions is done for each run of a sequence that a rank's tokens are. f(rows, times)
    const auto each_run = [&](bool local, const auto& f) {
      if (!shape_.spec.uses_ring()) return f(m, 1);
      if (shape_.shares.has_even_tokens()) return f(m / 2, 2);
      for (const Share& run : (local ? shape_.shares.tokens() : shape_.shares.region_tokens()).runs)
        f(run.count(shape_.sequence) * shape_.b, 1);
    };
    const auto push = [&out](op::Kind kind, std::int64_t rows, std::int64_t columns = 0, std::int64_t times = 1) {
      if (rows > 0) push_times(out, compute(kind, rows, columns), times);
    };
    // A rank without heads or hidden units has no columns.
    const bool has_columns = n > 0;
    const auto tensor_group = [&](op::Kind kind) {
      if (shape_.spec.tensor > 1) out.push(shape_.tensor_group(kind, m * e));
    };
    switch (step.code) {
      case Code::linear:
      case Code::input_gradient:
        if (k == 0) return push(K::fill, m * n * e);
        if (n == 0) return;
        return out.push(product(step.code == Code::linear ? K::gemm_nt : K::gemm_nn, m, n, k, step.eight_bit));
      case Code::linear_activation:
        if (n == 0) return;
        return add_activation(product(K::gemm_nt, m, inputs_of(step.activation) * n, k, step.eight_bit), step, out);
      case Code::activation_gradient:
        if (n == 0) return;
        return add_activation(product(K::gemm_nn, m, n, k, step.eight_bit), step, out);
      case Code::weight_gradient: {
        if (m == 0 || n == 0) return;
        op::Work work = product(K::gemm_tn, m, n, k, step.eight_bit);
        const forward::WeightSpec& weight = p_.graph.weight(step.weights[0]);
        if (weight.is_split() && !weight.of_adapter) work.writes_one_in = shape_.writes_one_in(p_.graph);
        return out.push(work);
      }
      case Code::bias_gradient:
        if (!has_columns) return;
        return push(K::bias_gradient, m, n);
      case Code::adapter_forward:
      case Code::adapter_input_gradient:
      case Code::adapter_gradient:
        return program::for_each_adapter(p_.graph, step.weights[0], numbers_, [&](const program::LocalAdapter& part) {
          const std::int64_t rank = p_.graph.weight(step.weights[0]).columns.extent;
          if (part.columns == 0 && step.code == Code::adapter_input_gradient) return push(K::fill, m * rank * e);
          if (part.columns == 0 || m == 0) return;
          out.push(step.code == Code::adapter_forward          ? compute(K::gemm_nt, m, part.columns, rank)
                   : step.code == Code::adapter_input_gradient ? compute(K::gemm_nn, m, rank, part.columns)
                                                               : compute(K::gemm_tn, part.columns, rank, m));
        });
      case Code::segment_gradient:
      case Code::prepend_backward:
      case Code::mean:  // sums of columns
        return push(K::bias_gradient, m, n);
      case Code::norm_forward:
      case Code::norm_recompute:
        return push(K::norm_forward, m, n, norm_passes());
      case Code::add_norm_forward:
        return push(K::add_norm_forward, m, n);
      case Code::norm_backward:
        return push(K::norm_backward, m, n, norm_passes());
      case Code::activation_forward:
        if (!has_columns) return;
        return push(K::activation_forward, m, n, activation_passes(step));
      case Code::jitter:  // as an activation, of which a core does three in that time (0.7 ns an element)
        return each_run(true, [&](auto rows, auto times) { push(K::activation_forward, rows, n, times); });
      case Code::activation_backward:
        if (!has_columns) return;
        return push(K::activation_backward, m, n, activation_passes(step));
      case Code::add:
      case Code::multiply:
        return push(K::add, m);
      case Code::dropout:
        return push(K::fill, m);  // its mask; the rest is a part of the sum behind it
      case Code::dropout_backward:
      case Code::copy:
        return push(K::copy, m * e);
      case Code::view:
        return;
      case Code::merge:
      case Code::merge_back:
        return push(K::copy, m * (n / 4) * e, 0, 4);
      case Code::rotate:
      case Code::rotate_back:
        if (!has_columns) return;
        return each_run(step.local,
                        [&](auto rows, auto times) { push(K::rotary, rows, n, times * shape_.traits.rotary_passes); });
      case Code::norm_heads:
      case Code::norm_heads_back:
        return norm_heads(shape_, step.code == Code::norm_heads, of(step.l), out);
      case Code::assemble:
        return assemble_heads(shape_, out);
      case Code::assemble_back:
        return assemble_heads_backward(shape_, out);
      case Code::narrow:
        return push(K::copy, m * n * k * e);
      case Code::narrow_back:
        push(K::fill, m * n * of(step.l) * e);
        return push(K::copy, m * n * k * e);
      case Code::attention_forward:
      case Code::cross_forward:
        return out.push(attend(K::attention_forward, step));
      case Code::attention_backward:
      case Code::cross_backward:
        out.push(attend(K::attention_backward, step));
        if (step.code == Code::attention_backward && step.out[1] >= 0)  // gradients of biases begin as zeros
          push(K::fill, of(p_.buffer_of(step.out[1]).elements) * 4);
        return;
      case Code::spread_biases:
        return push(K::embedding_forward, n, m);
      case Code::gather_biases:
        return push(K::embedding_backward, n, m);
      case Code::route:
        return experts().route_forward(out);
      case Code::exchange_counts:
        return experts().exchange_counts(out);
      case Code::experts_forward:
      case Code::exchange_forward:
        return experts().forward(out, step.out[0] >= 0);
      case Code::experts_backward:
      case Code::exchange_backward:
        return experts().backward(out);
      case Code::route_backward:
        return experts().route_backward(out);
      case Code::compress:
        return experts().compress(out);
      case Code::exchange_bounds:
        experts().exchange_counts(out);
        return push(K::add, numbers_(program::Letter::routed_rows) * n);
      case Code::bucket_means:
      case Code::compress_gradient:
        return experts().permute(out);
      case Code::decompress:
      case Code::decompress_gradient:
        experts().read_gains(out);
        return experts().permute(out);
      case Code::bucket_weights_back:
        experts().read_gains(out);
        return push(K::add, numbers_(program::Letter::routed_rows) * n);
      case Code::residual_gradient:
        push(K::fill, layer_.experts * 4);
        push(K::add, numbers_(program::Letter::routed_rows) * n);
        if (shape_.spec.tensor > 1 && !shape_.cut) out.push(shape_.tensor_group(K::all_reduce, layer_.experts * 4));
        return push(K::add, layer_.experts);
      case Code::compressed_forward:
        return experts().compressed_forward(out);
      case Code::compressed_backward:
        return experts().compressed_backward(out);
      case Code::gate:
      case Code::gate_backward:
        return push(K::add, m * n);
      case Code::ring_forward:
        return ring_attention(shape_, K::attention_forward, out);
      case Code::ring_backward:
        return ring_attention(shape_, K::attention_backward, out);
      case Code::to_heads:
      case Code::to_tokens:
        return exchange_queries(shape_, out);
      case Code::projection_to_heads:
      case Code::projection_to_tokens:
        return exchange_projection(shape_, out, step.code == Code::projection_to_heads);
      case Code::look_up:
        return push(K::embedding_forward, m, n);
      case Code::look_up_backward:
        return push(K::embedding_backward, m, n);
      case Code::add_positions:
        return each_run(true, [&](auto rows, auto times) { push(K::add, rows * n, 0, times); });
      case Code::positions_gradient:
        return each_run(true, [&](auto rows, auto times) { push(K::bias_gradient, rows, n, times); });
      case Code::add_segment:
        return push(K::add, m * n);
      case Code::prepend:
        push(K::fill, m * n * e);
        return push(K::add, m * n);
      case Code::first_token_gradient:
        return push(K::fill, k * n * e);
      case Code::mean_backward:
        return push(K::copy, m * n * e);
      case Code::end_of_text:
        push(K::fill, numbers_(program::Letter::samples) * n * e);
        return push(K::copy, numbers_(program::Letter::samples) * n * e);
      case Code::end_of_text_backward:
        push(K::fill, m * n * e);
        return push(K::copy, m * n * e);
      case Code::cross_entropy:
        return cross_entropy(shape_, m, numbers_(program::Letter::chunk), out);
      case Code::contrast:
        return contrast(shape_, numbers_(program::Letter::chunk), out);
      case Code::all_gather:
        return tensor_group(K::all_gather);
      case Code::all_reduce:
        return tensor_group(K::all_reduce);
      case Code::reduce_scatter:
        return tensor_group(K::reduce_scatter);
      case Code::broadcast:
        return tensor_group(K::broadcast);
      case Code::acquire:
      case Code::open_gradients:
      case Code::close_gradients:
        return;
      case Code::keep_replicated:
        push(K::copy, whole_parameters() * e);
        return push(K::fill, whole_parameters() * 4);
      case Code::add_replicated:
        return push(K::add, whole_parameters());
    }
  }
  // How often kernels that are not fused go over what one would.
  [[nodiscard]] constexpr std::int64_t norm_passes() const {
    return layer_.norm == NormKind::rms_norm ? shape_.traits.norm_passes : 1;
  }
  [[nodiscard]] constexpr std::int64_t activation_passes(const Step& step) const {
    return inputs_of(step.activation) > 1 ? shape_.traits.activation_passes : 1;
  }
  [[nodiscard]] constexpr op::Work product(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k,
                                           bool eight_bit) const {
    op::Work work = compute(kind, m, n, k);
    const Fp8Recipe recipe = shape_.traits.fp8_recipe;
    work.eight_bit = eight_bit && shape_.batch.precision == Precision::fp8 && fits_8bit(m, n, k, recipe);
    if (work.eight_bit) work.recipe = recipe;
    return work;
  }
  // A product and the activation behind it, or its gradient.
  constexpr void add_activation(const op::Work& product, const Step& step, op::WorkList& out) const {
    const op::Kind kind =
        step.code == Code::linear_activation ? op::Kind::activation_forward : op::Kind::activation_backward;
    const bool fuses = p_.options.fuses && step.activation == ActivationKind::gelu && !product.eight_bit;
    out.push(product);
    push_times(out, compute(fuses ? op::in_product(kind) : kind, of(step.m), of(step.n)), activation_passes(step));
  }
  [[nodiscard]] constexpr op::Work attend(op::Kind kind, const Step& step) const {
    const bool crosses = step.code == Code::cross_forward || step.code == Code::cross_backward;
    return shape_.attention(kind, of(step.m), of(step.n), of(step.k), of(step.l), layer_.causal && !crosses);
  }

  [[nodiscard]] constexpr bool has_rotations() const { return layer_.experts > 0 && shape_.spec.compresses_tokens(); }
  [[nodiscard]] constexpr ExpertCounts experts() const { return {shape_, p_.graph, numbers_}; }

  // Elements of the parameters that no tensor rank cuts.
  [[nodiscard]] constexpr std::int64_t whole_parameters() const {
    return StoreElements(p_.graph, shape_.spec, shape_.batch, ParameterPart::rest).whole;
  }

  // ---- memory

  [[nodiscard]] constexpr Bytes bytes(const program::Buffer& buffer) const {
    return {bytes_[static_cast<std::size_t>(&buffer - p_.buffers.begin())]};
  }
  [[nodiscard]] constexpr Bytes frame(program::Phase phase) const {
    const auto size = [this](const program::Buffer& buffer) { return bytes(buffer).count; };
    if (shape_.batch.precision != Precision::fp8) return {program::frame_bytes(p_, phase, size)};
    return {program::frame_bytes(p_, phase, size, [this](const Step& step) { return rounded_operands(step); })};
  }
  // Bytes of the operands that a step rounds to 8 bits.
  [[nodiscard]] constexpr std::int64_t rounded_operands(const Step& step) const {
    const std::int64_t m = of(step.m);
    const std::int64_t n = step.code == Code::linear_activation ? inputs_of(step.activation) * of(step.n) : of(step.n);
    const std::int64_t k = of(step.k);
    const Fp8Recipe recipe = shape_.traits.fp8_recipe;
    if (!step.eight_bit || !fits_8bit(m, n, k, recipe)) return 0;
    return buffer_bytes_8bit(m, n, k, recipe, step.code != Code::weight_gradient);
  }

  const program::LayerProgram& p_;
  const LayerSpec& layer_;
  LayerShape shape_;
  program::Numbers numbers_;
  program::ExtentValues values_;
  std::array<std::int64_t, program::most_buffers> bytes_;  // of the program's buffers; the rest is not set
  bool defers_in_place_;
};

}  // namespace galvatron::cost::detail
