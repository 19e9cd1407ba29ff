// The counts of the two ends of a model: the embedding, and the head with its loss.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/cost/detail/shape.hpp>
#include <galvatron/cost/detail/stores.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// The all-reduce that keeps the two copies of a tied table alike: one rank of the first with one of the last stage.
constexpr void tie_tables(const LayerShape& s, const ParameterLayout& table, op::WorkList& out) {
  if (!s.layer.tied || s.batch.stages == 1) return;
  op::Work work = compute(op::Kind::all_reduce, table.elements * 4 / (s.spec.zero >= 1 ? s.shards : 1), 2);
  work.stride = end_pairs(s.spec, s.batch.stages).shape().stride;
  out.push(work);
}

/// Class tokens of a rank. Where sequences are cut the first tensor rank has them all; what is counted of an embedding
/// is another rank, which has more patches instead, and of a classifier the first.
constexpr std::int64_t class_rows(const LayerShape& s) { return s.layer.class_token && !s.cut ? s.b : 0; }

constexpr LayerCounts embedding_counts(const LayerShape& s) {
  LayerCounts out;
  const ParameterLayout table_layout = s.parameters(ParameterPart::table);
  const ParameterLayout rest_layout = s.parameters(ParameterPart::rest);
  const StoreCounts table(s, table_layout);
  const StoreCounts rest(s, rest_layout);
  const bool learned = s.layer.position == PositionKind::learned;
  // The target's tokens are looked up after the others.
  LayerSpec of_target = s.layer;
  of_target.tokens = s.layer.passing;
  const LayerShape target(of_target, s.spec, s.batch);
  const LayerShape* const parts[] = {&s, &target};

  const bool image = s.layer.patch_width > 0;
  const bool types = s.layer.token_types > 0;
  const bool norm = s.layer.closing_norm;
  const std::int64_t patches = s.rows_local - class_rows(s);

  table.acquire(out.forward);
  rest.acquire(out.forward);
  if (image) {
    out.forward.push(compute(op::Kind::gemm_nt, patches, s.h, s.layer.patch_width));
    if (class_rows(s) > 0) {
      out.forward.push(compute(op::Kind::fill, s.b * s.h * s.e));
      out.forward.push(compute(op::Kind::add, s.b * s.h));
    }
  } else {
    for (const LayerShape* part : parts) {
      if (part->rows == 0) continue;
      out.forward.push(compute(op::Kind::embedding_forward, part->rows, s.h));
      RegionCounts(*part).leave(out.forward);
    }
  }
  const auto positions = [&](op::Work work, op::WorkList& list) {
    work.m /= s.pieces();
    work.times = s.pieces();
    if (learned) list.push(work);
  };
  positions(compute(op::Kind::add, s.rows_local * s.h), out.forward);
  if (types) out.forward.push(compute(op::Kind::add, s.rows_local * s.h));
  if (norm) out.forward.push(compute(op::Kind::norm_forward, s.rows_local, s.h));

  table.open_gradients(out.backward);
  rest.open_gradients(out.backward);
  if (norm) rest.acquire(out.backward);
  if (norm) out.backward.push(compute(op::Kind::norm_backward, s.rows_local, s.h));
  if (types) out.backward.push(compute(op::Kind::bias_gradient, s.rows_local, s.h));
  positions(compute(op::Kind::bias_gradient, s.rows_local, s.h), out.backward);
  if (image) {
    if (class_rows(s) > 0) out.backward.push(compute(op::Kind::bias_gradient, s.b, s.h));
    out.backward.push(compute(op::Kind::gemm_tn, s.h, s.layer.patch_width, patches));
    out.backward.push(compute(op::Kind::bias_gradient, patches, s.h));
  } else {
    for (const LayerShape* part : parts) {
      if (part->rows == 0) continue;
      RegionCounts(*part).enter(out.backward);
      out.backward.push(compute(op::Kind::embedding_backward, part->rows, s.h));
    }
  }
  table.close_gradients(out.backward);
  rest.close_gradients(out.backward);

  table.synchronise(out.synchronise);
  rest.synchronise(out.synchronise);
  tie_tables(s, table_layout, out.synchronise);
  table.update(out.update);
  rest.update(out.update);
  out.states = table.states() + rest.states();
  out.stash = {image ? aligned_bytes(patches * s.layer.patch_width * s.e) : aligned_bytes((s.rows + target.rows) * 4)};
  if (norm) out.stash += Bytes{s.activation() + aligned_bytes(s.rows_local * 2 * 4)};
  const std::int64_t together = s.cut && !image ? larger(s.whole_activation(), target.whole_activation()) : 0;
  out.forward_workspace = {table.gathered_bytes() + rest.gathered_bytes() + together};
  out.backward_workspace = {table.gradient_bytes() + rest.gradient_bytes() + (norm ? rest.gathered_bytes() : 0) +
                            together};
  return out;
}

