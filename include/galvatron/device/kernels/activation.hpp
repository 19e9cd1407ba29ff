// GELU (tanh approximation), ReLU and SwiGLU, one element at a time.
#pragma once

#include <galvatron/device/kernels/macros.hpp>
#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

/// GELU in its tanh approximation (Hendrycks & Gimpel 2016): u/2 (1 + tanh z) = u * logistic(2z) with
/// z = sqrt(2/pi) (u + 0.044715 u^3).
struct Gelu {
  static constexpr float a = 1.5957691216F;        ///< 2 sqrt(2/pi)
  static constexpr float b = 0.0713548162726009F;  ///< 2 sqrt(2/pi) 0.044715

  /// g of u.
  GALVATRON_HD static GALVATRON_INLINE float forward(float u) { return u * logistic(u * (a + b * u * u)); }
  /// dg/du.
  GALVATRON_HD static GALVATRON_INLINE float derivative(float u) {
    const float square = u * u;
    const float s = logistic(u * (a + b * square));
    return s + u * s * (1.0F - s) * (a + 3.0F * b * square);
  }
};

/// max(u, 0), as T5 has it.
struct Relu {
  GALVATRON_HD static GALVATRON_INLINE float forward(float u) { return u > 0.0F ? u : 0.0F; }
  GALVATRON_HD static GALVATRON_INLINE float derivative(float u) { return u > 0.0F ? 1.0F : 0.0F; }
};

/// SwiGLU (Shazeer 2020): silu(gate) * up.
struct SwiGlu {
  struct Gradient {
    float gate;
    float up;
  };

  GALVATRON_HD static GALVATRON_INLINE float forward(float gate, float up) { return gate * logistic(gate) * up; }
  /// The gradients of gate and up from that of the output.
  GALVATRON_HD static GALVATRON_INLINE Gradient backward(float gate, float up, float dg) {
    const float s = logistic(gate);
    const float silu = gate * s;
    return {dg * up * (s + silu * (1.0F - s)), dg * silu};
  }
};

}  // namespace galvatron::device::kernels
