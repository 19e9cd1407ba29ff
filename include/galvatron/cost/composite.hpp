// The prices of steps that are several operations: attention over context ranks, mixtures of experts, the loss.
//
// Ulysses (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509): four all-to-alls a pass, of queries, keys, values and
// output, from tokens to heads and back, and the same for the gradients. A rank has all S tokens of A / (t c) heads in
// between. Where there are fewer key/value heads than ranks, each is sent to c / kv_heads of them, and backward adds up
// the gradients of the copies. Towards heads a rank packs what it sends, back it unpacks what it got: a copy for each.
//
//     tokens 0..S/c-1, all heads   --- all-to-all -->   tokens 0..S-1, heads 0..A/(tc)-1
//
// Ring attention (Liu et al., arXiv 2310.01889): a rank attends with its own queries to one block of keys and values
// after the other; in c steps with c - 1 sends the blocks go round, and while a step computes the next block arrives.
// Causal models use the zigzag layout (strategy/layout.hpp): the first step is a causal block of S/c x S/c, every other
// one half a block without mask, so that all ranks have equal work. After a step that is not the first the results are
// merged by their log-sum-exp, in fp32. Backward goes round again; the gradients of keys and values (fp32) travel with
// their block, one step behind, and take one step more to come home. Counted is the last rank of the ring, whose steps
// are all of its queries and half of a block's keys (those of others: half of their queries and all keys):
//
//     turn          0            1 .. c-2                       c-1                    after
//     computes      attention 0  attention j                    attention c-1
//     sends beside  k, v         k, v (backward: and dk, dv)    (backward: dk, dv)     (backward: dk, dv)
//
// In an image with windows (Liu et al., arXiv 2103.14030) every window is a sequence of its own. The biases of pairs of
// tokens are read from their table where they are needed.
#pragma once
//
// Experts (Shazeer et al., 2017; Jiang et al., 2024): a router sends every token to some of E MLPs, and their results
// are added with its weights. Tokens spread evenly over the experts, of which every rank has all; tensor ranks cut each
// expert's width.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/cost/shape.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::cost::detail {

/// `work` so many times, if any.
constexpr void push_times(op::WorkList& out, op::Work work, std::int64_t times) {
  work.times = static_cast<std::int32_t>(times);
  if (times > 0) out.push(work);
}
/// To and from context ranks.
constexpr op::Work context_group(const LayerShape& s, op::Kind kind, std::int64_t bytes) {
  op::Work work = kind == op::Kind::send ? compute(kind, bytes, 1, s.c) : compute(kind, bytes, s.c);
  work.stride = s.spec.shard_stride();
  return work;
}

// ---- Ulysses

constexpr void exchange(const LayerShape& s, op::WorkList& out, std::int64_t bytes, int times, std::int64_t packed) {
  push_times(out, compute(op::Kind::copy, packed), times);
  push_times(out, context_group(s, op::Kind::all_to_all, bytes), times);
}
/// Queries, outputs or their gradients, to heads or back to tokens.
constexpr void exchange_queries(const LayerShape& s, op::WorkList& out) {
  exchange(s, out, s.rows * s.q * s.e, 1, s.rows * s.q * s.e);
}
/// Queries, keys and values.
constexpr void exchange_projection(const LayerShape& s, op::WorkList& out, bool to_heads) {
  const std::int64_t copied = std::max(s.kv_heads, s.c);  // heads
  const std::int64_t bytes = s.rows * copied * s.layer.head_dim * s.e;
  exchange_queries(s, out);
  // On the way back what is copied first; the other copies are added.
  exchange(s, out, bytes, 2, to_heads ? bytes : s.rows * s.kv * s.e);
  if (!to_heads && copied > s.kv_heads)
    push_times(out, compute(op::Kind::add, s.rows * (copied - s.kv_heads) * s.layer.head_dim), 2);
}

// ---- ring attention

