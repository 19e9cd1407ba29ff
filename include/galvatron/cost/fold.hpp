// Fold: what a layer's program does and keeps on one rank, in the terms of LayerCounts.
//
// Every step is one or a few items of work, whose extents Numbers evaluates; buffers add up by storage, and a frame is
// as large as the buffers that live at one of its steps.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/program/allocate.hpp>
#include <galvatron/program/program.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost {

namespace detail {

class Fold {
 public:
  /// @param parameters  false: only the passes of a block are asked for
  constexpr Fold(const program::LayerProgram& program, const StrategySpec& spec, const Batch& batch,
                 bool parameters = true)
      : p_(program),
        layer_(program.graph.layer),
        spec_(spec),
        batch_(batch),
        numbers_(layer_, spec, batch.microbatch, batch.sequence, batch.precision),
        e_(element_bytes(batch.precision)) {
    const bool ends = layer_.kind != LayerKind::block;
    if (!parameters && !ends && !p_.splits) return;
    if (ends) layouts_[groups_++] = parameter_layout(layer_, ParameterPart::table, spec.tensor, spec.shards());
    layouts_[groups_++] = parameter_layout(layer_, ParameterPart::rest, spec.tensor, spec.shards());
  }

  /// Everything, for the parts are used apart in a search: what a block's passes do, and what its parameters add.
  [[nodiscard]] constexpr LayerCounts counts() const {
    LayerCounts out = passes();
    if (layer_.kind == LayerKind::block) out.add(parameters());
    return out;
  }
  [[nodiscard]] constexpr LayerCounts parameters() const {
    LayerCounts out;
    const bool block = layer_.kind == LayerKind::block;
    if (block) {
      add_groups(program::Phase::forward, out.forward);
      add_groups(program::Phase::backward, out.backward);
      add_groups(program::Phase::weights, out.weights);
    }
    for (int g = 0; g < groups_; ++g) add_iteration(g, out);
    add_gathered(out);
    out.streams = batch_.overlap && block;
    out.overlaps_data = batch_.overlap;
    return out;
  }
  /// Of an embedding and a head with their parameters.
  [[nodiscard]] constexpr LayerCounts passes() const {
    LayerCounts out;
    if (layer_.kind != LayerKind::block) out = parameters();
    add(program::Phase::forward, out.forward);
    add(program::Phase::backward, out.backward);
    add(program::Phase::weights, out.weights);
    for (int i = 0; i < p_.buffer_count; ++i) {
      const program::Buffer& buffer = p_.buffer(i);
      if (buffer.storage == program::Storage::slot || buffer.storage == program::Storage::input)
        out.stash += bytes(buffer);
      else if (buffer.storage == program::Storage::deferred)
        out.postponed += bytes(buffer);
    }
    if (layer_.kind != LayerKind::block) out.stash += Bytes{aligned_bytes(numbers_(program::Letter::rows) * 4)};
    if (p_.splits) out.postponed += Bytes{aligned_bytes(uncut(0) * e_) + aligned_bytes(uncut(0) * 4)};
    out.forward_workspace += frame(program::Phase::forward);
    out.backward_workspace += frame(program::Phase::backward);
    out.weights_workspace += frame(program::Phase::weights);
    out.overlaps_data = batch_.overlap;
    const std::int64_t border = aligned_bytes(layer_.hidden * numbers_(program::Letter::local_rows) * e_);
    out.input = {border};
    out.activation = {border};
    return out;
  }

 private:
  using Letter = program::Letter;
  using Code = program::Code;
  using Step = program::Step;
  static constexpr std::size_t at(int i) { return static_cast<std::size_t>(i); }
  [[nodiscard]] constexpr std::int64_t of(const program::Extent& extent) const { return numbers_(extent); }
  [[nodiscard]] constexpr std::int64_t of(Letter letter) const { return numbers_(letter); }

  // ---- work

