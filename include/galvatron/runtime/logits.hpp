// What all heads have in common: a projection onto a vocabulary (or classes) cut over tensor ranks, and cross-entropy.
//
// Forward computes the loss and at once the gradients: logits exist for a chunk of rows only, become their own
// gradients in place, and are used up before the next chunk.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/sharding.hpp>
#include <galvatron/cost/counts.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/strategy/parameters.hpp>

namespace galvatron::runtime {

/// What a layer adds to the model's loss.
struct LossTerm {
  float weight = 1;            ///< of a prediction, in gradients
  int sum = device::loss_sum;  ///< of the device's sums: where predictions' cross-entropies are added
};

template <class D, class T>
class Logits {
 public:
  Logits(Context<D>& context, const LayerSpec& layer)
      : c_(context),
        h_(layer.hidden),
        shard_(vocabulary_shard(layer.vocabulary, context.spec.tensor)),
        own_(vocabulary_sharding(layer.vocabulary, context.spec.tensor).range(context.tensor_rank())) {}

  struct Scratch {
    View<T> logits;          ///< (chunk, V/t)
    View<float> statistics;  ///< (t, chunk, 3)
    View<float> lse;         ///< (chunk)
  };
  /// n (rows, H) becomes this rank's part of its gradient: the sum over tensor ranks is whole. targets (rows).
  /// @param table, bias  (V/t, H) and (V/t), the latter may be empty; their gradients grow
  /// The device's sum of the loss grows by the rows' cross-entropies, on the first tensor rank only.
  void cross_entropy(std::int64_t rows, View<const T> table, View<const T> bias, View<float> d_table,
                     View<float> d_bias, View<const std::int32_t> targets, LossTerm term, View<T> n,
                     const Scratch& scratch) {
    const auto& [logits, statistics, lse] = scratch;
    const std::int64_t chunk = lse.count;
    const int t = c_.spec.tensor;
    const View<double> loss = c_.tensor_rank() == 0 ? c_.device.sums().slice(term.sum, 1) : View<double>{};
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t m = std::min(chunk, rows - first);
      const View<T> tokens = n.slice(first * h_, m * h_);  // (m, H)
      const View<T> part = logits.slice(0, m * shard_);
      const View<const std::int32_t> wanted = targets.slice(first, m);
      const View<float> all = statistics.slice(0, t * m * 3);
      const View<float> own = all.slice(c_.tensor_rank() * m * 3, m * 3);
      c_.device.gemm(op::Kind::gemm_nt, m, shard_, h_, tokens, table, part, false, bias);
      c_.device.softmax_statistics(m, shard_, own_.count(), own_.begin, part, wanted, own);
      if (t > 1) c_.tensor.all_gather(View<const float>(own), all);
      c_.device.softmax_merge(m, t, all, lse, loss);
      c_.device.softmax_backward(m, shard_, own_.count(), own_.begin, lse, wanted, term.weight, part);
      c_.device.gemm(op::Kind::gemm_tn, shard_, h_, m, part, tokens, d_table, true, {});
      c_.device.gemm(op::Kind::gemm_nn, m, h_, shard_, part, table, tokens, false, {});
      if (d_bias.count > 0) c_.device.bias_gradient(m, shard_, part, d_bias);
    }
  }

 private:
  Context<D>& c_;
  std::int64_t h_;
  std::int64_t shard_;   ///< columns of logits on this rank
  Sharding::Range own_;  ///< tokens of the first columns; the others are padding
};

}  // namespace galvatron::runtime
