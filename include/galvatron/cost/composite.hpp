// The prices of steps that are several operations: Ulysses, heads, mixtures of experts, the loss. Those of ring
// attention are in ring_attention.hpp.
//
// Ulysses (Jacobs et al., "DeepSpeed Ulysses", arXiv 2309.14509): four all-to-alls a pass, of queries, keys, values and
// output, from tokens to heads and back, and the same for the gradients. A rank has all S tokens of A / (t c) heads in
// between. Where there are fewer key/value heads than ranks, each is sent to c / kv_heads of them, and backward adds up
// the gradients of the copies. Towards heads a rank packs what it sends, back it unpacks what it got: a copy for each.
// Where tokens or heads are cut by ratios, the exchange takes as long as that of the rank that sends or gets most.
//
//     tokens 0..S/c-1, all heads   --- all-to-all -->   tokens 0..S-1, heads 0..A/(tc)-1
//
// In an image with windows (Liu et al., arXiv 2103.14030) every window is a sequence of its own. The biases of pairs of
// tokens are read from their table where they are needed.
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
#include <galvatron/program/extent.hpp>
#include <galvatron/strategy/parameters.hpp>
#include <galvatron/strategy/ratios.hpp>

namespace galvatron::cost::detail {

// ---- Ulysses

constexpr void exchange(const LayerShape& s, op::WorkList& out, std::int64_t bytes, int times, std::int64_t packed) {
  push_times(out, compute(op::Kind::copy, packed), times);
  push_times(out, context_group(s, op::Kind::all_to_all, bytes), times);
}
/// The bytes of the rank that sends or gets most.
/// @param sent   heads that all context ranks get  @param heads_of  heads_of(program::CoreHeads): those of one of them
template <class F>
constexpr std::int64_t exchanged_bytes(const LayerShape& s, std::int64_t sent, const F& heads_of) {
  const std::int64_t head = s.b * s.layer.head_dim * s.e;  // of a token
  if (s.shares.has_even_tokens() && s.shares.has_even_core_heads()) return s.tokens * sent * head;
  std::int64_t most = 0;
  for (const RankShares& rank : context_shares(s.spec, s.batch.ratios, s.batch.local_rank)) {
    most = std::max(most, rank.region_tokens().count(s.sequence) * sent);
    most = std::max(most, s.sequence * heads_of(program::CoreHeads(rank, s.heads, s.kv_heads, s.c)));
  }
  return most * head;
}
/// Queries, outputs or their gradients, to heads or back to tokens.
constexpr void exchange_queries(const LayerShape& s, op::WorkList& out) {
  const std::int64_t bytes = exchanged_bytes(s, s.heads, [](const program::CoreHeads& core) { return core.heads; });
  exchange(s, out, bytes, 1, s.rows * s.q * s.e);
}
/// Queries, keys and values.
constexpr void exchange_projection(const LayerShape& s, op::WorkList& out, bool to_heads) {
  const std::int64_t sent = program::CoreHeads(s.shares, s.heads, s.kv_heads, s.c).sent_kv_heads;
  const std::int64_t bytes = exchanged_bytes(s, sent, [](const program::CoreHeads& core) { return core.kv_heads; });
  exchange_queries(s, out);
  // On the way back what is copied first; the other copies are added.
  exchange(s, out, bytes, 2, s.rows * (to_heads ? sent * s.layer.head_dim : s.kv) * s.e);
  if (!to_heads && sent > s.kv_heads)
    push_times(out, compute(op::Kind::add, s.rows * (sent - s.kv_heads) * s.layer.head_dim), 2);
}

// ---- heads

/// Norms of queries and keys in runs of `width` elements, or of all of them; see runtime/heads.hpp.
constexpr void norm_heads(const LayerShape& s, bool forward, std::int64_t width, op::WorkList& out) {
  const bool sums = !forward && s.spec.tensor > 1 && !s.cut && !s.layer.frozen;
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
  const std::int64_t heads = s.heads * s.rows;
  out.push(compute(op::Kind::copy, heads * latent.rotary_dim * s.e));
  push_times(out, compute(op::Kind::copy, heads * (s.layer.head_dim - latent.rotary_dim) * s.e), 2);
  out.push(compute(op::Kind::copy, heads * latent.value_dim * s.e));
}
constexpr void assemble_heads(const LayerShape& s, op::WorkList& out) {
  const LatentAttention& latent = s.layer.latent;
  if (latent.value_dim < s.layer.head_dim) out.push(compute(op::Kind::fill, s.rows * 3 * s.q * s.e));
  copy_latent_heads(s, out);
  out.push(compute(op::Kind::copy, s.heads * s.rows * latent.rotary_dim * s.e));
}
constexpr void assemble_heads_backward(const LayerShape& s, op::WorkList& out) {
  const std::int64_t turned = s.rows * s.layer.latent.rotary_dim;
  copy_latent_heads(s, out);
  out.push(compute(op::Kind::fill, turned * 4));
  out.push(compute(op::Kind::add, s.heads * turned));
  if (s.e != 4) out.push(compute(op::Kind::copy, turned * s.e));
}

// ---- experts

/// What a rank does around its experts, and with them. Where tokens are exchanged, rows of experts are those that the
/// stated imbalance leaves to the rank that has most.
class ExpertCounts {
 public:
  constexpr ExpertCounts(const LayerShape& shape, const forward::Graph& graph, const program::Numbers& numbers)
      : s_(shape), graph_(graph), numbers_(numbers) {}

