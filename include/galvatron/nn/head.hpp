// The head: final norm, projection onto a cut vocabulary, cross-entropy.
//
// Forward computes the loss and at once the gradients: logits exist for a chunk of tokens only, become their own
// gradients in place, and are used up before the next chunk. Backward then has nothing left to do.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/cost/layer.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/nn/context.hpp>
#include <galvatron/nn/parameter_store.hpp>

namespace galvatron::nn {

template <class D, class G, class T, SequenceKind kind>
class Head {
 public:
  struct Parameters {
    View<const T> table;  // (V/t, H)
    View<const T> gamma;  // (H)
    View<const T> beta;   // (H) or empty
  };
  struct Gradients {
    View<float> table;
    View<float> gamma;
    View<float> beta;
  };

  Head(Context<D, G>& context, const LayerSpec& layer)
      : c_(context),
        layer_(layer),
        shard_(vocabulary_shard(layer.vocabulary, context.spec.tensor)),
        first_(context.tensor_rank() * shard_),
        valid_(std::clamp<std::int64_t>(layer.vocabulary - first_, 0, shard_)) {}

  /// x (rows_local, H) becomes the gradient of the loss with respect to x; targets (rows).
  /// @param scale  the weight of a token in the loss: 1 / (global batch * S)
  /// @param loss   grows by the sum of this rank's tokens' cross-entropies, on the first tensor rank only
  void forward_backward(const Parameters& p, const Gradients& g, View<const std::int32_t> targets, float scale,
                        View<T> x, double& loss) {
    const device::Scope scope(c_.workspace);
    device::Region& ws = c_.workspace;
    const Region<T, kind, D, G> region{c_, layer_.hidden};
    const std::int64_t h = layer_.hidden;
    const std::int64_t rows = c_.rows();
    const std::int64_t chunk = cost::head_chunk_rows(rows);
    const int t = c_.spec.tensor;
    const View<T> n = ws.take<T>(rows * h);  // (rows, H)
    const View<float> stats = ws.take<float>(c_.rows_local() * 2);
    const View<T> logits = ws.take<T>(chunk * shard_);             // (chunk, V/t)
    const View<float> statistics = ws.take<float>(t * chunk * 3);  // (t, chunk, 3)
    const View<float> lse = ws.take<float>(chunk);

    c_.device.norm_forward(layer_.norm, c_.rows_local(), h, layer_.norm_epsilon, x, p.gamma, p.beta, region.own(n),
                           stats);
    region.gather(n);
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t m = std::min(chunk, rows - first);
      const View<T> tokens = n.slice(first * h, m * h);  // (m, H)
      const View<T> part = logits.slice(0, m * shard_);
      const View<const std::int32_t> wanted = targets.slice(first, m);
      const View<float> all = statistics.slice(0, t * m * 3);
      const View<float> own = all.slice(c_.tensor_rank() * m * 3, m * 3);
      c_.device.gemm(device::Gemm::nt, m, shard_, h, tokens, p.table, part, false, {});
      c_.device.softmax_statistics(m, shard_, valid_, first_, part, wanted, own);
      if (t > 1) c_.tensor.all_gather(View<const float>(own), all);
      double sum = 0;
      c_.device.softmax_merge(m, t, all, lse, sum);
      if (c_.tensor_rank() == 0) loss += sum;
      c_.device.softmax_backward(m, shard_, valid_, first_, lse, wanted, scale, part);
      c_.device.gemm(device::Gemm::tn, shard_, h, m, part, tokens, g.table, true, {});
      c_.device.gemm(device::Gemm::nn, m, h, shard_, part, p.table, tokens, false, {});
    }
    c_.device.norm_backward(layer_.norm, c_.rows_local(), h, region.reduce(n), x, p.gamma, stats, {}, x, g.gamma,
                            g.beta);
  }

 private:
  Context<D, G>& c_;
  LayerSpec layer_;
  std::int64_t shard_;  ///< columns of logits on this rank
  std::int64_t first_;  ///< the token of the first
  std::int64_t valid_;  ///< columns that are tokens; the others are padding
};

}  // namespace galvatron::nn
