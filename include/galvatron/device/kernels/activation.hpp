// Sums, products, GELU and its approximations, ReLU, its square and gated units. V is a float, or a vector of floats,
// one element a lane.
#pragma once

#include <galvatron/device/kernels/math.hpp>
#include <galvatron/model/spec.hpp>

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
  /// Both.
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g, V& d) {
    const V square = u * u;
    V s;
    logistic<V>(u * (a + b * square), s);
    d = s + u * s * (1.0F - s) * (a + 3.0F * b * square);
    g = u * s;
  }
};

/// u * logistic(1.702 u), as CLIP has it (Hendrycks & Gimpel 2016).
struct QuickGelu {
  static constexpr float a = 1.702F;

  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g) {
    V s;
    logistic<V>(a * u, s);
    g = u * s;
  }
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void derivative(const V& u, V& d) {
    V s;
    logistic<V>(a * u, s);
    d = s + a * u * s * (1.0F - s);
  }
};

/// u Phi(u), with Phi the normal distribution. Its tail is e^(-u^2 / 2) times a polynomial of t = 1 / (1 + p |u|), off
/// by 7.5e-8 at the most (Abramowitz & Stegun 1964, 26.2.17).
struct ExactGelu {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g) {
    V phi, density;
    distribution(u, phi, density);
    g = u * phi;
  }
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void derivative(const V& u, V& d) {
    V phi, density;
    distribution(u, phi, density);
    d = phi + u * density;
  }

 private:
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void distribution(const V& u, V& phi, V& density) {
    V e;
    exponential<V>(-0.5F * u * u, e);
    density = 0.3989422804F * e;
    const V t = 1.0F / (1.0F + 0.2316419F * (u > 0.0F ? u : -u));
    const V tail =
        density * t * (0.31938153F + t * (-0.356563782F + t * (1.781477937F + t * (-1.821255978F + t * 1.330274429F))));
    phi = u > 0.0F ? 1.0F - tail : tail;
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

/// max(u, 0)^2 (So et al., "Primer", 2021).
struct SquaredRelu {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g) {
    g = u > 0.0F ? u * u : V{};
  }
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void derivative(const V& u, V& d) {
    d = u > 0.0F ? 2.0F * u : V{};
  }
};

/// Calls `f.operator()<Activation>()` for an activation of one input: any but the gated ones.
template <class F>
GALVATRON_INLINE void with_activation(ActivationKind kind, const F& f) {
  if (kind == ActivationKind::relu) return f.template operator()<Relu>();
  if (kind == ActivationKind::quick_gelu) return f.template operator()<QuickGelu>();
  if (kind == ActivationKind::exact_gelu) return f.template operator()<ExactGelu>();
  if (kind == ActivationKind::squared_relu) return f.template operator()<SquaredRelu>();
  return f.template operator()<Gelu>();
}

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

/// u * logistic(u).
struct Silu {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g) {
    V s;
    logistic(u, s);
    g = u * s;
  }
  /// With d = dg/du.
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void of(const V& u, V& g, V& d) {
    V s;
    logistic(u, s);
    const V silu = u * s;
    d = s + silu * (1.0F - s);
    g = silu;
  }
};

/// Gated units (Shazeer 2020): Activation(gate) * up. SwiGLU has Silu, GEGLU Gelu.
template <class Activation>
struct Gated {
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void forward(const V& gate, const V& up, V& g) {
    V a;
    Activation::of(gate, a);
    g = a * up;
  }
  /// The gradients of gate and up from that of the output.
  template <class V>
  GALVATRON_HD static GALVATRON_INLINE void backward(const V& gate, const V& up, const V& dg, V& dgate, V& dup) {
    V a, slope;
    Activation::of(gate, a, slope);
    const V d = dg * up * slope;
    dup = dg * a;
    dgate = d;
  }
};

/// Calls `f.operator()<Gated<..>>()` for a gated activation.
template <class F>
GALVATRON_INLINE void with_gated(ActivationKind kind, const F& f) {
  if (kind == ActivationKind::geglu) return f.template operator()<Gated<Gelu>>();
  return f.template operator()<Gated<Silu>>();
}

}  // namespace galvatron::device::kernels
