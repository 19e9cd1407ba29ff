// The arithmetic of one score of flash attention (Dao et al. 2022; Dao 2023).
//
// Scores are kept in units of log 2: query rows are scaled by head_dim^-1/2 log2(e), so that every exponential is a
// power of two.
#pragma once

#include <cmath>

#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

inline constexpr float log2_e = 1.44269504F;  ///< 1 / ln 2
inline constexpr float ln_2 = 0.69314718F;

/// x = 2^(x - reference), the probability of a score from the row's maximum (unnormalized) or from its log-sum
/// (normalized), both in log 2. V is a vector of floats; x - reference is at most 126, and -inf gives 0.
template <class V>
GALVATRON_INLINE void attention_probability(V& x, float reference) {
  using Bits = decltype(V{} < V{});
  x -= reference;
  x = x > -127.0F ? x : V{} - 127.0F;
  const V t = x + detail::rounder;
  V p;
  exponential2_polynomial(V(x - (t - detail::rounder)), p);
  x = p * reinterpret_cast<V>(reinterpret_cast<Bits>(t) << 23);
}

/// What the results of two parts of a row's keys weigh in the result of both.
struct MergeWeights {
  float first;
  float second;
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