/// The mean of a sample's tokens, of which every tensor rank has a part or all, and its gradient for each of them, to
/// which every tensor rank's classes give a part.
constexpr void pool(const LayerShape& s, op::WorkList& out) {
  out.push(compute(op::Kind::bias_gradient, s.rows_local, s.h));  // sums of columns
  if (s.cut) out.push(s.tensor_group(op::Kind::all_reduce, s.b * s.h * s.e));
}
constexpr void spread_pool(const LayerShape& s, op::WorkList& out) {
  if (s.t > 1) out.push(s.tensor_group(op::Kind::all_reduce, s.b * s.h * s.e));
  out.push(compute(op::Kind::copy, s.rows_local * s.h * s.e));
}
/// From the class tokens, which the first tensor rank has, to every rank's logits, and back.
constexpr void give_class_tokens(const LayerShape& s, op::WorkList& out) {
  if (s.cut) out.push(s.tensor_group(op::Kind::broadcast, s.b * s.h * s.e));
}
constexpr void sum_class_tokens(const LayerShape& s, op::WorkList& out) {
  if (s.t > 1) out.push(s.tensor_group(op::Kind::all_reduce, s.b * s.h * s.e));
}

/// The loss of `rows` rows and its gradient, from logits over a vocabulary that tensor ranks share: `chunk` rows at a
/// time, of which the last may have fewer.
constexpr void cross_entropy(const LayerShape& s, std::int64_t rows, std::int64_t chunk, op::WorkList& out) {
  const std::int64_t v = vocabulary_shard(s.layer.vocabulary, s.spec.tensor);
  for (std::int64_t first = 0; first < rows; first += chunk) {
    const std::int64_t n = rows - first < chunk ? rows - first : chunk;
    const auto times = static_cast<std::int32_t>(n == chunk ? rows / chunk : 1);
    const auto push = [&](op::Work work) {
      work.times = times;
      out.push(work);
    };
    push(compute(op::Kind::gemm_nt, n, v, s.h));
    push(compute(op::Kind::softmax_statistics, n, v));
    if (s.t > 1) push(s.tensor_group(op::Kind::all_gather, s.t * n * 3 * 4));
    push(compute(op::Kind::softmax_backward, n, v));
    push(compute(op::Kind::gemm_tn, v, s.h, n));
    push(compute(op::Kind::gemm_nn, n, s.h, v));
    if (s.layer.head != HeadKind::language) push(compute(op::Kind::bias_gradient, n, v));
    if (n == chunk) first += (times - 1) * chunk;
  }
}

constexpr LayerCounts head_counts(const LayerShape& s) {
  LayerCounts out;
  const ParameterLayout table_layout = s.parameters(ParameterPart::table);
  const ParameterLayout rest_layout = s.parameters(ParameterPart::rest);
  const StoreCounts table(s, table_layout);
  const StoreCounts rest(s, rest_layout);
  const RegionCounts region(s);
  const std::int64_t v = vocabulary_shard(s.layer.vocabulary, s.spec.tensor);
  const bool classifies = s.layer.head == HeadKind::classifier;
  const bool reads_token = classifies && s.layer.class_token;
  const bool pooled = classifies && !reads_token;
  const bool transformed = s.layer.head == HeadKind::masked_language;
  const std::int64_t rows = classifies ? s.b : s.rows;               // with logits
  const std::int64_t normalised = reads_token ? s.b : s.rows_local;  // rows of the norm
  const bool whole = s.habits.whole_logits;
  const std::int64_t chunk = whole ? rows : head_chunk_rows(rows, s.batch.precision);
  op::WorkList& forward = out.forward;

  table.acquire(forward);
  rest.acquire(forward);
  table.open_gradients(forward);
  rest.open_gradients(forward);
  if (transformed) {
    forward.push(compute(op::Kind::gemm_nt, s.rows_local, s.h, s.h));
    forward.push(compute(op::Kind::activation_forward, s.rows_local, s.h));
  }
  forward.push(compute(op::Kind::norm_forward, normalised, s.h));
  if (pooled)
    pool(s, forward);
  else if (reads_token)
    give_class_tokens(s, forward);
  else
    region.enter(forward);
  cross_entropy(s, rows, chunk, forward);
  if (pooled)
    spread_pool(s, forward);
  else if (reads_token)
    sum_class_tokens(s, forward);
  else
    region.leave(forward);
  forward.push(compute(op::Kind::norm_backward, normalised, s.h));
  if (reads_token) forward.push(compute(op::Kind::fill, (s.rows_local - s.b) * s.h * s.e));
  if (transformed) {
    forward.push(compute(op::Kind::activation_backward, s.rows_local, s.h));
    forward.push(compute(op::Kind::gemm_tn, s.h, s.h, s.rows_local));
    forward.push(compute(op::Kind::gemm_nn, s.rows_local, s.h, s.h));
    forward.push(compute(op::Kind::bias_gradient, s.rows_local, s.h));
  }
  table.close_gradients(forward);
  rest.close_gradients(forward);
  out.backward.push(compute(op::Kind::copy, s.rows_local * s.h * s.e));

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
  out.forward_workspace = {
      table.gathered_bytes() + rest.gathered_bytes() + table.gradient_bytes() + rest.gradient_bytes() +
      (classifies ? aligned_bytes(s.b * s.h * s.e) : s.whole_activation()) + (pooled ? s.activation() : 0) +
      aligned_bytes(normalised * 2 * 4) + aligned_bytes(chunk * v * (whole ? 2 * s.e + 4 : s.e)) +
      aligned_bytes(s.t * chunk * 3 * 4) + aligned_bytes(chunk * 4) + (transformed ? 2 * s.activation() : 0)};
  return out;
}

}  // namespace galvatron::cost::detail