  constexpr void route_forward(op::WorkList& out) const {
    const RouterSpec& router = s_.layer.router;
    const std::int64_t k = s_.layer.active_experts;
    out.push(compute(op::Kind::gemm_nt, s_.rows_local, s_.layer.experts, s_.h));
    out.push(compute(op::Kind::softmax_statistics, s_.rows_local, s_.layer.experts));
    if (router.has_losses()) {
      if (router.balance_loss > 0) {
        const std::int64_t bytes = (router.balance_scope == BalanceScope::sequence ? s_.b : 1) * s_.layer.experts * 4;
        if (s_.cut) out.push(s_.tensor_group(op::Kind::all_reduce, bytes));
        if (router.balance_scope == BalanceScope::data_ranks && s_.shards > 1)
          out.push(s_.shard_group(op::Kind::all_reduce, bytes));
        else if (router.balance_scope != BalanceScope::data_ranks && s_.c > 1)
          out.push(context_group(s_, op::Kind::all_reduce, bytes));
      }
      out.push(compute(op::Kind::softmax_statistics, s_.rows_local, s_.layer.experts));
    }
    if (s_.cut && !exchanges()) push_times(out, s_.tensor_group(op::Kind::all_gather, s_.rows * k * 4), 2);
    out.push(compute(op::Kind::copy, of(program::Letter::routed_rows) * 8));
    if (relays()) out.push(compute(op::Kind::copy, of(program::Letter::node_choices) * 8));
  }
  constexpr void exchange_counts(op::WorkList& out) const {
    push_times(out, group(op::Kind::all_gather, of(program::Letter::expert_bounds) * s_.spec.exchange_ranks() * 4),
               s_.spec.exchange_ranks() > 1 ? 1 : 0);
  }
  /// @param whole  false: up to the first product
  constexpr void forward(op::WorkList& out, bool whole) const {
    if (relays()) to_relays(out);
    permute(out);
    if (exchanges()) exchange(out, rows_bytes());
    out.push(product(op::Kind::gemm_nt, inputs(), s_.h));
    if (!whole) return;
    out.push(compute(op::Kind::activation_forward, of(program::Letter::expert_rows), width()));
    out.push(product(op::Kind::gemm_nt, s_.h, width()));
    if (exchanges()) collect(out);
    permute(out);
    if (relays()) from_relays(out, token_bytes());
  }
  /// The gradient of a router's weight is <dy, y> = <dy W, g>: it needs no result y of an expert.
  constexpr void backward(op::WorkList& out) const {
    if (relays()) to_relays(out);
    permute(out);
    if (exchanges()) {
      out.push(compute(op::Kind::copy, of(program::Letter::routed_rows) * 4));
      exchange(out, rows_bytes());
      exchange(out, weights_bytes());
    }
    out.push(product(op::Kind::gemm_nn, width(), s_.h));
    out.push(compute(op::Kind::activation_forward, of(program::Letter::expert_rows), width()));
    out.push(compute(op::Kind::activation_backward, of(program::Letter::expert_rows), width()));
    out.push(product(op::Kind::gemm_tn, s_.h, width()));
    if (!exchanges()) permute(out);
    out.push(product(op::Kind::gemm_tn, inputs(), s_.h));
    out.push(product(op::Kind::gemm_nn, s_.h, inputs()));
    if (exchanges()) {
      collect(out);
      exchange(out, weights_bytes());
      push_times(out, compute(op::Kind::add, of(program::Letter::routed_rows)), s_.spec.etp() - 1);
      out.push(compute(op::Kind::copy, of(program::Letter::routed_rows) * 4));
    }
    permute(out);
    if (!relays()) return;
    from_relays(out, token_bytes() + choice_bytes());
    out.push(compute(op::Kind::copy, choice_bytes()));
  }
  // Compressed dispatch, at the stated rate.

