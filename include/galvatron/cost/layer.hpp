// The closed formulas: what one rank does and keeps for one layer under one strategy.
//
// They mirror, operation by operation, what the layers of nn/ do on a device; a test runs those layers on device::dry
// and compares. Shape letters as in model/spec.hpp; t tensor degree, d data degree, b samples of a rank,
// e bytes of an element. `rows` = S * b tokens; under Megatron sequence parallelism a rank holds rows / t of them
// between the tensor-parallel regions.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/work.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// The circumstances of a layer that its spec and strategy do not tell.
struct Batch {
  std::int64_t microbatch = 1;  ///< samples of one micro-batch over all data ranks
  std::int64_t sequence = 1;    ///< S
  Precision precision = Precision::fp32;
  int microbatches = 1;
  int stages = 1;  ///< pipeline degree: a tied head shares the embedding's table only when it is 1
};

/// What one rank does and keeps for one layer.
struct LayerCounts {
  WorkList forward;          ///< one micro-batch
  WorkList backward;         ///< one micro-batch, with recomputation and ZeRO-2/3 traffic
  WorkList synchronise;      ///< once an iteration: gradients of ZeRO-0/1 and of tied tables
  WorkList update;           ///< once an iteration: gradient norm, AdamW, parameter gathering
  Bytes states;              ///< parameters, gradients, optimizer states
  Bytes stash;               ///< kept from forward to backward for each micro-batch in flight, the input included
  Bytes activation;          ///< the local input (= output) tensor
  Bytes forward_workspace;   ///< transient peak of forward
  Bytes backward_workspace;  ///< transient peak of backward beyond the gradient that it transforms in place
};

/// Tokens of the head for which logits exist at one time.
constexpr std::int64_t head_chunk_rows(std::int64_t rows) { return rows < 512 ? rows : 512; }

/// True when the head computes with the embedding's own table.
constexpr bool shares_table(const LayerSpec& layer, const Batch& batch) {
  return layer.kind == LayerKind::head && layer.tied && batch.stages == 1;
}

namespace detail {

struct LayerShape {
  const LayerSpec& layer;
  const StrategySpec& spec;
  const Batch& batch;
  std::int64_t t, d, b, rows, rows_local, h, q, qkv, ffn, ffn_in, e;
  bool cut;  // Megatron sequence parallelism

  constexpr LayerShape(const LayerSpec& l, const StrategySpec& s, const Batch& bt)
      : layer(l),
        spec(s),
        batch(bt),
        t(s.tensor),
        d(s.data),
        b(bt.microbatch / s.data),
        rows(bt.sequence * b),
        rows_local(s.sequence == SequenceKind::megatron ? rows / t : rows),
        h(l.hidden),
        q(l.heads / t * l.head_dim),
        qkv(q + 2 * (l.kv_heads / t) * l.head_dim),
        ffn(l.ffn / t),
        ffn_in(l.ffn_inputs() / t),
        e(element_bytes(bt.precision)),
        cut(s.sequence == SequenceKind::megatron) {}

  [[nodiscard]] constexpr std::int64_t activation() const { return aligned_bytes(rows_local * h * e); }
  [[nodiscard]] constexpr std::int64_t whole_activation() const { return aligned_bytes(rows * h * e); }
  [[nodiscard]] constexpr ParameterLayout parameters(ParameterPart part) const {
    return parameter_layout(layer, part, spec.tensor, spec.data);
  }
};

constexpr Work compute(WorkKind kind, std::int64_t m, std::int64_t n = 0, std::int64_t k = 0) {
  return {.kind = kind, .m = m, .n = n, .k = k};
}

/// The traffic of one parameter store.
class StoreCounts {
 public:
  constexpr StoreCounts(const LayerShape& shape, const ParameterLayout& layout)
      : s_(shape), layout_(layout), n_(layout.elements), zero_(shape.spec.zero) {}