  /// A block's traffic of parameters and gradients is that of its groups.
  static constexpr bool is_group_step(const Step& step) {
    return step.code == Code::acquire || step.code == Code::open_gradients || step.code == Code::close_gradients;
  }
  constexpr void add(program::Phase phase, op::WorkList& out) const {
    const bool block = layer_.kind == LayerKind::block;
    for (const Step& step : p_.steps(phase))
      if (!block || !is_group_step(step)) add(step, out);
  }
  constexpr void add_groups(program::Phase phase, op::WorkList& out) const {
    for (const Step& step : p_.steps(phase))
      if (is_group_step(step)) add(step, out);
  }
  constexpr void add(const Step& step, op::WorkList& out) const {
    const std::int64_t m = of(step.m);
    const std::int64_t n = of(step.n);
    const std::int64_t k = of(step.k);
    const std::int64_t pieces = spec_.uses_ring() ? 2 : 1;
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
        work.writes_one_in = writes_one_in();
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
      case Code::rotate:
      case Code::rotate_back:
        out.push({.kind = op::Kind::rotary, .m = m, .n = n, .times = static_cast<std::int32_t>(pieces)});
        break;
      case Code::attention_forward:
        out.push(attention(op::Kind::attention_forward, step, of(step.n), layer_.causal));
        break;
      case Code::attention_backward:
        out.push(attention(op::Kind::attention_backward, step, of(step.n), layer_.causal));
        break;
      case Code::ring_forward:
      case Code::ring_backward:
        ring(step, out);
        break;
      case Code::to_heads:
      case Code::to_tokens:
        exchange(out, query_bytes(), 1, query_bytes());
        break;
      case Code::projection_to_heads:
        exchange(out, query_bytes(), 1, query_bytes());
        exchange(out, copied_bytes(), 2, copied_bytes());
        break;
      case Code::projection_to_tokens:
        exchange(out, query_bytes(), 1, query_bytes());
        exchange(out, copied_bytes(), 2, of(Letter::rows) * kv_width() * e_);  // one of the copies; others are added
        if (of(Letter::extra_kv_heads) > 0)
          out.push({.kind = op::Kind::add,
                    .m = of(Letter::rows) * of(Letter::extra_kv_heads) * layer_.head_dim,
                    .times = 2});
        break;
      case Code::look_up:
        push(out, op::Kind::embedding_forward, m, n);
        break;
      case Code::look_up_backward:
        push(out, op::Kind::embedding_backward, m, n);
        break;
      case Code::add_positions:
        out.push({.kind = op::Kind::add, .m = m * n, .times = static_cast<std::int32_t>(pieces)});
        break;
      case Code::positions_gradient:
        out.push({.kind = op::Kind::bias_gradient, .m = m, .n = n, .times = static_cast<std::int32_t>(pieces)});
        break;
      case Code::cross_entropy:
        cross_entropy(m, n, k, out);
        break;
      case Code::copy:
        push(out, op::Kind::copy, m * e_, 0);
        break;
      case Code::all_gather:
        tensor_group(out, op::Kind::all_gather, m * e_);
        break;
      case Code::all_reduce:
        tensor_group(out, op::Kind::all_reduce, m * e_);
        break;
      case Code::reduce_scatter:
        tensor_group(out, op::Kind::reduce_scatter, m * e_);
        break;
      case Code::acquire:
        if (spec_.zero == 3) data_group(out, op::Kind::all_gather, elements(step.group) * e_);
        break;
      case Code::open_gradients:
        if (spec_.zero >= 2) push(out, op::Kind::fill, added(step.group) * 4, 0);
        break;
      case Code::close_gradients:
        if (spec_.zero < 2 || elements(step.group) == 0) break;
        sum_uncut(step.group, out);
        data_group(out, op::Kind::reduce_scatter, elements(step.group) * 4);
        push(out, op::Kind::add, shard(step.group), 0);
        break;
      case Code::keep_uncut:
        push(out, op::Kind::copy, uncut(step.group) * e_, 0);
        push(out, op::Kind::fill, uncut(step.group) * 4, 0);
        break;
      case Code::add_uncut:
        push(out, op::Kind::add, uncut(step.group), 0);
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
            .eight_bit = eight_bit && batch_.precision == Precision::fp8 && fits_8bit(m, n, k)};
  }
  [[nodiscard]] constexpr op::Work activation(op::Kind kind, const Step& step, const op::Work& product) const {
    const bool fuses = step.activation == ActivationKind::gelu && !product.eight_bit;
    return {.kind = fuses ? op::in_product(kind) : kind, .m = of(step.m), .n = of(step.n)};
  }
  /// Work::writes_one_in: under ZeRO-2/3 every micro-batch writes weight gradients, for its shards are added later;
  /// else the first one writes and the others add.
  [[nodiscard]] constexpr int writes_one_in() const {
    if (!writes_gradients(layer_)) return 0;
    return spec_.zero >= 2 ? 1 : batch_.microbatches;
  }
  [[nodiscard]] constexpr op::Work attention(op::Kind kind, const Step& step, std::int64_t keys, bool causal) const {
    return {.kind = kind, .m = of(step.m), .n = of(step.n), .k = keys, .l = of(step.l), .causal = causal};
  }
  constexpr void tensor_group(op::WorkList& out, op::Kind kind, std::int64_t bytes) const {
    if (spec_.tensor > 1) out.push({.kind = kind, .m = bytes, .n = spec_.tensor, .stride = spec_.tensor_stride()});
  }
  constexpr void data_group(op::WorkList& out, op::Kind kind, std::int64_t bytes) const {
    if (spec_.shards() > 1 && bytes > 0)
      out.push({.kind = kind, .m = bytes, .n = spec_.shards(), .stride = spec_.shard_stride()});
  }
  [[nodiscard]] constexpr op::Work context_group(op::Kind kind, std::int64_t bytes) const {
    const bool sends = kind == op::Kind::send;
    return {.kind = kind,
            .m = bytes,
            .n = sends ? 1 : spec_.context,
            .k = sends ? spec_.context : 0,
            .stride = spec_.shard_stride()};
  }

