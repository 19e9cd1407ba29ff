// Products with an epilogue, as machines that are not there have them: oneDNN's, and the activation in place.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/host/gemm.hpp>
#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::test {

/// Some have them and some do not, as on a GPU; of float too, so that tests in float meet them.
inline bool has_epilogues(const device::Product& p) { return p.k > 0 && p.n % 8 == 0 && p.operands == p.result; }

namespace detail {
template <class T>
void apply(device::Epilogue epilogue, std::int64_t count, const T* u, T* c) {
  using namespace device::kernels;
  for (std::int64_t i = 0; i < count; ++i) {
    float out = 0;
    if (epilogue == device::Epilogue::gelu) {
      Gelu::of(get(u[i]), out);
    } else {
      Gelu::derivative(get(u[i]), out);
      out *= get(c[i]);
    }
    put(c[i], out);
  }
}
}  // namespace detail

/// See Epilogue; for a product that has_epilogues. The bits of the host's two operations.
inline void multiply(device::host::Products& products, const device::Product& p, device::Epilogue epilogue,
                     const void* a, const void* b, const void* bias, void* u, void* c) {
  products.multiply(p, a, b, bias, epilogue == device::Epilogue::gelu ? u : c);
  if (p.result == Precision::fp32)
    detail::apply(epilogue, p.m * p.n, static_cast<const float*>(u), static_cast<float*>(c));
  else
    detail::apply(epilogue, p.m * p.n, static_cast<const bfloat16*>(u), static_cast<bfloat16*>(c));
}

}  // namespace galvatron::test