  constexpr void compress(op::WorkList& out) const {
    const LshOptions& lsh = s_.batch.lsh;
    const auto hash = [&](std::int64_t rows, std::int64_t times) {
      push_times(out, compute(op::Kind::gemm_nt, rows, lsh.columns(), s_.h), times);
      push_times(out, compute(op::Kind::softmax_statistics, rows, lsh.columns()), times);
    };
    const std::int64_t rows = of(program::Letter::own_rows);
    hash(LshOptions::most_rotated, rows / LshOptions::most_rotated);
    hash(rows % LshOptions::most_rotated, rows % LshOptions::most_rotated > 0 ? 1 : 0);
    out.push(compute(op::Kind::copy, of(program::Letter::routed_rows) * lsh.hashes * 4));
    permute(out);
  }
  /// Gains that are not in fp32 are converted.
  constexpr void read_gains(op::WorkList& out) const {
    if (!s_.layer.router.residual_gain || s_.e == 4) return;
    out.push(compute(op::Kind::fill, s_.layer.experts * 4));
    out.push(compute(op::Kind::add, s_.layer.experts));
  }
  constexpr void compressed_forward(op::WorkList& out) const {
    exchange(out, rows_bytes());
    out.push(product(op::Kind::gemm_nt, inputs(), s_.h));
    out.push(compute(op::Kind::activation_forward, computed_rows(), width()));
    out.push(product(op::Kind::gemm_nt, s_.h, width()));
    collect(out);
  }
  constexpr void compressed_backward(op::WorkList& out) const {
    exchange(out, rows_bytes());
    out.push(product(op::Kind::gemm_nn, width(), s_.h));
    out.push(compute(op::Kind::activation_forward, computed_rows(), width()));
    out.push(compute(op::Kind::activation_backward, computed_rows(), width()));
    out.push(product(op::Kind::gemm_tn, s_.h, width()));
    out.push(product(op::Kind::gemm_tn, inputs(), s_.h));
    out.push(product(op::Kind::gemm_nn, s_.h, inputs()));
    collect(out);
  }
  /// Tokens to the order of their experts, or back; the same with buckets of them.
  constexpr void permute(op::WorkList& out) const {
    out.push(compute(op::Kind::copy, of(program::Letter::routed_rows) * s_.h * s_.e));
  }
  constexpr void route_backward(op::WorkList& out) const {
    const std::int64_t bytes = s_.rows * s_.layer.active_experts * 4;
    if (s_.spec.tensor > 1 && !(exchanges() && s_.cut))
      out.push(s_.tensor_group(exchanges() ? op::Kind::all_gather : op::Kind::all_reduce, bytes));
    out.push(compute(op::Kind::softmax_backward, s_.rows_local, s_.layer.experts));
    out.push(compute(op::Kind::gemm_tn, s_.layer.experts, s_.h, s_.rows_local));
    out.push(compute(op::Kind::gemm_nn, s_.rows_local, s_.h, s_.layer.experts));
  }

 private:
  [[nodiscard]] constexpr std::int64_t of(program::Letter letter) const { return numbers_(letter); }
  [[nodiscard]] constexpr bool exchanges() const { return s_.spec.exchanges_tokens(); }

