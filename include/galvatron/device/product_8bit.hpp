// A matrix product of 8-bit operands: their formats, and where they lie while it works.
#pragma once

#include <cstddef>
#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/device/device.hpp>

namespace galvatron::device {

/// Operand a of a backward product is the gradient of a layer's output, which needs range more than precision.
/// Activations and weights are float8_e4m3.
constexpr bool has_gradient(op::Kind kind) { return kind != op::Kind::gemm_nt; }

/// Calls the function template f with the format of operand a.
template <class Call>
void with_format_of_a(op::Kind kind, const Call& f) {
  if (has_gradient(kind))
    f.template operator()<float8_e5m2>();
  else
    f.template operator()<float8_e4m3>();
}

/// The parts of the cost::room_8bit(m, n, k) bytes that a product gets.
struct Room8bit {
  View<std::uint8_t> a;  ///< (m, k)
  View<std::uint8_t> b;  ///< (n, k)
  View<float> unscale;   ///< (2): what a and b are multiplied with after rounding

  Room8bit(View<std::byte> room, std::int64_t m, std::int64_t n, std::int64_t k)
      : a(reinterpret_cast<std::uint8_t*>(room.data), m * k),
        b(a.data + aligned_bytes(m * k), n * k),
        unscale(reinterpret_cast<float*>(room.data + aligned_bytes(m * k) + aligned_bytes(n * k)), 2) {}
};

}  // namespace galvatron::device
