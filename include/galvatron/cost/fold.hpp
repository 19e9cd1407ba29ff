// Fold: what a layer's program does and keeps on one rank, in the terms of LayerCounts.
//
// Every step is one or a few items of work, whose extents Numbers evaluates; buffers add up by storage, and a frame is
// as large as the buffers that live at one of its steps. What parameters cost is cost/stores.hpp's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/attention.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/ends.hpp>
#include <galvatron/cost/experts.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/cost/stores.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost {

namespace detail {

class Fold {
 public:
  constexpr Fold(const program::LayerProgram& program, const StrategySpec& spec, const Batch& batch)
      : p_(program),
        layer_(program.graph.layer),
        shape_(layer_, spec, batch),
        numbers_(numbers_of(program, spec, batch)),
        values_(program, numbers_),
        defers_in_place_(program.options.keeps_outputs && shape_.splits_backward() && !is_end()) {
    if (is_end())
      layouts_.emplace(
          Layouts{shape_.parameters(p_.graph, ParameterPart::table), shape_.parameters(p_.graph, ParameterPart::rest)});
  }

  [[nodiscard]] constexpr LayerCounts passes() const {
    LayerCounts out;
    add(program::Phase::forward, out.forward, out.forward, out.forward_workspace);
    add(program::Phase::backward, out.backward, defers_in_place_ ? out.weights : out.backward, out.backward_workspace);
    add(program::Phase::weights, out.weights, out.weights, out.weights_workspace);
    if (defers_in_place_) out.weights_workspace = out.backward_workspace;
    // The gradient of a bundle that changes its size from behind the layer to before it may have to move.
    if (const auto [entry, exit] = bundles(); entry != exit)
      out.backward_workspace = max(out.backward_workspace + max(entry, exit) - exit, entry);
    out.overlaps_tensor = shape_.traits.overlaps_tensor && shape_.cut && !is_end();
    for (const program::Buffer& buffer : p_.buffers) {
      if (buffer.storage == program::Storage::slot || buffer.storage == program::Storage::input)
        out.stash += bytes(buffer);
      else if (buffer.storage == program::Storage::deferred)
        out.deferred += bytes(buffer);
    }
    if (p_.splits) {
      const std::int64_t replicated = replicated_elements();
      out.deferred += Bytes{aligned_bytes(replicated * shape_.e) + aligned_bytes(replicated * 4)};
    }
    if (is_end()) {
      out.stash += Bytes{aligned_bytes(program::token_count(layer_, numbers_) * 4)};
      for (int part = 0; part < 2; ++part) add_iteration(part, out);
    }
    return out;
  }

 private:
  using Code = program::Code;
  using Step = program::Step;
  using Layouts = std::array<ParameterLayout, 2>;
  static constexpr program::Numbers numbers_of(const program::LayerProgram& program, const StrategySpec& spec,
                                               const Batch& batch) {
    const LayerSpec& layer = program.graph.layer;
    program::Numbers out(layer, spec, batch.microbatch, batch.sequence, batch.precision);
    if (program.options.whole_logits)
      out.set(program::Letter::chunk,
              out(layer.head == HeadKind::classifier ? program::Letter::samples : program::Letter::rows));
    return out;
  }
  [[nodiscard]] constexpr bool is_end() const { return layer_.kind != LayerKind::block; }
  [[nodiscard]] constexpr std::int64_t of(program::ExtentId extent) const { return values_(extent); }