  // By nodes: tokens go to relays with their choices and weights, and sums of them come back.

  [[nodiscard]] constexpr bool relays() const { return nodes_.count > 1; }
  [[nodiscard]] constexpr std::int64_t token_bytes() const { return nodes_.tokens * s_.h * s_.e; }
  /// Of numbers or weights of the choices of tokens that a rank sends.
  [[nodiscard]] constexpr std::int64_t choice_bytes() const { return nodes_.tokens * s_.layer.active_experts * 4; }
  constexpr void to_relays(op::WorkList& out) const {
    out.push(compute(op::Kind::copy, token_bytes()));
    push_times(out, compute(op::Kind::copy, choice_bytes()), 2);
    out.push(between_nodes(token_bytes() + 2 * choice_bytes()));
    out.push(compute(op::Kind::copy, 2 * choice_bytes()));  // the order of what came
  }
  constexpr void from_relays(op::WorkList& out, std::int64_t bytes) const {
    out.push(between_nodes(bytes));
    out.push(compute(op::Kind::copy, token_bytes()));
  }
  [[nodiscard]] constexpr op::Work between_nodes(std::int64_t bytes) const {
    return {.kind = op::Kind::all_to_all,
            .m = round_up(bytes, nodes_.count),
            .n = nodes_.count,
            .stride = static_cast<std::int32_t>(rank_group())};
  }
  /// Ranks among which rows go to experts: all, or those of a node.
  [[nodiscard]] constexpr std::int64_t rank_group() const { return s_.spec.exchange_ranks() / nodes_.count; }
  [[nodiscard]] constexpr std::int64_t inputs() const { return of(program::Letter::expert_inputs); }
  [[nodiscard]] constexpr std::int64_t width() const { return of(program::Letter::expert_width); }
  /// The same product for each expert.
  [[nodiscard]] constexpr op::Work product(op::Kind kind, std::int64_t n, std::int64_t k) const {
    const std::int64_t experts = s_.layer.experts / s_.spec.expert;
    const std::int64_t rows = divide_up(computed_rows(), experts);
    op::Work work = kind == op::Kind::gemm_tn ? compute(kind, n, k, rows) : compute(kind, rows, n, k);
    work.times = static_cast<std::int32_t>(experts);
    work.grouped = true;
    if (kind == op::Kind::gemm_tn) work.writes_one_in = s_.writes_one_in(graph_);
    return work;
  }
  /// Rows come back from every part of an expert, and are added.
  constexpr void collect(op::WorkList& out) const {
    exchange(out, rows_bytes());
    push_times(out, compute(op::Kind::add, sent_rows() * s_.h), s_.spec.etp() - 1);
  }
  [[nodiscard]] constexpr bool compresses() const { return s_.spec.compresses_tokens(); }
  /// Rows of experts that they compute, and that come back to a rank: means of tokens where dispatch is compressed.
  [[nodiscard]] constexpr std::int64_t computed_rows() const {
    const std::int64_t rows = of(program::Letter::expert_rows);
    return compresses() ? s_.batch.lsh.buckets(rows) : rows;
  }
  [[nodiscard]] constexpr std::int64_t sent_rows() const {
    const std::int64_t rows = of(program::Letter::routed_rows);
    return compresses() ? s_.batch.lsh.buckets(rows) : rows;
  }
  /// Elements that cross the link of the rank that has most: towards it before its experts, from it behind them.
  [[nodiscard]] constexpr std::int64_t exchanged(std::int64_t width) const {
    return round_up(computed_rows() * width, rank_group());
  }
  [[nodiscard]] constexpr std::int64_t rows_bytes() const { return exchanged(s_.h) * s_.e; }
  [[nodiscard]] constexpr std::int64_t weights_bytes() const { return exchanged(1) * 4; }
  constexpr void exchange(op::WorkList& out, std::int64_t bytes) const {
    push_times(out, compute(op::Kind::all_to_all, bytes, rank_group()), rank_group() > 1 ? 1 : 0);
  }
  [[nodiscard]] constexpr op::Work group(op::Kind kind, std::int64_t bytes) const {
    return compute(kind, bytes, s_.spec.exchange_ranks());  // neighbours
  }

