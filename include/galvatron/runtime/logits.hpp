// What all heads have in common: a projection onto a vocabulary (or classes) cut over tensor ranks, and cross-entropy.
//
// In training forward computes the loss and at once the gradients: logits exist for a chunk of rows only, become their
// own gradients in place, and are used up before the next chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/layer.hpp>

namespace galvatron::runtime {

/// What a layer adds to the model's loss.
struct LossTerm {
  float weight = 1;       ///< of a prediction, in gradients
  View<double> sum = {};  ///< (1): grows by predictions' cross-entropies; empty: the device's sum of the loss
};
/// What grows by the cross-entropies of a term on this rank: its sum on the first tensor rank, empty on the others.
template <class D>
View<double> sum_of(Context<D>& c, const LossTerm& term) {
  if (c.tensor_rank() > 0) return {};
  return term.sum.empty() ? c.device.sums().slice(device::loss_sum, 1) : term.sum;
}

template <class T>
struct LogitsScratch {
  View<T> logits;          ///< (chunk, V/t)
  View<float> statistics;  ///< (t, chunk, 3)
  View<float> lse;         ///< (chunk)
};

/// What is the same for all chunks of a head's rows.
template <class D, class T>
struct Logits {
  Context<D>& c;
  std::int64_t hidden;
  std::int64_t shard;          ///< columns of logits on this rank
  Sharding::Range own_tokens;  ///< of the first columns; the others are padding
  View<const T> table;         ///< (V/t, H)
  View<const T> bias;          ///< (V/t), may be empty
  float cap;                   ///< of logits; 0: none
  View<double> loss;           ///< sum_of() the term
  LogitsScratch<T> scratch;

  Logits(Context<D>& context, const LayerSpec& layer, View<const T> whole, View<const T> added, LossTerm term,
         const LogitsScratch<T>& buffers)
      : c(context),
        hidden(layer.hidden),
        shard(context.shares().vocabulary_rows(layer.vocabulary)),
        own_tokens(context.shares().vocabulary(layer.vocabulary)),
        table(whole),
        bias(added),
        cap(static_cast<float>(layer.logits_cap)),
        loss(sum_of(context, term)),
        scratch(buffers) {}

  /// The logits of `tokens` (m, H) in `part` (m, V/t), before their soft cap, the log-sum-exps of their rows in
  /// scratch.lse, and their loss.
  /// @return  this rank's statistics (m, 3)
  View<float> chunk(std::int64_t m, View<const T> tokens, View<const std::int32_t> wanted, View<T> part) const {
    const int t = c.spec.tensor;
    const View<float> all = scratch.statistics.slice(0, t * m * 3);
    const View<float> own = all.slice(c.tensor_rank() * m * 3, m * 3);
    if (shard > 0) c.device.gemm(op::Kind::gemm_nt, m, shard, hidden, tokens, table, part, false, bias);
    c.device.softmax_statistics(m, shard, own_tokens.count(), own_tokens.begin, part, wanted, own, cap);
    if (t > 1) c.tensor.all_gather(View<const float>(own), all);
    c.device.softmax_merge(m, t, all, scratch.lse, loss);
    return own;
  }
};

/// The losses of rows, or their logits, without gradients. n (rows, H), targets (rows); table and bias as below.
/// The sum of the term grows by the rows' cross-entropies, on the first tensor rank only.
/// @param how  what is asked for beside the sum
template <class D, class T>
void forward_logits(Context<D>& c, const LayerSpec& layer, std::int64_t rows, View<const T> table, View<const T> bias,
                    View<const std::int32_t> targets, LossTerm term, View<T> n, const LogitsScratch<T>& scratch,
                    const Inference<T>& how) {
  const Logits<D, T> head(c, layer, table, bias, term, scratch);
  const std::int64_t h = layer.hidden;
  if (!how.logits.empty()) {
    const std::int64_t last = how.logits.count / head.shard;
    return c.device.gemm(op::Kind::gemm_nt, last, head.shard, h, View<const T>(n.slice((rows - last) * h, last * h)),
                         table, how.logits, false, bias);
  }
  for (std::int64_t first = 0; first < rows; first += scratch.lse.count) {
    const std::int64_t m = std::min(scratch.lse.count, rows - first);
    const View<float> own =
        head.chunk(m, n.slice(first * h, m * h), targets.slice(first, m), scratch.logits.slice(0, m * head.shard));
    if (!how.statistics.empty())
      c.device.copy(raw_bytes(View<const float>(own)), raw_bytes(how.statistics.slice(first * 3, m * 3)));
  }
}

/// n (rows, H) becomes this rank's part of its gradient: the sum over tensor ranks is whole. targets (rows).
/// @param table, bias  (V/t, H) and (V/t), the latter may be empty; their gradients grow, or are empty: frozen
/// The sum of the term grows by the rows' cross-entropies, on the first tensor rank only.
template <class D, class T>
void cross_entropy(Context<D>& c, const LayerSpec& layer, std::int64_t rows, View<const T> table, View<const T> bias,
                   View<float> d_table, View<float> d_bias, View<const std::int32_t> targets, LossTerm term, View<T> n,
                   const LogitsScratch<T>& scratch) {
  const Logits<D, T> head(c, layer, table, bias, term, scratch);
  const std::int64_t h = layer.hidden;
  const std::int64_t shard = head.shard;
  for (std::int64_t first = 0; first < rows; first += scratch.lse.count) {
    const std::int64_t m = std::min(scratch.lse.count, rows - first);
    const View<T> tokens = n.slice(first * h, m * h);  // (m, H)
    const View<T> part = scratch.logits.slice(0, m * shard);
    const View<const std::int32_t> wanted = targets.slice(first, m);
    head.chunk(m, tokens, wanted, part);
    if (shard == 0) {  // a rank without a part of the vocabulary
      c.device.zero(raw_bytes(tokens));
      continue;
    }
    c.device.softmax_backward(m, shard, head.own_tokens.count(), head.own_tokens.begin, scratch.lse, wanted,
                              term.weight, false, part, head.cap);
    if (d_table.count > 0) c.device.gemm(op::Kind::gemm_tn, shard, h, m, part, tokens, d_table, true, {});
    c.device.gemm(op::Kind::gemm_nn, m, h, shard, part, table, tokens, false, {});
    if (d_bias.count > 0) c.device.bias_gradient(m, shard, part, d_bias);
  }
}

}  // namespace galvatron::runtime
