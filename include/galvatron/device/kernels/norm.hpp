// LayerNorm and RMSNorm; the row sums belong to the device. V is a float, or a vector of floats, one element a lane.
#pragma once

#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// Of a row: mean and 1/deviation for LayerNorm (Ba et al. 2016), 0 and 1/rms for RMSNorm (Zhang & Sennrich 2019).
struct Normalization {
  float mean, scale;

  template <class V>
  GALVATRON_HD GALVATRON_INLINE void operator()(const V& x, V& y) const {
    y = (x - mean) * scale;
  }
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float operator()(float x) const {
    (*this)(x, x);
    return x;
  }
};

/// The input gradient of a normalized row: scale * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gamma; RMSNorm
/// has no mean(g).
struct NormGradient {
  float scale;
  float mean_g;       ///< mean of g (LayerNorm), 0 (RMSNorm)
  float mean_g_xhat;  ///< mean of g * xhat

  template <class V>
  GALVATRON_HD GALVATRON_INLINE void operator()(const V& g, const V& xhat, V& dx) const {
    dx = scale * (g - mean_g - xhat * mean_g_xhat);
  }
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float operator()(float g, float xhat) const {
    (*this)(g, xhat, g);
    return g;
  }
};

}  // namespace galvatron::device::kernels
