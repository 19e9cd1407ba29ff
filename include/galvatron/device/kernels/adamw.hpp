// AdamW (Loshchilov & Hutter 2019), one parameter at a time.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/math.hpp>
#include <galvatron/device/kernels/number.hpp>

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

  /// Steps one parameter in place; g is clipped already.
  GALVATRON_HD GALVATRON_INLINE void operator()(float& master, float g, float& m, float& v) const {
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * g * g;
    master = keep * master - rate * m / (square_root(v) * root_variance + epsilon);
  }

  /// 1 or 4 masters as working parameters, the first of which has that place in the stream; of 4 a multiple of 4.
  template <int size, class T>
  GALVATRON_HD GALVATRON_INLINE void round(const float (&masters)[size], std::uint32_t stream, std::uint64_t place,
                                           T (&working)[size]) const {
    static_assert(size == 1 || size == 4);
    if constexpr (std::is_same_v<T, bfloat16>) {
      if (rounding == Rounding::stochastic) {
        const std::array<std::uint32_t, 4> bits = random_block(seed, std::uint64_t{stream} << 32 | number, place / 4);
        if constexpr (size == 4) {
          for (int j = 0; j < size; ++j) put_stochastically(working[j], masters[j], bits[static_cast<unsigned>(j)]);
        } else {  // no index that is not known: it would put the bits into memory
          const std::uint32_t even = place % 4 < 2 ? bits[0] : bits[2];
          const std::uint32_t odd = place % 4 < 2 ? bits[1] : bits[3];
          put_stochastically(working[0], masters[0], place % 2 == 0 ? even : odd);
        }
        return;
      }
    }
    for (int j = 0; j < size; ++j) put(working[j], masters[j]);
  }
};

}  // namespace galvatron::device::kernels
