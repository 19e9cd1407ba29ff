// Rows of a bias: what a matrix product begins from where its library cannot add the bias itself.
#pragma once

#include <cstdint>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::cuda {

namespace detail {

template <class T, class C>
struct BiasElements {
  std::int64_t n;
  const T* bias;
  C* c;
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    kernels::put(c[i], bias == nullptr ? 0.0F : kernels::get(bias[i % n]));
  }
};

}  // namespace detail

/// Every row of c (rows, n) = bias (n); 0 when `bias` is null.
template <class L, class T, class C>
void bias_rows(L& launcher, std::int64_t rows, std::int64_t n, const T* bias, C* c) {
  for_each(launcher, rows * n, detail::BiasElements<T, C>{n, bias, c});
}

}  // namespace galvatron::device::cuda