  const LayerShape& s_;
  const forward::Graph& graph_;
  const program::Numbers& numbers_;
  program::ExchangeNodes nodes_ = numbers_.nodes();
};

// ---- the head

/// The statistics of the rows of a softmax, three numbers of each rank, become their log-sum-exps and the loss.
constexpr op::Work merged_statistics(std::int64_t rows, std::int64_t ranks) {
  return compute(op::Kind::softmax_statistics, rows, 3 * ranks);
}
/// The loss of `rows` rows and its gradient, from logits over a vocabulary that tensor ranks share: `chunk` rows at a
/// time, of which the last may have fewer.
constexpr void cross_entropy(const LayerShape& s, std::int64_t rows, std::int64_t chunk, op::WorkList& out) {
  const std::int64_t v = s.shares.vocabulary_rows(s.layer.vocabulary);  // on this rank
  const auto chunks_of = [&](std::int64_t n, std::int64_t times) {
    // A rank without rows of the vocabulary gives no gradient.
    if (v > 0) push_times(out, compute(op::Kind::gemm_nt, n, v, s.h), times);
    push_times(out, compute(op::Kind::softmax_statistics, n, v), times);
    if (s.spec.tensor > 1) push_times(out, s.tensor_group(op::Kind::all_gather, s.spec.tensor * n * 3 * 4), times);
    push_times(out, merged_statistics(n, s.spec.tensor), times);
    if (v == 0) return push_times(out, compute(op::Kind::fill, n * s.h * s.e), times);
    push_times(out, compute(op::Kind::softmax_backward, n, v), times);
    if (!s.layer.frozen) push_times(out, compute(op::Kind::gemm_tn, v, s.h, n), times);
    push_times(out, compute(op::Kind::gemm_nn, n, s.h, v), times);
    if (s.layer.has_logits_bias() && !s.layer.frozen) push_times(out, compute(op::Kind::bias_gradient, n, v), times);
  };
  if (rows == 0) return;
  chunks_of(chunk, rows / chunk);
  chunks_of(rows % chunk, rows % chunk > 0 ? 1 : 0);
}

/// The loss of pairs of rows over those of all data ranks (runtime/contrast.hpp).
constexpr void contrast(const LayerShape& s, std::int64_t chunk, op::WorkList& out) {
  const std::int64_t all = s.b * s.spec.data;
  const auto data_group = [&](op::Kind kind, std::int64_t bytes) {
    op::Work work = compute(kind, bytes, s.spec.data);
    work.stride = s.spec.rank_layout().stride(RankMode::dp);
    if (s.spec.data > 1) push_times(out, work, 2);
  };
  const auto chunks_of = [&](std::int64_t n, std::int64_t times) {
    push_times(out, compute(op::Kind::gemm_nt, n, all, s.h), times);
    push_times(out, compute(op::Kind::softmax_statistics, n, all), times);
    push_times(out, merged_statistics(n, 1), times);
    push_times(out, compute(op::Kind::softmax_backward, n, all), times);
    push_times(out, compute(op::Kind::gemm_tn, all, s.h, n), times);
    push_times(out, compute(op::Kind::gemm_nn, n, s.h, all), times);
  };
  push_times(out, compute(op::Kind::fill, s.h * s.e), 2);
  push_times(out, compute(op::Kind::norm_forward, s.b, s.h), 2);
  data_group(op::Kind::all_gather, all * s.h * s.e);
  out.push(compute(op::Kind::fill, 2 * all * s.h * 4));
  chunks_of(chunk, 2 * (s.b / chunk));
  chunks_of(s.b % chunk, s.b % chunk > 0 ? 2 : 0);
  data_group(op::Kind::reduce_scatter, all * s.h * 4);
  push_times(out, compute(op::Kind::add, s.b * s.h), 2);
  push_times(out, compute(op::Kind::copy, s.b * s.h * s.e), 2);
  out.push(compute(op::Kind::fill, 2 * s.h * 4));
  push_times(out, compute(op::Kind::norm_backward, s.b, s.h), 2);
  out.push(compute(op::Kind::norm_squared, s.h));
}

}  // namespace galvatron::cost::detail