  // Ulysses: a copy that packs or unpacks, and an all-to-all.
  [[nodiscard]] constexpr std::int64_t kv_width() const { return layer_.kv_heads / spec_.tensor * layer_.head_dim; }
  [[nodiscard]] constexpr std::int64_t q_width() const { return layer_.heads / spec_.tensor * layer_.head_dim; }
  [[nodiscard]] constexpr std::int64_t query_bytes() const { return of(Letter::rows) * q_width() * e_; }
  [[nodiscard]] constexpr std::int64_t copied_bytes() const {
    return of(Letter::rows) * of(Letter::copied_kv_heads) * layer_.head_dim * e_;
  }
  constexpr void exchange(op::WorkList& out, std::int64_t bytes, std::int32_t times, std::int64_t packed) const {
    for (op::Work work : {op::Work{.kind = op::Kind::copy, .m = packed}, context_group(op::Kind::all_to_all, bytes)}) {
      work.times = times;
      out.push(work);
    }
  }

  // Ring attention as its last rank does it (runtime: nn/ring.hpp). Turns of one overlap number happen side by side;
  // those of forward and backward differ, since backward may hold both.
  constexpr void ring(const Step& step, op::WorkList& out) const {
    const bool backward = step.code == Code::ring_backward;
    const op::Kind kind = backward ? op::Kind::attention_backward : op::Kind::attention_forward;
    const std::int64_t rows = of(Letter::rows);
    const std::int64_t block = 2 * rows * kv_width();
    const bool rounds = e_ != 4;
    const int c = spec_.context;
    const auto turns = [&](op::Work work, int times, int overlap) {
      if (times <= 0) return;
      work.times = times;
      work.overlap = static_cast<std::uint8_t>(overlap);
      out.push(work);
    };
    const auto sums = [&](std::int64_t elements) { out.push({.kind = op::Kind::add, .m = elements, .times = c - 1}); };
    const int first = backward ? 3 : 1;
    const int middle = first + 1;
    const int last = backward ? 5 : 0;
    const op::Work own = attention(kind, step, of(step.n), layer_.causal);
    const op::Work other = attention(kind, step, of(Letter::ring_keys), false);
    const op::Work keys = context_group(op::Kind::send, block * e_);
    const op::Work gradients = context_group(op::Kind::send, block * 4);
    push(out, op::Kind::copy, block * e_, 0);
    turns(own, 1, first);
    turns(keys, 1, first);
    turns(other, c - 2, middle);
    turns(keys, c - 2, middle);
    turns(other, 1, last);
    if (backward) {
      turns(gradients, c - 2, middle);
      turns(gradients, 1, last);
      turns(gradients, 1, 0);
    }
    if (rounds) push(out, op::Kind::copy, rows * q_width() * 4, 0);
    if (rounds && backward) push(out, op::Kind::copy, block * 4, 0);
    sums(rows * q_width());
    if (backward) sums(layer_.causal ? block / 2 : block);
    if (rounds) push(out, op::Kind::copy, rows * q_width() * e_, 0);
    if (backward) push(out, op::Kind::copy, block * e_, 0);
  }

