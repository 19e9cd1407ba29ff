// LayerNorm and RMSNorm, one element at a time; the row sums belong to the device.
#pragma once

#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::kernels {

/// What a row's elements share: LayerNorm (Ba et al. 2016) has mean and 1/deviation, RMSNorm (Zhang & Sennrich 2019)
/// has 0 and 1/rms.
struct Normalization {
  float mean;
  float scale;

  /// The normalized element.
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float operator()(float x) const { return (x - mean) * scale; }
};

/// The input gradient of a normalized row: scale * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma; RMSNorm
/// has no mean(g).
struct NormGradient {
  float scale;
  float mean_g;       ///< mean of g (LayerNorm), 0 (RMSNorm)
  float mean_g_xhat;  ///< mean of g * xhat

  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float operator()(float g, float xhat) const {
    return scale * (g - mean_g - xhat * mean_g_xhat);
  }
};

}  // namespace galvatron::device::kernels
