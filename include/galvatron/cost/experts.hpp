// The price of a mixture of experts: a router sends every token to some of E MLPs, and their results are added with
// its weights (Shazeer et al., 2017; Jiang et al., 2024). Tokens spread evenly over the experts, of which every rank
// has all; tensor ranks cut each expert's width.
#pragma once

#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::cost::detail {

/// Tokens of a rank, each as often as it has experts.
constexpr std::int64_t routed_rows(const LayerShape& s) { return s.rows * s.layer.active_experts; }

/// The same product for each expert.
constexpr op::Work for_each_expert(const LayerShape& s, const forward::Graph& graph, op::Kind kind, std::int64_t n,
                                   std::int64_t k) {
  const std::int64_t rows = divide_up(routed_rows(s), s.layer.experts);
  op::Work work = kind == op::Kind::gemm_tn ? compute(kind, n, k, rows) : compute(kind, rows, n, k);
  work.times = static_cast<std::int32_t>(s.layer.experts);
  if (kind == op::Kind::gemm_tn) work.writes_one_in = s.writes_one_in(graph);
  return work;
}
/// Tokens to the order of their experts, or back.
constexpr void permute_routed(const LayerShape& s, op::WorkList& out) {
  out.push(compute(op::Kind::copy, routed_rows(s) * s.h * s.e));
}

constexpr void route_forward(const LayerShape& s, op::WorkList& out) {
  out.push(compute(op::Kind::gemm_nt, s.rows_local, s.layer.experts, s.h));
  out.push(compute(op::Kind::softmax_statistics, s.rows_local, s.layer.experts));
  if (s.cut) out.push(s.tensor_group(op::Kind::all_gather, s.rows * s.layer.experts * 4));
}
/// Behind the router, on gathered tokens.
/// @param whole  false: up to the first product
constexpr void experts_forward(const LayerShape& s, const forward::Graph& graph, op::WorkList& out, bool whole) {
  permute_routed(s, out);
  out.push(for_each_expert(s, graph, op::Kind::gemm_nt, s.ffn_in, s.h));
  if (!whole) return;
  out.push(compute(op::Kind::activation_forward, routed_rows(s), s.ffn));
  out.push(for_each_expert(s, graph, op::Kind::gemm_nt, s.h, s.ffn));
  permute_routed(s, out);
}
/// The gradient of a router's weight is <dy, y> = <dy W, g>: it needs no result y of an expert.
constexpr void experts_backward(const LayerShape& s, const forward::Graph& graph, op::WorkList& out) {
  permute_routed(s, out);
  if (!s.keeps_outputs()) out.push(compute(op::Kind::activation_forward, routed_rows(s), s.ffn));
  out.push(for_each_expert(s, graph, op::Kind::gemm_tn, s.h, s.ffn));
  out.push(for_each_expert(s, graph, op::Kind::gemm_nn, s.ffn, s.h));
  out.push(compute(op::Kind::activation_backward, routed_rows(s), s.ffn));
  permute_routed(s, out);
  out.push(for_each_expert(s, graph, op::Kind::gemm_tn, s.ffn_in, s.h));
  out.push(for_each_expert(s, graph, op::Kind::gemm_nn, s.h, s.ffn_in));
  permute_routed(s, out);
  out.push(compute(op::Kind::softmax_backward, s.rows_local, s.layer.experts));
  out.push(compute(op::Kind::gemm_tn, s.layer.experts, s.h, s.rows_local));
  out.push(compute(op::Kind::gemm_nn, s.rows_local, s.h, s.layer.experts));
}

}  // namespace galvatron::cost::detail
