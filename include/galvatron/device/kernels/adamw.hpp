// AdamW (Loshchilov & Hutter 2019), one parameter at a time.
#pragma once

#include <cmath>
#include <limits>

#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

/// What makes a gradient with this sum of squares no longer than `clip` (0: any length is right). NaN, which stands for
/// a step to leave out, when the loss or the sum is not finite.
GALVATRON_HD inline float clip_scale(double loss, double squares, double clip) {
  if (!std::isfinite(loss) || !std::isfinite(squares)) return std::numeric_limits<float>::quiet_NaN();
  const double norm = std::sqrt(squares);
  return clip > 0 && norm > clip ? static_cast<float>(clip / norm) : 1.0F;
}

/// The constants of one step, worked out once: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
/// w -= rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + rate * decay * w.
struct AdamWStep {
  float beta1;
  float beta2;
  float keep;           ///< 1 - rate * decay
  float rate;           ///< learning rate / (1 - beta1^t)
  float root_variance;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon;

  explicit AdamWStep(const AdamW& adam)
      : beta1(adam.beta1),
        beta2(adam.beta2),
        keep(static_cast<float>(1.0 - static_cast<double>(adam.learning_rate) * adam.weight_decay)),
        rate(static_cast<float>(adam.learning_rate / (1.0 - std::pow(static_cast<double>(adam.beta1), adam.step)))),
        root_variance(static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(adam.beta2), adam.step)))),
        epsilon(adam.epsilon) {}

  /// Steps one parameter in place; g is clipped already.
  GALVATRON_HD GALVATRON_INLINE void operator()(float& master, float g, float& m, float& v) const {
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    master = keep * master - rate * m / (square_root(v) * root_variance + epsilon);
  }
};

}  // namespace galvatron::device::kernels
