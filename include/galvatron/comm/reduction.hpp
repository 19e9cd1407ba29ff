// The arithmetic of one element of a reduction, for rank threads and for kernels.
#pragma once

#include <cstdint>
#include <type_traits>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::comm {

/// The element types of a reduction.
template <class T>
concept Reducible = std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, std::int32_t> ||
                    std::is_same_v<T, bfloat16>;

/// What a type is summed in.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, bfloat16>, float, T>;

struct Add {
  GALVATRON_HD static constexpr float of(float a, float b) { return a + b; }
  GALVATRON_HD static constexpr double of(double a, double b) { return a + b; }
  /// Wraps around.
  GALVATRON_HD static constexpr std::int32_t of(std::int32_t a, std::int32_t b) {
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  }
};

struct Max {
  /// A NaN wins.
  template <class A>
  GALVATRON_HD static constexpr A of(A a, A b) {
    return (a < b || b != b) ? b : a;
  }
};

}  // namespace galvatron::comm