constexpr void ring_attention(const LayerShape& s, op::Kind kind, op::WorkList& out) {
  const bool backward = kind == op::Kind::attention_backward;
  const bool causal = s.layer.causal;
  const std::int64_t kv_bytes = s.rows * s.kv * s.e;
  const auto turns = [&](op::Work work, std::int64_t times, int overlap) {
    work.overlap = static_cast<std::uint8_t>(overlap);
    push_times(out, work, times);
  };
  const auto attend = [&](std::int64_t keys, bool masked) {
    return s.attention(kind, s.b * s.layer.heads / s.spec.tensor, s.tokens, keys, s.layer.head_dim, masked);
  };
  const auto merge = [&](std::int64_t elements) { push_times(out, compute(op::Kind::add, elements), s.c - 1); };
  // Sums over the steps are in fp32; where that is the precision anyway they are the result.
  const bool rounds = s.e != 4;
  // What the first step gave becomes the sum.
  const auto convert = [&](std::int64_t width) {
    if (rounds) out.push(compute(op::Kind::copy, s.rows * width * 4));
  };

  out.push(compute(op::Kind::copy, 2 * kv_bytes));  // a block that can be sent
  // The numbers of forward and backward differ, since backward may hold both.
  const int first = backward ? 3 : 1;
  const int middle = first + 1;
  const int last = backward ? 5 : 0;
  const op::Work other = attend(causal ? s.tokens / 2 : s.tokens, false);
  const op::Work keys = context_group(s, op::Kind::send, 2 * kv_bytes);
  const op::Work gradients = context_group(s, op::Kind::send, s.rows * 2 * s.kv * 4);
  turns(attend(s.tokens, causal), 1, first);
  turns(keys, 1, first);
  turns(other, s.c - 2, middle);
  turns(keys, s.c - 2, middle);
  turns(other, 1, last);
  if (backward) {
    turns(gradients, s.c - 2, middle);
    turns(gradients, 1, last);
    turns(gradients, 1, 0);
    convert(s.q);
    convert(2 * s.kv);
    merge(s.rows * s.q);
    merge(s.rows * (causal ? s.kv : 2 * s.kv));  // half of a block's keys gave something
  } else {
    merge(s.rows * s.q);
    convert(s.q);
  }
  if (rounds) out.push(compute(op::Kind::copy, s.rows * s.q * s.e));
  if (backward) out.push(compute(op::Kind::copy, 2 * kv_bytes));
}

// ---- heads

/// Norms of queries and keys in runs of `width` elements, or of all of them; see runtime/heads.hpp.
constexpr void norm_heads(const LayerShape& s, bool forward, std::int64_t width, op::WorkList& out) {
  const bool sums = !forward && s.spec.tensor > 1 && !s.cut;
  if (sums) out.push(compute(op::Kind::fill, 2 * width * 4));
  for (const std::int64_t count : {s.q, s.kv}) {
    const std::int64_t run = width == s.q ? count : width;
    push_times(out, compute(op::Kind::copy, s.rows * count * s.e), 2);
    out.push(compute(forward ? op::Kind::norm_forward : op::Kind::norm_backward, s.rows * count / run, run));
  }
  if (!sums) return;
  out.push(s.tensor_group(op::Kind::all_reduce, 2 * width * 4));
  push_times(out, compute(op::Kind::add, width), 2);
}
/// Copies between the projections of latent attention and the fused one.
constexpr void copy_latent_heads(const LayerShape& s, op::WorkList& out) {
  const LatentAttention& latent = s.layer.latent;
  const std::int64_t heads = s.layer.heads / s.spec.tensor * s.rows;
  out.push(compute(op::Kind::copy, heads * latent.rotary_dim * s.e));
  push_times(out, compute(op::Kind::copy, heads * (s.layer.head_dim - latent.rotary_dim) * s.e), 2);
  out.push(compute(op::Kind::copy, heads * latent.value_dim * s.e));
}
constexpr void assemble_heads(const LayerShape& s, op::WorkList& out) {
  const LatentAttention& latent = s.layer.latent;
  if (latent.value_dim < s.layer.head_dim) out.push(compute(op::Kind::fill, s.rows * 3 * s.q * s.e));
  copy_latent_heads(s, out);
  out.push(compute(op::Kind::copy, s.layer.heads / s.spec.tensor * s.rows * latent.rotary_dim * s.e));
}
constexpr void assemble_heads_backward(const LayerShape& s, op::WorkList& out) {
  const std::int64_t turned = s.rows * s.layer.latent.rotary_dim;
  copy_latent_heads(s, out);
  out.push(compute(op::Kind::fill, turned * 4));
  out.push(compute(op::Kind::add, s.layer.heads / s.spec.tensor * turned));
  if (s.e != 4) out.push(compute(op::Kind::copy, turned * s.e));
}

