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

}  // namespace galvatron::cost::detail