  // Other trainers divide one backward pass where weight gradients are deferred.
  /// @param weights  takes the gradients of weights
  constexpr void add(program::Phase phase, op::WorkList& out, op::WorkList& weights, Bytes& workspace) const {
    for (const Step& step : p_.steps(phase)) {
      add(step, step.code == Code::weight_gradient || step.code == Code::bias_gradient ? weights : out);
      if (!is_end()) continue;
      // What ZeRO gathers lies beside the frame.
      if (step.code == Code::acquire) workspace += Bytes{store(step.group).gathered_bytes()};
      if (step.code == Code::open_gradients) workspace += Bytes{store(step.group).gradient_bytes()};
    }
    workspace += frame(phase);
  }
  constexpr void add(const Step& step, op::WorkList& out) const {
    const std::int64_t m = of(step.m);
    const std::int64_t n = of(step.n);
    const std::int64_t k = of(step.k);
    const std::int64_t pieces = shape_.pieces();
    switch (step.code) {
      case Code::linear:
        out.push(product(op::Kind::gemm_nt, m, n, k, step.eight_bit));
        break;
      case Code::linear_activation: {
        const op::Work work = product(op::Kind::gemm_nt, m, inputs_of(step.activation) * n, k, step.eight_bit);
        out.push(work);
        out.push(activation(op::Kind::activation_forward, step, work));
        break;
      }
      case Code::input_gradient:
        out.push(product(op::Kind::gemm_nn, m, n, k, step.eight_bit));
        break;
      case Code::activation_gradient: {
        const op::Work work = product(op::Kind::gemm_nn, m, n, k, step.eight_bit);
        out.push(work);
        out.push(activation(op::Kind::activation_backward, step, work));
        break;
      }
      case Code::weight_gradient: {
        op::Work work = product(op::Kind::gemm_tn, m, n, k, step.eight_bit);
        if (p_.graph.weight(step.weights[0]).is_split()) work.writes_one_in = shape_.writes_one_in(p_.graph);
        out.push(work);
        break;
      }
      case Code::bias_gradient:
        push(out, op::Kind::bias_gradient, m, n);
        break;
      case Code::norm_forward:
      case Code::norm_recompute:
        push(out, op::Kind::norm_forward, m, n);
        break;
      case Code::add_norm_forward:
        push(out, op::Kind::add_norm_forward, m, n);
        break;
      case Code::norm_backward:
        push(out, op::Kind::norm_backward, m, n);
        break;
      case Code::activation_forward:
        push(out, op::Kind::activation_forward, m, n);
        break;
      case Code::activation_backward:
        push(out, op::Kind::activation_backward, m, n);
        break;
      case Code::add:
      case Code::multiply:
        push(out, op::Kind::add, m, 0);
        break;
      case Code::dropout:
        push(out, op::Kind::fill, m, 0);  // its mask; the rest is a part of the sum behind it
        break;
      case Code::dropout_backward:
        push(out, op::Kind::copy, m * shape_.e, 0);
        break;
      case Code::view:
        break;
      case Code::merge:
      case Code::merge_back:
        out.push({.kind = op::Kind::copy, .m = m * (n / 4) * shape_.e, .times = 4});
        break;
      case Code::rotate:
      case Code::rotate_back:
        out.push({.kind = op::Kind::rotary, .m = m / pieces, .n = n, .times = static_cast<std::int32_t>(pieces)});
        break;
      case Code::attention_forward:
      case Code::cross_forward:
        out.push(attend(op::Kind::attention_forward, step));
        break;
      case Code::attention_backward:
      case Code::cross_backward:
        out.push(attend(op::Kind::attention_backward, step));
        if (step.code == Code::attention_backward && step.out[1] >= 0)  // gradients of biases begin as zeros
          push(out, op::Kind::fill, of(p_.buffer_of(step.out[1]).elements) * 4, 0);
        break;
      case Code::spread_biases:
        push(out, op::Kind::embedding_forward, n, m);
        break;
      case Code::gather_biases:
        push(out, op::Kind::embedding_backward, n, m);
        break;
      case Code::route:
        route_forward(shape_, out);
        break;
      case Code::experts_forward:
        experts_forward(shape_, p_.graph, out, step.out[0] >= 0);
        break;
      case Code::experts_backward:
        experts_backward(shape_, p_.graph, out);
        break;
      case Code::ring_forward:
      case Code::ring_backward:
        step.code == Code::ring_forward ? attention().ring_forward(out) : attention().ring_backward(out);
        break;
      case Code::to_heads:
      case Code::to_tokens:
        attention().exchange_queries(out);
        break;
      case Code::projection_to_heads:
        attention().projection_to_heads(out);
        break;
      case Code::projection_to_tokens:
        attention().projection_to_tokens(out);
        break;
      case Code::look_up:
        push(out, op::Kind::embedding_forward, m, n);
        break;
      case Code::look_up_backward:
        push(out, op::Kind::embedding_backward, m, n);
        break;
      case Code::add_positions:
        out.push({.kind = op::Kind::add, .m = m / pieces * n, .times = static_cast<std::int32_t>(pieces)});
        break;
      case Code::positions_gradient:
        out.push(
            {.kind = op::Kind::bias_gradient, .m = m / pieces, .n = n, .times = static_cast<std::int32_t>(pieces)});
        break;
      case Code::add_segment:
        push(out, op::Kind::add, m * n, 0);
        break;
      case Code::segment_gradient:
        push(out, op::Kind::bias_gradient, m, n);
        break;
      case Code::prepend:
        push(out, op::Kind::fill, m * n * shape_.e, 0);
        push(out, op::Kind::add, m * n, 0);
        break;
      case Code::prepend_backward:
        push(out, op::Kind::bias_gradient, m, n);
        break;
      case Code::first_token_gradient:
        push(out, op::Kind::fill, k * n * shape_.e, 0);
        break;
      case Code::mean:
        push(out, op::Kind::bias_gradient, m, n);  // sums of columns
        break;
      case Code::mean_backward:
        push(out, op::Kind::copy, m * n * shape_.e, 0);
        break;
      case Code::cross_entropy:
        cross_entropy(shape_, m, numbers_(program::Letter::chunk), out);
        break;
      case Code::copy:
        push(out, op::Kind::copy, m * shape_.e, 0);
        break;
      case Code::all_gather:
        tensor_group(out, op::Kind::all_gather, m * shape_.e);
        break;
      case Code::all_reduce:
        tensor_group(out, op::Kind::all_reduce, m * shape_.e);
        break;
      case Code::reduce_scatter:
        tensor_group(out, op::Kind::reduce_scatter, m * shape_.e);
        break;
      case Code::broadcast:
        tensor_group(out, op::Kind::broadcast, m * shape_.e);
        break;
      case Code::acquire:
        if (is_end()) store(step.group).acquire(out);
        break;
      case Code::open_gradients:
        if (is_end()) store(step.group).open_gradients(out);
        break;
      case Code::close_gradients:
        if (is_end()) store(step.group).close_gradients(out);
        break;
      case Code::keep_replicated:
        push(out, op::Kind::copy, replicated_elements() * shape_.e, 0);
        push(out, op::Kind::fill, replicated_elements() * 4, 0);
        break;
      case Code::add_replicated:
        push(out, op::Kind::add, replicated_elements(), 0);
        break;
    }
  }
  static constexpr void push(op::WorkList& out, op::Kind kind, std::int64_t m, std::int64_t n) {
    if (m > 0) out.push({.kind = kind, .m = m, .n = n});
  }
  [[nodiscard]] constexpr op::Work product(op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k,
                                           bool eight_bit) const {
    return {.kind = kind,
            .m = m,
            .n = n,
            .k = k,
            .eight_bit = eight_bit && shape_.batch.precision == Precision::fp8 && fits_8bit(m, n, k)};
  }
  [[nodiscard]] constexpr op::Work activation(op::Kind kind, const Step& step, const op::Work& product) const {
    const bool fuses = p_.options.fuses && step.activation == ActivationKind::gelu && !product.eight_bit;
    return {.kind = fuses ? op::in_product(kind) : kind, .m = of(step.m), .n = of(step.n)};
  }
  [[nodiscard]] constexpr AttentionCounts attention() const { return AttentionCounts(shape_); }
  [[nodiscard]] constexpr op::Work attend(op::Kind kind, const Step& step) const {
    const bool crosses = step.code == Code::cross_forward || step.code == Code::cross_backward;
    return {.kind = kind,
            .m = of(step.m),
            .n = of(step.n),
            .k = of(step.k),
            .l = of(step.l),
            .causal = layer_.causal && !crosses,
            .unfused = !p_.options.fused_attention,
            .dropout = !p_.options.fused_attention && p_.options.dropout};
  }
  constexpr void tensor_group(op::WorkList& out, op::Kind kind, std::int64_t bytes) const {
    if (shape_.spec.tensor > 1)
      out.push({.kind = kind, .m = bytes, .n = shape_.spec.tensor, .stride = shape_.spec.tensor_stride()});
  }
  // ---- parameters of ends; those of blocks are store_counts'