// ---- experts

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
  const RouterSpec& router = s.layer.router;
  out.push(compute(op::Kind::gemm_nt, s.rows_local, s.layer.experts, s.h));
  out.push(compute(op::Kind::softmax_statistics, s.rows_local, s.layer.experts));
  if (router.has_losses()) {
    if (router.balance_loss > 0) {
      const std::int64_t bytes = (router.balance_scope == BalanceScope::sequence ? s.b : 1) * s.layer.experts * 4;
      if (s.cut) out.push(s.tensor_group(op::Kind::all_reduce, bytes));
      if (router.balance_scope == BalanceScope::data_ranks && s.shards > 1)
        out.push(s.shard_group(op::Kind::all_reduce, bytes));
      else if (s.c > 1)
        out.push(context_group(s, op::Kind::all_reduce, bytes));
    }
    out.push(compute(op::Kind::softmax_statistics, s.rows_local, s.layer.experts));
  }
  if (s.cut) push_times(out, s.tensor_group(op::Kind::all_gather, routed_rows(s) * 4), 2);
  out.push(compute(op::Kind::copy, routed_rows(s) * 8));
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
  out.push(for_each_expert(s, graph, op::Kind::gemm_nn, s.ffn, s.h));
  out.push(compute(op::Kind::activation_forward, routed_rows(s), s.ffn));
  out.push(compute(op::Kind::activation_backward, routed_rows(s), s.ffn));
  out.push(for_each_expert(s, graph, op::Kind::gemm_tn, s.h, s.ffn));
  permute_routed(s, out);
  out.push(for_each_expert(s, graph, op::Kind::gemm_tn, s.ffn_in, s.h));
  out.push(for_each_expert(s, graph, op::Kind::gemm_nn, s.h, s.ffn_in));
  permute_routed(s, out);
}
constexpr void route_backward(const LayerShape& s, op::WorkList& out) {
  if (s.spec.tensor > 1) out.push(s.tensor_group(op::Kind::all_reduce, routed_rows(s) * 4));
  out.push(compute(op::Kind::softmax_backward, s.rows_local, s.layer.experts));
  out.push(compute(op::Kind::gemm_tn, s.layer.experts, s.h, s.rows_local));
  out.push(compute(op::Kind::gemm_nn, s.rows_local, s.h, s.layer.experts));
}

// ---- the head

/// The loss of `rows` rows and its gradient, from logits over a vocabulary that tensor ranks share: `chunk` rows at a
/// time, of which the last may have fewer.
constexpr void cross_entropy(const LayerShape& s, std::int64_t rows, std::int64_t chunk, op::WorkList& out) {
  const std::int64_t v = vocabulary_shard(s.layer.vocabulary, s.spec.tensor);
  const auto chunks_of = [&](std::int64_t n, std::int64_t times) {
    push_times(out, compute(op::Kind::gemm_nt, n, v, s.h), times);
    push_times(out, compute(op::Kind::softmax_statistics, n, v), times);
    if (s.spec.tensor > 1) push_times(out, s.tensor_group(op::Kind::all_gather, s.spec.tensor * n * 3 * 4), times);
    push_times(out, compute(op::Kind::softmax_backward, n, v), times);
    push_times(out, compute(op::Kind::gemm_tn, v, s.h, n), times);
    push_times(out, compute(op::Kind::gemm_nn, n, s.h, v), times);
    if (s.layer.head != HeadKind::language) push_times(out, compute(op::Kind::bias_gradient, n, v), times);
  };
  chunks_of(chunk, rows / chunk);
  chunks_of(rows % chunk, rows % chunk > 0 ? 1 : 0);
}

}  // namespace galvatron::cost::detail
