// Prices of the ends of a model: the loss, and what keeps the copies of a tied table equal.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/cost/stores.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// The all-reduce that keeps the two copies of a tied table alike: one rank of the first with one of the last stage.
constexpr void tie_tables(const LayerShape& s, const ParameterLayout& table, op::WorkList& out) {
  if (!s.layer.tied || s.batch.stages == 1) return;
  op::Work work = compute(op::Kind::all_reduce, table.elements * 4 / (s.spec.zero >= 1 ? s.shards : 1), 2);
  work.stride = s.batch.last_first_rank > 0 ? s.batch.last_first_rank : (s.batch.stages - 1) * s.spec.ranks();
  out.push(work);
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

}  // namespace galvatron::cost::detail
