// The contrastive loss of two towers (Radford et al., "Learning transferable visual models from natural language
// supervision", ICML 2021, figure 3): rows of unit length, logits of all pairs of rows of a batch, and the mean of the
// cross-entropies of either tower's rows over the other tower's.
//
//     this rank's rows   x0, x1 (b, E)  -- rms norm -->  y0 = s x0 / |x0|, y1 = x1 / |x1|   s = e^logit_scale
//     of all data ranks  k0, k1 (B, E)  <-- all_gather of y0, y1; the batch has B = b * data ranks samples
//     logits             y0 k1^T and y1 k0^T (b, B): sample i of the batch is the right answer for its other row
//     gradients          of y from its own logits, of k from those of all ranks: reduce_scatter
//
// As in all heads, forward computes the gradients at once, a chunk of rows at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include <galvatron/core/view.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/op/kind.hpp>
#include <galvatron/runtime/context.hpp>
#include <galvatron/runtime/logits.hpp>

namespace galvatron::runtime {

template <class T>
struct ContrastScratch {
  View<T> d_rows;          ///< (2 b, E)
  View<float> statistics;  ///< (2 b, 2): of norms
  View<T> all;             ///< (2, B, E): rows of unit length; the first b of each tower where a rank is alone
  View<float> d_all;       ///< (2, B, E)
  View<T> logits;          ///< (chunk, B)
  View<float> softmax;     ///< (4, chunk): statistics, and log-sum-exp
  View<T> factors;         ///< (2, E): of the norms
  View<float> d_factors;   ///< (2, E)
};

/// x (2 b, E), of each sample a row of either tower, b rows of one behind b of the other, becomes its gradient.
/// @param targets  (2 b): numbers of the rows' samples in the batch
/// @param scale    (1): logit_scale, whose gradient grows
/// The sum of the term grows by the cross-entropies of all these rows, on the first tensor rank only.
template <class D, class T>
class Contrast {
 public:
  Contrast(Context<D>& c, std::int64_t b, std::int64_t e, LossTerm term, View<T> x, const ContrastScratch<T>& scratch)
      : c_(c), b_(b), e_(e), all_(b * c.data.size()), term_(term), x_(x), s_(scratch) {}

  void run(View<const std::int32_t> targets, View<const T> scale, View<float> d_scale) {
    normalise(scale);
    c_.device.zero(raw_bytes(s_.d_all));
    for (int tower = 0; tower < 2; ++tower)
      for (std::int64_t first = 0; first < b_; first += chunk())
        add_loss(tower, first, std::min(chunk(), b_ - first), targets);
    c_.device.zero(raw_bytes(s_.d_factors));
    for (int tower = 0; tower < 2; ++tower) give_gradient(tower);
    c_.device.exponential_row_backward(e_, View<const T>(factor(0)), View<const float>(d_factor(0)), d_scale);
  }

 private:
  [[nodiscard]] std::int64_t chunk() const { return s_.softmax.count / 4; }
  [[nodiscard]] View<T> rows(View<T> of, int tower) const { return of.slice(tower * b_ * e_, b_ * e_); }
  template <class U>
  View<U> whole(View<U> of, int tower) const {
    return of.slice(tower * all_ * e_, all_ * e_);
  }
  [[nodiscard]] std::int64_t first_own() const { return c_.data.rank() * b_ * e_; }
  [[nodiscard]] View<T> unit_rows(int tower) const { return whole(s_.all, tower).slice(first_own(), b_ * e_); }
  [[nodiscard]] View<T> factor(int tower) const { return s_.factors.slice(tower * e_, e_); }
  [[nodiscard]] View<float> d_factor(int tower) const { return s_.d_factors.slice(tower * e_, e_); }
  [[nodiscard]] View<float> statistics(int tower) const { return s_.statistics.slice(tower * 2 * b_, 2 * b_); }

  // A row over its root mean square is as long as the root of E.
  void normalise(View<const T> scale) {
    const double length = 1 / std::sqrt(static_cast<double>(e_));
    c_.device.exponential_row(e_, static_cast<float>(length), scale, factor(0));
    c_.device.exponential_row(e_, static_cast<float>(length), View<const T>{}, factor(1));
    for (int tower = 0; tower < 2; ++tower) {
      c_.device.norm_forward(NormKind::rms_norm, b_, e_, epsilon, rows(x_, tower), View<const T>(factor(tower)),
                             View<const T>{}, unit_rows(tower), statistics(tower));
      if (c_.data.size() > 1) c_.data.all_gather(View<const T>(unit_rows(tower)), whole(s_.all, tower));
    }
  }
  void add_loss(int tower, std::int64_t first, std::int64_t m, View<const std::int32_t> targets) {
    const View<T> own = unit_rows(tower).slice(first * e_, m * e_);
    const View<T> others = whole(s_.all, 1 - tower);
    const View<T> logits = s_.logits.slice(0, m * all_);
    const View<float> of_rows = s_.softmax.slice(0, 3 * m);
    const View<float> lse = s_.softmax.slice(3 * chunk(), m);
    const View<const std::int32_t> wanted = targets.slice(tower * b_ + first, m);
    c_.device.gemm(op::Kind::gemm_nt, m, all_, e_, own, others, logits, false, {});
    c_.device.softmax_statistics(m, all_, all_, 0, logits, wanted, of_rows);
    c_.device.softmax_merge(m, 1, of_rows, lse, sum_of(c_, term_));
    // Rows of the other tower may be near each other: their weights must sum to 0 for the gradient to be what they
    // differ.
    c_.device.softmax_backward(m, all_, all_, 0, lse, wanted, term_.weight, true, logits);
    c_.device.gemm(op::Kind::gemm_tn, all_, e_, m, logits, own, whole(s_.d_all, 1 - tower), true, {});
    c_.device.gemm(op::Kind::gemm_nn, m, e_, all_, logits, others, rows(s_.d_rows, tower).slice(first * e_, m * e_),
                   false, {});
  }
  void give_gradient(int tower) {
    const View<T> d = rows(s_.d_rows, tower);
    const View<float> sum = whole(s_.d_all, tower).slice(first_own(), b_ * e_);
    if (c_.data.size() > 1) c_.data.reduce_scatter(whole(s_.d_all, tower), sum);
    c_.device.accumulate(b_ * e_, d, sum);
    const device::Runs all{.width = b_ * e_};
    c_.device.copy_runs(all, sum, d);
    c_.device.norm_backward(NormKind::rms_norm, b_, e_, d, rows(x_, tower), View<const T>(factor(tower)),
                            View<const float>(statistics(tower)), View<T>{}, rows(x_, tower), d_factor(tower),
                            View<float>{});
  }

  static constexpr double epsilon = 1e-12;
  Context<D>& c_;
  std::int64_t b_;    ///< samples of this rank
  std::int64_t e_;    ///< E
  std::int64_t all_;  ///< B
  LossTerm term_;
  View<T> x_;
  ContrastScratch<T> s_;
};

}  // namespace galvatron::runtime
