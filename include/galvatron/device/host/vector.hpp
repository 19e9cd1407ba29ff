// Vectors of floats as wide as the registers of an instruction set, and sums over rows with them.
//
// Vectors travel by reference and stay inside always-inline functions: no calling convention is involved.
#pragma once

#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/device/host/isa.hpp>
#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::host {

// In registers and on the stack, aligned as the compiler likes it.
typedef float Floats16 __attribute__((vector_size(16)));
typedef float Floats32 __attribute__((vector_size(32)));
typedef float Floats64 __attribute__((vector_size(64)));
typedef double Doubles16 __attribute__((vector_size(16)));
typedef double Doubles32 __attribute__((vector_size(32)));
typedef double Doubles64 __attribute__((vector_size(64)));
// In memory, where they may start at any element. A template argument loses these attributes: never deduce them.
typedef float FloatsAt8 __attribute__((vector_size(8), aligned(4), may_alias));
typedef float FloatsAt16 __attribute__((vector_size(16), aligned(4), may_alias));
typedef float FloatsAt32 __attribute__((vector_size(32), aligned(4), may_alias));
typedef float FloatsAt64 __attribute__((vector_size(64), aligned(4), may_alias));
typedef std::uint16_t ShortsAt8 __attribute__((vector_size(8), aligned(2), may_alias));
typedef std::uint16_t ShortsAt16 __attribute__((vector_size(16), aligned(2), may_alias));
typedef std::uint16_t ShortsAt32 __attribute__((vector_size(32), aligned(2), may_alias));

/// The vector types of an instruction set.
template <Isa isa>
struct Vectors {
  using Float = Floats16;      ///< a register of floats
  using FloatAt = FloatsAt16;  ///< the same in memory
  using HalfAt = FloatsAt8;    ///< half as many floats in memory
  using Doubles = Doubles16;   ///< as many doubles as HalfAt has floats
  using ShortAt = ShortsAt8;   ///< as many 16-bit numbers as Float has floats, in memory
  static constexpr std::int64_t lanes = 4;
};
template <>
struct Vectors<Isa::avx2> {
  using Float = Floats32;
  using FloatAt = FloatsAt32;
  using HalfAt = FloatsAt16;
  using Doubles = Doubles32;
  using ShortAt = ShortsAt16;
  static constexpr std::int64_t lanes = 8;
};
template <>
struct Vectors<Isa::avx512> {
  using Float = Floats64;
  using FloatAt = FloatsAt64;
  using HalfAt = FloatsAt32;
  using Doubles = Doubles64;
  using ShortAt = ShortsAt32;
  static constexpr std::int64_t lanes = 16;
};

/// The vector that starts at an element.
template <class S>
GALVATRON_INLINE const typename S::FloatAt& vector_at(const float* x) {
  return *reinterpret_cast<const typename S::FloatAt*>(x);
}
template <class S>
GALVATRON_INLINE typename S::FloatAt& vector_at(float* x) {
  return *reinterpret_cast<typename S::FloatAt*>(x);
}

/// v = the elements from x on, as floats.
template <class S>
GALVATRON_INLINE void get_lanes(const float* x, typename S::Float& v) {
  v = vector_at<S>(x);
}
template <class S>
GALVATRON_INLINE void get_lanes(const bfloat16* x, typename S::Float& v) {
  using Words = decltype(typename S::Float{} < typename S::Float{});
  const Words wide = __builtin_convertvector(*reinterpret_cast<const typename S::ShortAt*>(x), Words) << 16;
  v = reinterpret_cast<typename S::Float>(wide);
}

/// The greatest lane of a vector.
GALVATRON_INLINE float greatest(const Floats16& x) {
  const float a = x[0] > x[1] ? x[0] : x[1];
  const float b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}
GALVATRON_INLINE float greatest(const Floats32& x) {
  const Floats16 a = __builtin_shufflevector(x, x, 0, 1, 2, 3);
  const Floats16 b = __builtin_shufflevector(x, x, 4, 5, 6, 7);
  const Floats16 c = a > b ? a : b;
  return greatest(c);
}
GALVATRON_INLINE float greatest(const Floats64& x) {
  const Floats32 a = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
  const Floats32 b = __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
  const Floats32 c = a > b ? a : b;
  return greatest(c);
}

/// The sum of a vector's lanes.
template <class V>
GALVATRON_INLINE auto total(const V& x) {
  constexpr int lanes = sizeof(V) / sizeof(x[0]);
  auto sum = x[0];
  for (int i = 1; i < lanes; ++i) sum += x[i];
  return sum;
}

/// Sums, over [0, n), of what `vector(sum, i)` adds to `sum` for the lanes from element i on and `scalar(sum, i)` for
/// one element; four sums run side by side, because one would wait for each addition.
template <class S, class F, class G>
GALVATRON_INLINE float sum_over(std::int64_t n, const F& vector, const G& scalar) {
  using V = typename S::Float;
  constexpr std::int64_t lanes = S::lanes;
  V a = {}, b = {}, c = {}, d = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    vector(a, i);
    vector(b, i + lanes);
    vector(c, i + 2 * lanes);
    vector(d, i + 3 * lanes);
  }
  for (; i + lanes <= n; i += lanes) vector(a, i);
  float rest = 0;
  for (; i < n; ++i) scalar(rest, i);
  const V sum = (a + b) + (c + d);
  return total(sum) + rest;
}

}  // namespace galvatron::device::host
