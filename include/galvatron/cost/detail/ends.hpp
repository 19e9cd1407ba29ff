// The counts of the two ends of a model: the embedding, and the head with its loss.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/cost/work.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// The all-reduce that keeps the two copies of a tied table alike: one rank of the first with one of the last stage.
constexpr void tie_tables(const LayerShape& s, const ParameterLayout& table, WorkList& out) {
  if (!s.layer.tied || s.batch.stages == 1) return;
  Work work = compute(WorkKind::all_reduce, table.elements * 4 / (s.spec.zero >= 1 ? s.shards : 1), 2);
  work.stride = (s.batch.stages - 1) * s.spec.ranks();
  out.push(work);
}

/// Image patches of a rank: its tokens but the class tokens.
constexpr std::int64_t patch_rows(const LayerShape& s) { return s.rows_local - (s.layer.class_token ? s.b : 0); }

constexpr LayerCounts embedding_counts(const LayerShape& s) {
  LayerCounts out;
  const ParameterLayout table_layout = s.parameters(ParameterPart::table);
  const ParameterLayout rest_layout = s.parameters(ParameterPart::rest);
  const StoreCounts table(s, table_layout);
  const StoreCounts rest(s, rest_layout);
  const bool learned = s.layer.position == PositionKind::learned;
  const RegionCounts region(s);

  const bool image = s.layer.patch_width > 0;
  const bool types = s.layer.token_types > 0;
  const bool norm = s.layer.closing_norm;

  table.acquire(out.forward);
  rest.acquire(out.forward);
  if (image) {
    out.forward.push(compute(WorkKind::gemm_nt, patch_rows(s), s.h, s.layer.patch_width));
  } else {
    out.forward.push(compute(WorkKind::embedding_forward, s.rows, s.h));
    region.leave(out.forward);
  }
  const auto positions = [&](Work work, WorkList& list) {
    work.m /= s.pieces();
    work.times = s.pieces();
    if (learned) list.push(work);
  };
  positions(compute(WorkKind::add, s.rows_local * s.h), out.forward);
  if (types) out.forward.push(compute(WorkKind::add, s.rows_local * s.h));
  if (norm) out.forward.push(compute(WorkKind::norm_forward, s.rows_local, s.h));

  table.open_gradients(out.backward);
  rest.open_gradients(out.backward);
  if (norm) out.backward.push(compute(WorkKind::norm_backward, s.rows_local, s.h));
  if (types) out.backward.push(compute(WorkKind::bias_gradient, s.rows_local, s.h));
  positions(compute(WorkKind::bias_gradient, s.rows_local, s.h), out.backward);
  if (image) {
    out.backward.push(compute(WorkKind::gemm_tn, s.h, s.layer.patch_width, patch_rows(s)));
    out.backward.push(compute(WorkKind::bias_gradient, s.rows_local, s.h));
  } else {
    region.enter(out.backward);
    out.backward.push(compute(WorkKind::embedding_backward, s.rows, s.h));
  }
  table.close_gradients(out.backward);
  rest.close_gradients(out.backward);

  table.synchronise(out.synchronise);
  rest.synchronise(out.synchronise);
  tie_tables(s, table_layout, out.synchronise);
  table.update(out.update);
  rest.update(out.update);
  out.states = table.states() + rest.states();
  out.stash = {image ? aligned_bytes(patch_rows(s) * s.layer.patch_width * s.e) : aligned_bytes(s.rows * 4)};
  if (norm) out.stash += Bytes{s.activation() + aligned_bytes(s.rows_local * 2 * 4)};
  const std::int64_t together = s.cut && !image ? s.whole_activation() : 0;
  out.forward_workspace = {table.gathered_bytes() + rest.gathered_bytes() + together};
  out.backward_workspace = {table.gradient_bytes() + rest.gradient_bytes() + together};
  return out;
}

/// One vector a sample from those of its tokens, or its gradient for each of them.
constexpr void pool(const LayerShape& s, WorkList& out) {
  out.push(compute(WorkKind::copy, s.rows_local * s.h * s.e));
  if (s.t > 1) out.push(compute(WorkKind::all_reduce, s.b * s.h * s.e, s.t));
}

constexpr LayerCounts head_counts(const LayerShape& s) {
  LayerCounts out;
  const ParameterLayout table_layout = s.parameters(ParameterPart::table);
  const ParameterLayout rest_layout = s.parameters(ParameterPart::rest);
  const StoreCounts table(s, table_layout);
  const StoreCounts rest(s, rest_layout);
  const RegionCounts region(s);
  const std::int64_t v = vocabulary_shard(s.layer.vocabulary, s.spec.tensor);
  const bool pooled = s.layer.head == HeadKind::classifier;
  const bool transformed = s.layer.head == HeadKind::masked_language;
  const std::int64_t rows = pooled ? s.b : s.rows;  // with logits
  const bool whole = s.habits.whole_logits;
  const std::int64_t chunk = whole ? rows : head_chunk_rows(rows);
  WorkList& forward = out.forward;

  table.acquire(forward);
  rest.acquire(forward);
  table.open_gradients(forward);
  rest.open_gradients(forward);
  if (transformed) {
    forward.push(compute(WorkKind::gemm_nt, s.rows_local, s.h, s.h));
    forward.push(compute(WorkKind::activation_forward, s.rows_local, s.h));
  }
  forward.push(compute(WorkKind::norm_forward, s.rows_local, s.h));
  if (pooled)
    pool(s, forward);
  else
    region.enter(forward);
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t n = rows - first < chunk ? rows - first : chunk;
    const auto times = static_cast<std::int32_t>(n == chunk ? rows / chunk : 1);
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
    if (s.layer.head != HeadKind::language) push(compute(WorkKind::bias_gradient, n, v));
    if (n == chunk) first += (times - 1) * chunk;
  }
  if (pooled)
    pool(s, forward);
  else
    region.leave(forward);
  forward.push(compute(WorkKind::norm_backward, s.rows_local, s.h));
  if (transformed) {
    forward.push(compute(WorkKind::activation_backward, s.rows_local, s.h));
    forward.push(compute(WorkKind::gemm_tn, s.h, s.h, s.rows_local));
    forward.push(compute(WorkKind::gemm_nn, s.rows_local, s.h, s.h));
    forward.push(compute(WorkKind::bias_gradient, s.rows_local, s.h));
  }
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
  out.stash = {s.activation() + aligned_bytes(rows * 4)};
  out.forward_workspace = {table.gathered_bytes() + rest.gathered_bytes() + table.gradient_bytes() +
                           rest.gradient_bytes() + s.whole_activation() + aligned_bytes(s.rows_local * 2 * 4) +
                           aligned_bytes(chunk * v * (whole ? 2 * s.e + 4 : s.e)) + aligned_bytes(s.t * chunk * 3 * 4) +
                           aligned_bytes(chunk * 4) + (transformed ? 2 * s.activation() : 0)};
  return out;
}

}  // namespace galvatron::cost::detail
