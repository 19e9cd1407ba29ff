// A product of 8-bit codes, by its definition: what a GPU's library does for an emulated one.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::test {

/// c (m, n) = unscale_a unscale_b a (m, k) b (n, k)^T [+ bias], or c += that.
inline void multiply_codes(const device::Product& p, const void* a, const void* b, const void* bias, void* c,
                           const float* unscale) {
  const auto multiply = [&]<class F, class C>(const F* codes_a, C* out) {
    const auto* codes_b = static_cast<const float8_e4m3*>(b);
    for (std::int64_t i = 0; i < p.m; ++i)
      for (std::int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (std::int64_t l = 0; l < p.k; ++l)
          sum += static_cast<float>(codes_a[i * p.k + l]) * static_cast<float>(codes_b[j * p.k + l]);
        float value = sum * unscale[0] * unscale[device::Buffers8bit::of_b];
        if (p.bias) value += device::kernels::get(static_cast<const bfloat16*>(bias)[j]);
        C& to = out[i * p.n + j];
        device::kernels::put(to, p.accumulate ? device::kernels::get(to) + value : value);
      }
  };
  const auto with_result = [&](const auto* codes_a) {
    if (p.result == Precision::fp32)
      multiply(codes_a, static_cast<float*>(c));
    else
      multiply(codes_a, static_cast<bfloat16*>(c));
  };
  if (p.gradient)
    with_result(static_cast<const float8_e5m2*>(a));
  else
    with_result(static_cast<const float8_e4m3*>(a));
}

}  // namespace galvatron::test
