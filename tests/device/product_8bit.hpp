// Products of 8-bit operands for tests: the definition in doubles, and a call with the room that it needs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include <galvatron/core/dtype.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/device/device.hpp>

#include "host_fixture.hpp"

namespace galvatron::test {

struct Product8bit {
  std::int64_t m, n, k;
};

/// The product of operands in memory as the layout says, row by row.
inline std::vector<double> product_of(op::Kind kind, Product8bit s, const std::vector<double>& a,
                                      const std::vector<double>& b) {
  std::vector<double> out(static_cast<std::size_t>(s.m * s.n));
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t p = 0; p < s.k; ++p) {
      const double x = a[static_cast<std::size_t>(kind == op::Kind::gemm_tn ? p * s.m + i : i * s.k + p)];
      for (std::int64_t j = 0; j < s.n; ++j)
        out[static_cast<std::size_t>(i * s.n + j)] +=
            x * b[static_cast<std::size_t>(kind == op::Kind::gemm_nt ? j * s.k + p : p * s.n + j)];
    }
  return out;
}

/// A tensor after rounding to F with the greatest power of two that keeps it within F's numbers.
template <class F>
std::vector<double> rounded_8bit(const std::vector<bfloat16>& x, double most) {
  double greatest = 0;
  for (const bfloat16 v : x) greatest = std::max(greatest, std::abs(static_cast<double>(v)));
  double scale = std::ldexp(1.0, 60);
  while (greatest * scale > most) scale /= 2;
  std::vector<double> out;
  for (const bfloat16 v : x) out.push_back(static_cast<double>(F(static_cast<float>(v * scale))) / scale);
  return out;
}

/// What Device::gemm_8bit makes of c.
template <class C>
std::vector<double> expected_8bit(op::Kind kind, Product8bit s, const std::vector<bfloat16>& a,
                                  const std::vector<bfloat16>& b, const std::vector<C>& c, bool accumulate,
                                  const std::vector<bfloat16>& bias) {
  const auto rounded_a =
      kind == op::Kind::gemm_nt ? rounded_8bit<float8_e4m3>(a, 448) : rounded_8bit<float8_e5m2>(a, 57344);
  std::vector<double> out = product_of(kind, s, rounded_a, rounded_8bit<float8_e4m3>(b, 448));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!bias.empty()) out[i] += static_cast<double>(bias[i % static_cast<std::size_t>(s.n)]);
    if (accumulate) out[i] += static_cast<double>(c[i]);
  }
  return out;
}

/// Device::gemm_8bit with room on a tensor's boundary.
template <class D, class C>
void multiply_8bit(D& device, op::Kind kind, Product8bit s, const std::vector<bfloat16>& a,
                   const std::vector<bfloat16>& b, std::vector<C>& c, bool accumulate,
                   const std::vector<bfloat16>& bias) {
  const std::int64_t bytes = cost::buffer_bytes_8bit(s.m, s.n, s.k);
  const auto free = [](std::byte* p) { ::operator delete(p, std::align_val_t(tensor_alignment)); };
  const std::unique_ptr<std::byte, decltype(free)> room(
      static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), std::align_val_t(tensor_alignment))),
      free);
  device.gemm_8bit(kind, s.m, s.n, s.k, view(a), view(b), view(c), accumulate, view(bias),
                   View<std::byte>(room.get(), bytes));
}

}  // namespace galvatron::test