  [[nodiscard]] constexpr Bytes states() const {
    const std::int64_t shard = n_ / s_.d;
    const std::int64_t parameters = zero_ == 3 ? shard : n_;
    const std::int64_t gradients = zero_ >= 2 ? shard : n_;
    const std::int64_t optimizer = zero_ >= 1 ? shard : n_;
    const std::int64_t master = s_.batch.precision == Precision::fp32 ? 0 : 4;
    return {parameters * s_.e + gradients * 4 + optimizer * (8 + master)};
  }
  /// Bytes of the gathered parameters while the layer works.
  [[nodiscard]] constexpr std::int64_t gathered_bytes() const { return zero_ == 3 ? n_ * s_.e : 0; }
  /// Bytes of the whole gradient while the layer works backward.
  [[nodiscard]] constexpr std::int64_t gradient_bytes() const { return zero_ >= 2 ? n_ * 4 : 0; }
  constexpr void acquire(WorkList& out) const {
    if (n_ > 0 && zero_ == 3) out.push(data_group(WorkKind::all_gather, n_ * s_.e));
  }
  constexpr void open_gradients(WorkList& out) const {
    if (n_ > 0 && zero_ >= 2) out.push(compute(WorkKind::fill, n_ * 4));
  }
  constexpr void close_gradients(WorkList& out) const {
    if (n_ == 0 || zero_ < 2) return;
    sum_whole(out);
    out.push(data_group(WorkKind::reduce_scatter, n_ * 4));
    out.push(compute(WorkKind::add, n_ / s_.d));
  }
  constexpr void synchronise(WorkList& out) const {
    if (n_ == 0 || zero_ >= 2) return;
    sum_whole(out);
    if (s_.d > 1) out.push(data_group(zero_ == 0 ? WorkKind::all_reduce : WorkKind::reduce_scatter, n_ * 4));
  }
  /// @param in_norm  false for the second copy of a tied table: its gradient is in the norm once already
  constexpr void update(WorkList& out, bool in_norm = true) const {
    if (n_ == 0) return;
    out.push(compute(WorkKind::fill, (zero_ >= 2 ? n_ / s_.d : n_) * 4));
    if (in_norm) out.push(compute(WorkKind::norm_squared, n_ / s_.d));
    out.push(compute(WorkKind::adamw, zero_ >= 1 ? n_ / s_.d : n_));
    if (zero_ == 1 || zero_ == 2) out.push(data_group(WorkKind::all_gather, n_ * s_.e));
  }

 private:
  [[nodiscard]] constexpr Work data_group(WorkKind kind, std::int64_t bytes) const {
    Work work = compute(kind, bytes, s_.d);
    work.strided = s_.t > 1;
    return work;
  }
  constexpr void sum_whole(WorkList& out) const {
    const std::int64_t whole = layout_.whole_end - layout_.whole_begin;
    if (s_.cut && whole > 0) out.push(compute(WorkKind::all_reduce, whole * 4, s_.t));
  }

  const LayerShape& s_;
  const ParameterLayout& layout_;
  std::int64_t n_;
  int zero_;
};

/// Collectives over the tensor-parallel group around a region in which weights are cut.
class RegionCounts {
 public:
  explicit constexpr RegionCounts(const LayerShape& shape) : s_(shape) {}
  /// Before a column-cut weight: under sequence parallelism the tokens come together.
  constexpr void enter(WorkList& out) const {
    if (s_.cut) out.push(compute(WorkKind::all_gather, bytes(), s_.t));
  }
  /// After a row-cut weight: the partial sums are added.
  constexpr void leave(WorkList& out) const {
    if (s_.t > 1) out.push(compute(s_.cut ? WorkKind::reduce_scatter : WorkKind::all_reduce, bytes(), s_.t));
  }

