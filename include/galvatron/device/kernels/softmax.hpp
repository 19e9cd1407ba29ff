// Softmax over a row that comes in pieces (Milakov & Gimelshein 2018), and the gradient of its cross-entropy.
#pragma once

#include <cmath>
#include <limits>

#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

/// Of a piece of a row: the maximum, the sum of exp(x - maximum), and the target's logit (-inf when it is elsewhere).
struct SoftmaxStatistics {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0.0F;
  float target = -std::numeric_limits<float>::infinity();

  /// The statistics of both pieces together.
  GALVATRON_HD GALVATRON_INLINE void merge(const SoftmaxStatistics& other) {
    if (other.maximum > maximum) {
      sum = sum * exponential(maximum - other.maximum) + other.sum;
      maximum = other.maximum;
    } else if (other.sum > 0.0F) {
      sum += other.sum * exponential(other.maximum - maximum);
    }
    if (other.target > target) target = other.target;
  }
  /// The natural logarithm of the sum of exponentials.
  [[nodiscard]] GALVATRON_HD float log_sum() const { return maximum + std::log(sum); }
};

/// scale * d(lse - logit[target]) / d(logit), without the target's own -scale.
GALVATRON_HD GALVATRON_INLINE float softmax_gradient(float logit, float lse, float scale) {
  return scale * exponential(logit - lse);
}

}  // namespace galvatron::device::kernels
