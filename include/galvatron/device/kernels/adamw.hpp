// AdamW (Loshchilov & Hutter 2019). V is a float, or a vector of floats of which each lane is one parameter.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include <galvatron/core/rng.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

/// What makes a gradient with this sum of squares no longer than `clip` (0: any length is right). NaN, which stands for
/// a step to leave out, when the loss or the sum is not finite.
GALVATRON_HD inline float clip_scale(double loss, double squares, double clip) {
  if (!std::isfinite(loss) || !std::isfinite(squares)) return std::numeric_limits<float>::quiet_NaN();
  const double norm = std::sqrt(squares);
  return clip > 0 && norm > clip ? static_cast<float>(clip / norm) : 1.0F;
}

/// A stream of random words, one for each place: random_block() has those of four.
struct RandomStream {
  std::uint64_t seed, stream;
};

/// The constants of one step, worked out once: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
/// w -= rate * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + rate * decay * w.
struct AdamWStep {
  float beta1, beta2;
  float keep;           ///< 1 - rate * decay
  float rate;           ///< learning rate / (1 - beta1^t)
  float root_variance;  ///< 1 / sqrt(1 - beta2^t)
  float epsilon;
  Rounding rounding;
  std::uint32_t number;  ///< of the step
  std::uint64_t seed;

  explicit AdamWStep(const AdamW& adam)
      : beta1(adam.beta1),
        beta2(adam.beta2),
        keep(static_cast<float>(1.0 - static_cast<double>(adam.learning_rate) * adam.weight_decay)),
        rate(static_cast<float>(adam.learning_rate / (1.0 - std::pow(static_cast<double>(adam.beta1), adam.step)))),
        root_variance(static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(static_cast<double>(adam.beta2), adam.step)))),
        epsilon(adam.epsilon),
        rounding(adam.rounding),
        number(static_cast<std::uint32_t>(adam.step)),
        seed(adam.seed ^ 0x5354'4550'524e'4447U) {}  // not the bits of initial values

  /// The same for a part of the parameters.
  [[nodiscard]] GALVATRON_HD AdamWStep of(const AdamWPart& part) const {
    AdamWStep out = *this;
    if (!part.decays) out.keep = 1.0F;
    return out;
  }

  /// Steps a parameter in place; g is clipped already.
  template <class V>
  GALVATRON_HD GALVATRON_INLINE void operator()(V& master, const V& g, V& m, V& v) const {
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    V root;
    square_root(v, root);
    master = keep * master - rate * m / (root * root_variance + epsilon);
  }

  /// The random bits by which moments in bfloat16 are rounded, a word for each parameter: the lower half for the mean,
  /// the upper for the variance. At random, because a step changes the variance by 1 - beta2 of it at most, which is
  /// less than half the distance of neighbours when beta2 is 0.999: rounding to the nearest would keep it for ever.
  [[nodiscard]] GALVATRON_HD RandomStream moment_bits(const AdamWPart& part) const {
    return {~seed, std::uint64_t{part.stream} << 32 | number};
  }
  /// And those by which masters become working parameters: the lower half.
  [[nodiscard]] GALVATRON_HD RandomStream master_bits(const AdamWPart& part) const {
    return {seed, std::uint64_t{part.stream} << 32 | number};
  }
};

}  // namespace galvatron::device::kernels
