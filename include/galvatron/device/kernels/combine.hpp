// Two numbers to one, element by element. V is a float, or a vector of floats of which each lane is one element.
#pragma once

#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::kernels {

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

}  // namespace galvatron::device::kernels