  // The loss, chunk by chunk of rows; the last chunk may be shorter.
  constexpr void cross_entropy(std::int64_t rows, std::int64_t columns, std::int64_t h, op::WorkList& out) const {
    const std::int64_t chunk = of(Letter::chunk);
    const auto add_chunks = [&](std::int64_t m, std::int64_t times) {
      if (m == 0 || times == 0) return;
      for (op::Work work : {op::Work{.kind = op::Kind::gemm_nt, .m = m, .n = columns, .k = h},
                            op::Work{.kind = op::Kind::softmax_statistics, .m = m, .n = columns},
                            op::Work{.kind = op::Kind::all_gather,
                                     .m = spec_.tensor > 1 ? spec_.tensor * m * 3 * 4 : 0,
                                     .n = spec_.tensor,
                                     .stride = spec_.tensor_stride()},
                            op::Work{.kind = op::Kind::softmax_backward, .m = m, .n = columns},
                            op::Work{.kind = op::Kind::gemm_tn, .m = columns, .n = h, .k = m},
                            op::Work{.kind = op::Kind::gemm_nn, .m = m, .n = h, .k = columns}}) {
        work.times = static_cast<std::int32_t>(times);
        if (work.m > 0) out.push(work);
      }
    };
    add_chunks(chunk, rows / chunk);
    add_chunks(rows % chunk, 1);
  }

  // ---- parameters

  [[nodiscard]] constexpr std::int64_t elements(int group) const { return layouts_[at(group)].elements; }
  [[nodiscard]] constexpr std::int64_t shard(int group) const { return elements(group) / spec_.shards(); }
  [[nodiscard]] constexpr std::int64_t added(int group) const {
    return elements(group) - layouts_[at(group)].written_end;
  }
  [[nodiscard]] constexpr std::int64_t uncut(int group) const {
    return layouts_[at(group)].whole_end - layouts_[at(group)].whole_begin;
  }
  /// Under Megatron's sequence parallelism every tensor rank has gradients of its own tokens for uncut parameters.
  constexpr void sum_uncut(int group, op::WorkList& out) const {
    if (spec_.sequence == SequenceKind::megatron && uncut(group) > 0)
      tensor_group(out, op::Kind::all_reduce, uncut(group) * 4);
  }
  [[nodiscard]] constexpr bool is_table(int group) const { return layer_.kind != LayerKind::block && group == 0; }
  /// Once an iteration: gradients of ZeRO-0/1, the gradient norm, the optimizer, parameters of ZeRO-1/2; states.
  constexpr void add_iteration(int group, LayerCounts& out) const {
    if (elements(group) == 0 || (is_table(group) && shares_table(layer_, batch_))) return;
    const int zero = spec_.zero;
    const bool tied = is_table(group) && layer_.tied;
    if (zero < 2) {
      sum_uncut(group, out.synchronise);
      data_group(out.synchronise, zero == 0 ? op::Kind::all_reduce : op::Kind::reduce_scatter, elements(group) * 4);
    }
    if (tied && batch_.stages > 1)
      out.synchronise.push({.kind = op::Kind::all_reduce,
                            .m = (zero >= 1 ? shard(group) : elements(group)) * 4,
                            .n = 2,
                            .stride = end_pairs(spec_, batch_.stages).shape().stride});
    push(out.update, op::Kind::fill, (zero >= 2 ? shard(group) : added(group)) * 4, 0);
    // The second copy of a tied table has its gradient in the norm already.
    if (!(tied && layer_.kind == LayerKind::head)) push(out.update, op::Kind::norm_squared, shard(group), 0);
    push(out.update, batch_.moments == Precision::fp32 ? op::Kind::adamw : op::Kind::adamw_bf16,
         zero >= 1 ? shard(group) : elements(group), 0);
    if (zero == 1 || zero == 2) data_group(out.update, op::Kind::all_gather, elements(group) * e_);
    const std::int64_t master = batch_.precision == Precision::fp32 ? 0 : 4;
    const std::int64_t moments = 2 * element_bytes(batch_.moments);
    out.states +=
        Bytes{(zero == 3 ? shard(group) : elements(group)) * e_ + (zero >= 2 ? shard(group) : elements(group)) * 4 +
              (zero >= 1 ? shard(group) : elements(group)) * (moments + master)};
  }
  /// Places of gathered parameters and whole gradients beside the frames. A block whose traffic overlaps has two of
  /// each: while it computes, those of its neighbours are under way.
  constexpr void add_gathered(LayerCounts& out) const {
    const std::int64_t places = batch_.overlap && layer_.kind == LayerKind::block ? 2 : 1;
    for (const program::Phase phase : {program::Phase::forward, program::Phase::backward, program::Phase::weights}) {
      std::int64_t bytes = 0;
      for (const Step& step : p_.steps(phase)) {
        if (step.code == Code::acquire && spec_.zero == 3) bytes += elements(step.group) * e_ * places;
        if (step.code == Code::open_gradients && spec_.zero >= 2) bytes += elements(step.group) * 4 * places;
      }
      Bytes& workspace = phase == program::Phase::forward    ? out.forward_workspace
                         : phase == program::Phase::backward ? out.backward_workspace
                                                             : out.weights_workspace;
      workspace += Bytes{bytes};
    }
  }

