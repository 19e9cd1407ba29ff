// The products of a block's linear layers, with operands of the context's precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/product_8bit.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/nn/context.hpp>

namespace galvatron::nn {

/// True when a product of elements T rounds its operands to 8 bits.
template <class T, class D>
bool rounds_operands(const Context<D>& context, std::int64_t m, std::int64_t n, std::int64_t k) {
  return std::is_same_v<T, bfloat16> && context.eight_bit && cost::fits_8bit(m, n, k);
}

/// Device::gemm, or where the context says so and the extents allow it Device::gemm_8bit, with its room in the
/// workspace.
template <class D, class T, class C>
void linear(Context<D>& context, op::Kind kind, std::int64_t m, std::int64_t n, std::int64_t k, View<T> a,
            std::type_identity_t<View<const T>> b, View<C> c, bool accumulate = false,
            std::type_identity_t<View<const T>> bias = {}) {
  using E = std::remove_const_t<T>;
  if constexpr (std::is_same_v<E, bfloat16>) {
    if (rounds_operands<E>(context, m, n, k)) {
      const device::Scope scope(context.workspace);
      const View<std::byte> room = context.workspace.template take<std::byte>(cost::room_8bit(m, n, k));
      context.device.gemm_8bit(kind, m, n, k, View<const E>(a), b, c, accumulate, bias, room);
      return;
    }
  }
  context.device.gemm(kind, m, n, k, a, b, c, accumulate, bias);
}

}  // namespace galvatron::nn
