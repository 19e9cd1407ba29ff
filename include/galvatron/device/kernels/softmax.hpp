// Softmax over a row that comes in pieces (Milakov & Gimelshein 2018), the gradient of its cross-entropy, and scores of
// flash attention (Dao et al. 2022; Dao 2023) in units of log 2: query rows are scaled by head_dim^-1/2 log2(e), so
// that every exponential is a power of two.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

/// y = cap tanh(x / cap), which never leaves (-cap, cap) (Gemma Team, 2024, arXiv 2408.00118, section 2); x where `cap`
/// is 0. V is a float, or a vector of floats.
template <class V>
GALVATRON_HD GALVATRON_INLINE void soft_cap(const V& x, float cap, V& y) {
  y = x;
  if (cap == 0.0F) return;
  hyperbolic_tangent<V>(V(x * (1.0F / cap)), y);
  y *= cap;
}
/// slope = dy / dx of soft_cap(), from y.
template <class V>
GALVATRON_HD GALVATRON_INLINE void soft_cap_slope(const V& y, float cap, V& slope) {
  slope = V{} + 1.0F;
  if (cap == 0.0F) return;
  const V share = y * (1.0F / cap);
  slope -= share * share;
}

/// Stands for the target's logit of a row without a target.
inline constexpr float no_target = std::numeric_limits<float>::infinity();

/// Of a piece of a row: the maximum, the sum of exp(x - maximum), and the target's logit (-inf when it is elsewhere).
struct SoftmaxStatistics {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0.0F;
  float target = -std::numeric_limits<float>::infinity();

  /// What exponents are relative to: the maximum, or 0 where all logits are -inf, whose exponentials are 0 then.
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float reference() const {
    return maximum == -std::numeric_limits<float>::infinity() ? 0.0F : maximum;
  }
  /// The statistics of both pieces together.
  GALVATRON_HD GALVATRON_INLINE void merge(const SoftmaxStatistics& other) {
    if (other.maximum > maximum) {
      sum = sum * exponential(maximum - other.maximum) + other.sum;
      maximum = other.maximum;
    } else if (other.sum != 0.0F) {  // a NaN stays
      sum += other.sum * exponential(other.maximum - maximum);
    }
    if (other.target > target) target = other.target;
  }
  /// Finds the target's logit in the piece x, of `count` tokens from `first` on; a target below 0 is ignored.
  GALVATRON_HD GALVATRON_INLINE void find_target(std::int32_t token, std::int64_t first, std::int64_t count,
                                                 const auto* x, float cap) {
    if (const std::int64_t at = shard_row(token, first, count); at >= 0) soft_cap(get(x[at]), cap, target);
    if (token < 0) target = no_target;
  }
  /// As three floats in memory.
  GALVATRON_HD GALVATRON_INLINE void put(float* to) const {
    to[0] = maximum;
    to[1] = sum;
    to[2] = target;
  }
  /// Of a row, from those of all shards: stats (shards, rows, 3).
  GALVATRON_HD GALVATRON_INLINE static SoftmaxStatistics merged(const float* stats, std::int64_t shards,
                                                                std::int64_t rows, std::int64_t row) {
    SoftmaxStatistics whole;
    for (std::int64_t shard = 0; shard < shards; ++shard) {
      const float* s = stats + (shard * rows + row) * 3;
      whole.merge({s[0], s[1], s[2]});
    }
    return whole;
  }
  [[nodiscard]] GALVATRON_HD float log_sum() const { return maximum + std::log(sum); }
  /// The cross-entropy of a whole row, in nats; 0 without a target, unless the logits are no numbers any more.
  [[nodiscard]] GALVATRON_HD double loss(float lse) const {
    if (target == no_target && std::isfinite(lse)) return 0;
    return static_cast<double>(lse) - static_cast<double>(target);
  }
};

/// d = scale * d(lse - y[target]) / d(logit) with y the soft-capped logit, without the target's own -scale, and the
/// slope dy / d(logit). V is a float, or a vector of floats of which each lane is a logit, none of them far above lse.
template <class V>
GALVATRON_HD GALVATRON_INLINE void softmax_gradient(const V& logit, float lse, float scale, float cap, V& d, V& slope) {
  V capped;
  soft_cap<V>(logit, cap, capped);
  soft_cap_slope<V>(capped, cap, slope);
  exponential<V>(capped - lse, d);
  d *= scale * slope;
}

inline constexpr float log2_e = 1.44269504F;  ///< 1 / ln 2
inline constexpr float ln_2 = 0.69314718F;

/// x = 2^(x - reference), the probability of a score from the row's maximum (unnormalized) or from its log-sum
/// (normalized), both in log 2. V is a vector of floats; x - reference is at most 126, and -inf gives 0.
template <class V>
GALVATRON_INLINE void attention_probability(V& x, float reference) {
  x -= reference;
  x = x > -127.0F ? x : V{} - 127.0F;
  const V t = x + rounder;
  V p;
  exponential2_polynomial(V(x - (t - rounder)), p);
  x = p * __builtin_bit_cast(V, __builtin_bit_cast(Integers<V>, t) << 23);
}

/// What the results of two parts of a row's keys weigh in the result of both.
struct MergeWeights {
  float first, second;
  float lse;  ///< of both
};

/// From the natural log-sums of the two parts, of which none is empty.
GALVATRON_HD inline MergeWeights merge_weights(float first, float second) {
  const float maximum = first > second ? first : second;
  const float a = exponential(first - maximum);
  const float b = exponential(second - maximum);
  const float sum = a + b;
  return {a / sum, b / sum, maximum + std::log(sum)};
}

}  // namespace galvatron::device::kernels
