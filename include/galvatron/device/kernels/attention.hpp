// The arithmetic of one score of flash attention (Dao et al. 2022; Dao 2023).
//
// Scores are kept in units of log 2: query rows are scaled by head_dim^-1/2 log2(e), so that every exponential is a
// power of two.
#pragma once

#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

inline constexpr float log2_e = 1.44269504F;  ///< 1 / ln 2
inline constexpr float ln_2 = 0.69314718F;

/// The probability of a score, from the row's maximum (unnormalized) or from its log-sum (normalized); both in log 2.
GALVATRON_HD GALVATRON_INLINE float attention_probability(float score, float reference) {
  return exponential2(score - reference);
}

/// The gradient of a score (natural units, unscaled): p * (dp - delta), delta being the row's sum of o * do.
GALVATRON_HD GALVATRON_INLINE float attention_score_gradient(float p, float dp, float delta) { return p * (dp - delta); }

}  // namespace galvatron::device::kernels