  [[nodiscard]] constexpr StoreCounts store(int group) const { return part(p_.groups() == 2 ? group : 1); }
  [[nodiscard]] constexpr StoreCounts part(int part) const {
    return {shape_, (*layouts_)[static_cast<std::size_t>(part)]};
  }
  /// Once an iteration. A tied head uses the embedding's table where it can; else its table is a second copy, whose
  /// gradient is in the norm once already.
  constexpr void add_iteration(int number, LayerCounts& out) const {
    const bool is_table = number == 0;
    const StoreCounts store = part(number);
    if (is_table && shares_table(layer_, shape_.batch)) return;
    store.synchronise(out.synchronise);
    if (is_table) tie_tables(shape_, layouts_->front(), out.synchronise);
    store.update(out.update, !(is_table && layer_.kind == LayerKind::head && layer_.tied));
    out.states += store.states();
  }

  /// Elements of the parameters of a block that no rank cuts: norms and some biases.
  [[nodiscard]] constexpr std::int64_t replicated_elements() const {
    const ParameterLayout layout = shape_.parameters(p_.graph, ParameterPart::rest);
    return layout.whole_end - layout.whole_begin;
  }

  // ---- memory

  /// Of the bundles before and behind the layer.
  [[nodiscard]] constexpr std::pair<Bytes, Bytes> bundles() const {
    return {shape_.local_bytes(layer_.input_elements(shape_.batch.sequence)),
            shape_.local_bytes(layer_.output_elements(shape_.batch.sequence))};
  }
  [[nodiscard]] constexpr Bytes bytes(const program::Buffer& buffer) const {
    return {program::bytes_of(buffer, values_, shape_.e)};
  }
  [[nodiscard]] constexpr Bytes frame(program::Phase phase) const {
    const auto size = [this](const program::Buffer& buffer) { return bytes(buffer).count; };
    if (shape_.batch.precision != Precision::fp8) return {program::frame_bytes(p_, phase, size)};
    return {program::frame_bytes(p_, phase, size, [this](const Step& step) { return rounded_operands(step).count; })};
  }
  /// Operands that a step rounds to 8 bits.
  [[nodiscard]] constexpr Bytes rounded_operands(const Step& step) const {
    if (!step.eight_bit || shape_.batch.precision != Precision::fp8) return {};
    const std::int64_t m = of(step.m);
    const std::int64_t n = step.code == Code::linear_activation ? inputs_of(step.activation) * of(step.n) : of(step.n);
    const std::int64_t k = of(step.k);
    return {fits_8bit(m, n, k) ? room_8bit(m, n, k) : 0};
  }

  const program::LayerProgram& p_;
  const LayerSpec& layer_;
  LayerShape shape_;
  program::Numbers numbers_;
  program::ExtentValues values_;
  bool defers_in_place_;
  std::optional<Layouts> layouts_;  ///< of an end's table and of its other parameters
};

}  // namespace detail

/// The passes of a layer under `spec`, which is of the program's kinds; of an embedding and a head everything.
constexpr LayerCounts fold_passes(const program::LayerProgram& program, const StrategySpec& spec, const Batch& batch) {
  return detail::Fold(program, spec, batch).passes();
}

}  // namespace galvatron::cost
