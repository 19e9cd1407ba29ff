// Sums, products, GELU, ReLU and SwiGLU. V is a float, or a vector of floats, one element a lane.
#pragma once

#include <galvatron/device/kernels/math.hpp>

namespace galvatron::device::kernels {

/// Of two numbers to one.
struct Sum {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& a, const V& b, V& out) {
    out = a + b;
  }
};
struct Product {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& a, const V& b, V& out) {
    out = a * b;
  }
};

/// GELU in its tanh approximation (Hendrycks & Gimpel 2016): u/2 (1 + tanh z) = u * logistic(2z) with
/// z = sqrt(2/pi) (u + 0.044715 u^3).
struct Gelu {
  static constexpr float a = 1.5957691216F;        ///< 2 sqrt(2/pi)
  static constexpr float b = 0.0713548162726009F;  ///< 2 sqrt(2/pi) 0.044715

  /// g of u.
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g) {
    V s;
    logistic<V>(u * (a + b * u * u), s);
    g = u * s;
  }
  /// d = dg/du.
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void derivative(const V& u, V& d) {
    const V square = u * u;
    V s;
    logistic<V>(u * (a + b * square), s);
    d = s + u * s * (1.0F - s) * (a + 3.0F * b * square);
  }
};

/// max(u, 0), as T5 has it.
struct Relu {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g) {
    g = u > 0.0F ? u : V{};
  }
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void derivative(const V& u, V& d) {
    d = u > 0.0F ? V{} + 1.0F : V{};
  }
};

/// The gradient of an activation of one input: du of u and dg.
template <class Activation>
struct Backward {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, const V& dg, V& du) {
    V slope;
    Activation::derivative(u, slope);
    du = dg * slope;
  }
};

/// SwiGLU (Shazeer 2020): silu(gate) * up.
struct SwiGlu {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void forward(const V& gate, const V& up, V& g) {
    V s;
    logistic(gate, s);
    g = gate * s * up;
  }
  /// The gradients of gate and up from that of the output.
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void backward(const V& gate, const V& up, const V& dg, V& dgate, V& dup) {
    V s;
    logistic(gate, s);
    const V silu = gate * s;
    const V d = dg * up * (s + silu * (1.0F - s));
    dup = dg * silu;
    dgate = d;
  }
};

}  // namespace galvatron::device::kernels