 private:
  [[nodiscard]] constexpr std::int64_t bytes() const { return s_.rows * s_.h * s_.e; }
  const LayerShape& s_;
};

constexpr void block_forward(const LayerShape& s, WorkList& out, bool whole) {
  const RegionCounts region(s);
  const Work attention{.kind = WorkKind::attention_forward,
                       .m = s.b * (s.layer.heads / s.t),
                       .n = s.batch.sequence,
                       .k = s.batch.sequence,
                       .l = s.layer.head_dim,
                       .causal = s.layer.causal};
  out.push(compute(WorkKind::norm_forward, s.rows_local, s.h));
  region.enter(out);
  out.push(compute(WorkKind::gemm_nt, s.rows, s.qkv, s.h));
  if (s.layer.position == PositionKind::rotary) out.push(compute(WorkKind::rotary, s.rows, (s.q + s.qkv) / 2));
  out.push(attention);
  out.push(compute(WorkKind::gemm_nt, s.rows, s.h, s.q));
  region.leave(out);
  out.push(compute(WorkKind::add, s.rows_local * s.h));
  out.push(compute(WorkKind::norm_forward, s.rows_local, s.h));
  region.enter(out);
  out.push(compute(WorkKind::gemm_nt, s.rows, s.ffn_in, s.h));
  if (!whole) return;
  out.push(compute(WorkKind::activation_forward, s.rows, s.ffn));
  out.push(compute(WorkKind::gemm_nt, s.rows, s.h, s.ffn));
  region.leave(out);
  out.push(compute(WorkKind::add, s.rows_local * s.h));
}

constexpr void block_backward(const LayerShape& s, WorkList& out) {
  const RegionCounts region(s);
  const Work attention{.kind = WorkKind::attention_backward,
                       .m = s.b * (s.layer.heads / s.t),
                       .n = s.batch.sequence,
                       .k = s.batch.sequence,
                       .l = s.layer.head_dim,
                       .causal = s.layer.causal};
  const auto linear = [&](std::int64_t outputs, std::int64_t inputs) {
    out.push(compute(WorkKind::gemm_tn, outputs, inputs, s.rows));
    out.push(compute(WorkKind::gemm_nn, s.rows, inputs, outputs));
  };
  const auto bias = [&](std::int64_t rows, std::int64_t columns) {
    if (s.layer.bias) out.push(compute(WorkKind::bias_gradient, rows, columns));
  };
  region.enter(out);
  out.push(compute(WorkKind::activation_forward, s.rows, s.ffn));
  linear(s.h, s.ffn);
  bias(s.rows_local, s.h);
  out.push(compute(WorkKind::activation_backward, s.rows, s.ffn));
  out.push(compute(WorkKind::norm_forward, s.rows_local, s.h));
  region.enter(out);
  linear(s.ffn_in, s.h);
  bias(s.rows, s.ffn_in);
  region.leave(out);
  out.push(compute(WorkKind::norm_backward, s.rows_local, s.h));
  region.enter(out);
  linear(s.h, s.q);
  bias(s.rows_local, s.h);
  out.push(attention);
  if (s.layer.position == PositionKind::rotary) out.push(compute(WorkKind::rotary, s.rows, (s.q + s.qkv) / 2));
  out.push(compute(WorkKind::norm_forward, s.rows_local, s.h));
  region.enter(out);
  linear(s.qkv, s.h);
  bias(s.rows, s.qkv);
  region.leave(out);
  out.push(compute(WorkKind::norm_backward, s.rows_local, s.h));
}

constexpr LayerCounts block_counts(const LayerShape& s) {
  LayerCounts out;
  const bool again = s.spec.recompute == RecomputeKind::full;
  const ParameterLayout layout = s.parameters(ParameterPart::rest);
  const StoreCounts store(s, layout);
  store.acquire(out.forward);
  block_forward(s, out.forward, true);
  store.acquire(out.backward);
  store.open_gradients(out.backward);
  if (again) block_forward(s, out.backward, false);
  block_backward(s, out.backward);
  store.close_gradients(out.backward);
  store.synchronise(out.synchronise);
  store.update(out.update);
  out.states = store.states();

  const std::int64_t internals = 2 * aligned_bytes(s.rows_local * 2 * 4) + aligned_bytes(s.rows * s.qkv * s.e) +
                                 aligned_bytes(s.rows * s.q * s.e) +
                                 aligned_bytes(s.b * (s.layer.heads / s.t) * s.batch.sequence * 4) + s.activation() +
                                 aligned_bytes(s.rows * s.ffn_in * s.e);
  const std::int64_t mlp = aligned_bytes(s.rows * s.ffn * s.e);
  const std::int64_t attention = aligned_bytes(s.rows * s.q * s.e) + aligned_bytes(s.rows * s.qkv * s.e) +
                                 aligned_bytes(s.b * (s.layer.heads / s.t) * s.batch.sequence * 4);
  out.activation = {s.activation()};
  out.stash = {s.activation() + (again ? 0 : internals)};
  out.forward_workspace = {store.gathered_bytes() + (again ? internals : 0) + s.whole_activation() + mlp};
  out.backward_workspace = {store.gathered_bytes() + store.gradient_bytes() + (again ? internals : 0) +
                            s.whole_activation() + (s.cut ? s.whole_activation() : 0) +
                            (mlp > attention ? mlp : attention)};
  return out;
}

/// The all-reduce that keeps the two copies of a tied table alike: one rank of the first with one of the last stage.
constexpr void tie_tables(const LayerShape& s, const ParameterLayout& table, WorkList& out) {
  if (!s.layer.tied || s.batch.stages == 1) return;
  Work work = compute(WorkKind::all_reduce, table.elements * 4 / (s.spec.zero >= 1 ? s.d : 1), 2);
  work.strided = (s.batch.stages - 1) * s.spec.ranks() > 1;
  out.push(work);
}

constexpr LayerCounts embedding_counts(const LayerShape& s) {
  LayerCounts out;
  const ParameterLayout table_layout = s.parameters(ParameterPart::table);
  const ParameterLayout rest_layout = s.parameters(ParameterPart::rest);
  const StoreCounts table(s, table_layout);
  const StoreCounts rest(s, rest_layout);
  const bool learned = s.layer.position == PositionKind::learned;
  const RegionCounts region(s);

  table.acquire(out.forward);
  rest.acquire(out.forward);
  out.forward.push(compute(WorkKind::embedding_forward, s.rows, s.h));
  region.leave(out.forward);
  if (learned) out.forward.push(compute(WorkKind::add, s.rows_local * s.h));

  table.open_gradients(out.backward);
  rest.open_gradients(out.backward);
  if (learned) out.backward.push(compute(WorkKind::bias_gradient, s.rows_local, s.h));
  region.enter(out.backward);
  out.backward.push(compute(WorkKind::embedding_backward, s.rows, s.h));
  table.close_gradients(out.backward);
  rest.close_gradients(out.backward);

  table.synchronise(out.synchronise);
  rest.synchronise(out.synchronise);
  tie_tables(s, table_layout, out.synchronise);
  table.update(out.update);
  rest.update(out.update);
  out.states = table.states() + rest.states();
  out.activation = {s.activation()};
  out.stash = {aligned_bytes(s.rows * 4)};
  const std::int64_t together = s.cut ? s.whole_activation() : 0;
  out.forward_workspace = {table.gathered_bytes() + rest.gathered_bytes() + together};
  out.backward_workspace = {table.gradient_bytes() + rest.gradient_bytes() + together};
  return out;
}

constexpr LayerCounts head_counts(const LayerShape& s) {
  LayerCounts out;
  const ParameterLayout table_layout = s.parameters(ParameterPart::table);
  const ParameterLayout rest_layout = s.parameters(ParameterPart::rest);
  const StoreCounts table(s, table_layout);
  const StoreCounts rest(s, rest_layout);
  const RegionCounts region(s);
  const std::int64_t v = vocabulary_shard(s.layer.vocabulary, s.spec.tensor);
  const std::int64_t chunk = head_chunk_rows(s.rows);
  WorkList& forward = out.forward;

  table.acquire(forward);
  rest.acquire(forward);
  table.open_gradients(forward);
  rest.open_gradients(forward);
  forward.push(compute(WorkKind::norm_forward, s.rows_local, s.h));
  region.enter(forward);
  for (std::int64_t first = 0; first < s.rows; first += chunk) {
    const std::int64_t n = s.rows - first < chunk ? s.rows - first : chunk;
    const auto times = static_cast<std::int32_t>(n == chunk ? s.rows / chunk : 1);
    const auto push = [&](Work work) {
      work.times = times;
      forward.push(work);
    };
    push(compute(WorkKind::gemm_nt, n, v, s.h));
    push(compute(WorkKind::softmax_statistics, n, v));
    if (s.t > 1) push(compute(WorkKind::all_gather, s.t * n * 3 * 4, s.t));
    push(compute(WorkKind::softmax_backward, n, v));
    push(compute(WorkKind::gemm_tn, v, s.h, n));
    push(compute(WorkKind::gemm_nn, n, s.h, v));
    if (n == chunk) first += (times - 1) * chunk;
  }
  region.leave(forward);
  forward.push(compute(WorkKind::norm_backward, s.rows_local, s.h));
  table.close_gradients(forward);
  rest.close_gradients(forward);
  out.backward.push(compute(WorkKind::copy, s.rows_local * s.h * s.e));

  const bool shares = shares_table(s.layer, s.batch);
  if (!shares) {
    table.synchronise(out.synchronise);
    tie_tables(s, table_layout, out.synchronise);
    table.update(out.update, !s.layer.tied);
    out.states += table.states();
  }
  rest.synchronise(out.synchronise);
  rest.update(out.update);
  out.states += rest.states();
  out.activation = {s.activation()};
  out.stash = {s.activation() + aligned_bytes(s.rows * 4)};
  out.forward_workspace = {table.gathered_bytes() + rest.gathered_bytes() + table.gradient_bytes() +
                           rest.gradient_bytes() + s.whole_activation() + aligned_bytes(s.rows_local * 2 * 4) +
                           aligned_bytes(chunk * v * s.e) + aligned_bytes(s.t * chunk * 3 * 4) +
                           aligned_bytes(chunk * 4)};
  return out;
}

}  // namespace detail

/// What one rank does and keeps for `layer` under `spec`. The strategy must fit the layer and the batch
/// (strategy/legality.hpp); context and expert parallelism are not part of the layer code yet and count as degree 1.
constexpr LayerCounts layer_counts(const LayerSpec& layer, const StrategySpec& spec, const Batch& batch) {
  const detail::LayerShape shape(layer, spec, batch);
  switch (layer.kind) {
    case LayerKind::embedding:
      return detail::embedding_counts(shape);
    case LayerKind::head:
      return detail::head_counts(shape);
    case LayerKind::block:
      break;
  }
  return detail::block_counts(shape);
}

}  // namespace galvatron::cost