  // ---- memory

  [[nodiscard]] constexpr Bytes bytes(const program::Buffer& buffer) const {
    return {program::bytes_of(buffer, numbers_, e_)};
  }
  [[nodiscard]] constexpr Bytes frame(program::Phase phase) const {
    return {program::frame_bytes(
        p_, phase, [this](const program::Buffer& buffer) { return bytes(buffer).count; },
        [this](const Step& step) { return rounded_operands(step).count; })};
  }
  /// Operands that a step rounds to 8 bits.
  [[nodiscard]] constexpr Bytes rounded_operands(const Step& step) const {
    if (!step.eight_bit || batch_.precision != Precision::fp8) return {};
    const std::int64_t m = of(step.m);
    const std::int64_t n = step.code == Code::linear_activation ? inputs_of(step.activation) * of(step.n) : of(step.n);
    const std::int64_t k = of(step.k);
    return {fits_8bit(m, n, k) ? room_8bit(m, n, k) : 0};
  }

  const program::LayerProgram& p_;
  const LayerSpec& layer_;
  const StrategySpec& spec_;
  const Batch& batch_;
  program::Numbers numbers_;
  std::int64_t e_;
  std::array<ParameterLayout, 2> layouts_;  // of the groups
  int groups_ = 0;
};

}  // namespace detail

/// What one rank does and keeps for the layer of `program` under `spec`, which is of the program's kinds.
constexpr LayerCounts fold(const program::LayerProgram& program, const StrategySpec& spec, const Batch& batch) {
  return detail::Fold(program, spec, batch).counts();
}
/// The passes of a block alone, or all of an embedding or a head.
constexpr LayerCounts fold_passes(const program::LayerProgram& program, const StrategySpec& spec, const Batch& batch) {
  return detail::Fold(program, spec, batch, false).passes();
}
/// What the parameters of a block add: states, traffic of parameters and gradients, places for them.
constexpr LayerCounts fold_parameters(const program::LayerProgram& program, const StrategySpec& spec,
                                      const Batch& batch) {
  if (program.graph.layer.kind != LayerKind::block) return {};
  return detail::Fold(program, spec, batch).parameters();
}

}  // namespace galvatron::cost
