// The threads that execute one operation of the host device, the instruction sets that its loops are compiled for,
// chosen when the program runs, and vectors as wide as their registers: loops over elements and sums over rows with
// them.
//
// A loop body is an always-inline lambda; `with_isa` calls it from a function of the wanted target, whose instruction
// set it takes. Compilers shy away from the widest registers, which slowed early processors down; here they are used.
// Vectors travel by reference and stay inside always-inline functions: no calling convention is involved. A loop calls
// a copy of its body, whose captures may stay in registers; those of the original are read again behind each store.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <omp.h>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device {

enum class Isa : std::uint8_t {
  portable,
  avx2,
  avx512,
  avx512_bf16,  ///< and products of pairs of bfloat16
};

/// The instruction set that all processors of this build have and loops are compiled for alone: AVX-512, and in builds
/// for the processor of this machine (GALVATRON_NATIVE) AVX2. Portable: loops have versions for all instruction sets,
/// as in tests of kernels, which define GALVATRON_EVERY_ISA.
#if !GALVATRON_X86 || defined(GALVATRON_EVERY_ISA) || !defined(__FMA__)
inline constexpr Isa built_for = Isa::portable;
#elif defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
inline constexpr Isa built_for = Isa::avx512;
#elif defined(__AVX2__) && defined(GALVATRON_NATIVE)
inline constexpr Isa built_for = Isa::avx2;
#else
inline constexpr Isa built_for = Isa::portable;
#endif

/// The best that this processor executes.
inline Isa best_isa() {
#if GALVATRON_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::portable;
}

#if GALVATRON_X86
// Clang has no such preference, and ignores all of an attribute that names it.
#ifdef __clang__
#define GALVATRON_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#else
#define GALVATRON_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"
#endif
__attribute__((noinline, target(GALVATRON_AVX512 ",avx512bf16"))) void call_avx512_bf16(const auto& f) {
  f.template operator()<Isa::avx512_bf16>();
}
__attribute__((noinline, target(GALVATRON_AVX512))) void call_avx512(const auto& f) {
  f.template operator()<Isa::avx512>();
}
#undef GALVATRON_AVX512
__attribute__((noinline, target("avx2,fma"))) void call_avx2(const auto& f) { f.template operator()<Isa::avx2>(); }
#endif
__attribute__((noinline)) void call_portable(const auto& f) { f.template operator()<Isa::portable>(); }

/// Calls `f.operator()<isa>()`, an always-inline lambda, compiled for that instruction set.
template <Isa isa>
GALVATRON_INLINE void with_isa(const auto& f) {
#if GALVATRON_X86
  if constexpr (isa == Isa::avx512_bf16) return call_avx512_bf16(f);
  if constexpr (isa == Isa::avx512) return call_avx512(f);
  if constexpr (isa == Isa::avx2) return call_avx2(f);
#endif
  if constexpr (isa == Isa::portable) call_portable(f);
}
/// The same for one chosen when the program runs, unless it was when it was built. What computes with floats has no
/// version for avx512_bf16.
void with_isa([[maybe_unused]] Isa isa, const auto& f) {
  if constexpr (built_for != Isa::portable) {
    with_isa<built_for>(f);
  } else {
    if (isa >= Isa::avx512) return with_isa<Isa::avx512>(f);
    if (isa == Isa::avx2) return with_isa<Isa::avx2>(f);
    with_isa<Isa::portable>(f);
  }
}

/// Calls `f()`, an always-inline lambda whose code does not name the instruction set.
void vectorized(Isa isa, const auto& f) {
  with_isa(isa, [&]<Isa>() GALVATRON_INLINE_LAMBDA { f(); });
}

/// A 0 that the compiler knows.
struct Zero {
  constexpr operator float() const { return 0; }
};
/// Calls f(x), or f(Zero{}) where x is 0, so that loops in f are compiled without its arithmetic.
GALVATRON_INLINE void with_known_zero(float x, const auto& f) {
  if (x == 0.0F)
    f(Zero{});
  else
    f(x);
}

/// The threads of a host device, what they compute with, and the scratch memory that they share.
struct Team {
  int threads = 1;
  Isa isa = Isa::portable;
  View<std::byte> scratch;  ///< starts on a cache line

  /// Thread `thread`'s part of the scratch memory.
  [[nodiscard]] View<std::byte> scratch_of(int thread) const {
    const std::int64_t part = scratch.count / threads / tensor_alignment * tensor_alignment;
    return scratch.slice(thread * part, part);
  }
};

/// Work of this many elements pays for waking a second thread.
inline constexpr std::int64_t parallel_elements = 1 << 15;

/// Calls `f(thread)` on `threads` threads, 0 .. threads - 1.
void on_threads(int threads, const auto& f) {
  if (threads == 1) return f(0);
#pragma omp parallel num_threads(threads)
  {
    // An enclosing parallel region may have left fewer threads than asked for.
    for (int thread = omp_get_thread_num(); thread < threads; thread += omp_get_num_threads()) f(thread);
  }
}

/// Splits [0, n) into one run per thread, whose bounds are multiples of `unit`, and calls `f(first, last, thread)`.
/// `cost` is the number of elements that an index stands for.
void for_runs(const Team& team, std::int64_t n, std::int64_t unit, std::int64_t cost, const auto& f) {
  if (n <= 0) return;
  if (team.threads == 1 || n * cost < parallel_elements) return f(std::int64_t{0}, n, 0);
  const std::int64_t units = divide_up(n, unit);
  on_threads(team.threads, [&](int thread) {
    const std::int64_t first = units * thread / team.threads * unit;
    const std::int64_t last = std::min(n, units * (thread + 1) / team.threads * unit);
    if (first < last) f(first, last, thread);
  });
}

}  // namespace galvatron::device

namespace galvatron::device::host {

/// As many floats as a register has, in memory, where they may start at any element. Templates lose these attributes:
/// never make or deduce them there.
template <Isa isa>
struct VectorInMemory;
template <>
struct VectorInMemory<Isa::portable> {
  typedef float FloatAt __attribute__((vector_size(16), aligned(4), may_alias));
};
template <>
struct VectorInMemory<Isa::avx2> {
  typedef float FloatAt __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct VectorInMemory<Isa::avx512> {
  typedef float FloatAt __attribute__((vector_size(64), aligned(4), may_alias));
};
template <>
struct VectorInMemory<Isa::avx512_bf16> : VectorInMemory<Isa::avx512> {};

/// The vector types of an instruction set; those here are for registers.
template <Isa isa>
struct Vectors : VectorInMemory<isa> {
  static constexpr std::int64_t lanes = isa >= Isa::avx512 ? 16 : isa == Isa::avx2 ? 8 : 4;
  typedef float Float __attribute__((vector_size(4 * lanes)));
  typedef std::uint32_t Word __attribute__((vector_size(4 * lanes)));   ///< the bits of a Float
  typedef std::uint16_t Short __attribute__((vector_size(2 * lanes)));  ///< as many 16-bit numbers
  typedef float Half __attribute__((vector_size(2 * lanes)));
  typedef double Doubles __attribute__((vector_size(4 * lanes)));  ///< those of a Half
};

/// A single element, for what is left of a run behind its vectors.
struct OneLane {
  using Float = float;
  using FloatAt = float;
  static constexpr std::int64_t lanes = 1;
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

/// Asks for the cache line that a loop over x comes to a little later. Processors do so themselves, but virtual
/// machines may have that switched off, and loops with much arithmetic look too few lines ahead.
GALVATRON_INLINE void foresee(const void* x) { __builtin_prefetch(static_cast<const char*>(x) + 2048); }

/// v = the elements from x on, as floats; for loops over runs of elements.
template <class S>
GALVATRON_INLINE void get_lanes(const float* x, typename S::Float& v) {
  foresee(x);
  v = vector_at<S>(x);
}
template <class S>
GALVATRON_INLINE void get_lanes(const bfloat16* x, typename S::Float& v) {
  foresee(x);
  if constexpr (S::lanes == 1) {
    v = kernels::get(*x);
  } else {
    using Words = decltype(typename S::Float{} < typename S::Float{});
    typename S::Short halves;
    std::memcpy(&halves, x, sizeof halves);
    const Words wide = __builtin_convertvector(halves, Words) << 16;
    v = reinterpret_cast<typename S::Float>(wide);
  }
}

/// The elements from x on = v, rounded as kernels::put does.
template <class S>
GALVATRON_INLINE void put_lanes(float* x, const typename S::Float& v) {
  vector_at<S>(x) = v;
}
template <class S>
GALVATRON_INLINE void put_lanes(bfloat16* x, const typename S::Float& v) {
  if constexpr (S::lanes == 1) {
    kernels::put(*x, v);
  } else {
    using Words = typename S::Word;
    const Words u = reinterpret_cast<Words>(v);
    const Words rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
    const Words quiet = (u >> 16) | 0x40U;
    const Words chosen = v == v ? rounded : quiet;
    const auto halves = __builtin_convertvector(chosen, typename S::Short);
    std::memcpy(static_cast<void*>(x), &halves, sizeof halves);
  }
}

/// The elements from x on = v, rounded as kernels::put_stochastically does by the bits of `random` from `low` on.
template <class S>
GALVATRON_INLINE void put_lanes_stochastically(bfloat16* x, const typename S::Float& v, const std::uint32_t* random,
                                               int low) {
  if constexpr (S::lanes == 1) {
    kernels::put_stochastically(*x, v, *random >> low);
  } else {
    using Words = typename S::Word;
    const Words u = reinterpret_cast<Words>(v);
    Words bits;
    std::memcpy(&bits, random, sizeof bits);
    const Words added = (u & 0x7f800000U) == 0x7f800000U ? Words{} : (bits >> low) & 0xffffU;
    const Words quiet = (u & 0x7fffffffU) > 0x7f800000U ? Words{} + 0x40U : Words{};
    const auto halves = __builtin_convertvector(((u + added) >> 16) | quiet, typename S::Short);
    std::memcpy(static_cast<void*>(x), &halves, sizeof halves);
  }
}

/// Calls `f.operator()<S>(i)` for [first, last): for vectors of S that start at i, then one by one for what is left.
template <class S>
GALVATRON_INLINE void for_lanes(std::int64_t first, std::int64_t last, const auto& f) {
  for (; first + S::lanes <= last; first += S::lanes) f.template operator()<S>(first);
  for (; first < last; ++first) f.template operator()<OneLane>(first);
}
/// The same for the elements of a flat operation, [0, n), on all threads.
void for_lanes(const Team& team, std::int64_t n, const auto& f) {
  for_runs(team, n, 64, 1, [&](std::int64_t first, std::int64_t last, int) {
    with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
      const auto here = f;
      for_lanes<Vectors<isa>>(first, last, here);
    });
  });
}

/// Calls `f.operator()<S>(row)` for [0, rows), a run of them on each thread; `cost` is the elements of a row. A lambda
/// that does not name its vectors is called as f(row), see vectorized().
template <class F>
void for_rows(const Team& team, std::int64_t rows, std::int64_t cost, const F& f) {
  for_runs(team, rows, 1, cost, [&](std::int64_t first, std::int64_t last, int) {
    if constexpr (std::is_invocable_v<F, std::int64_t>)
      vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
        const F here = f;
        for (std::int64_t row = first; row < last; ++row) here(row);
      });
    else
      with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
        for (std::int64_t row = first; row < last; ++row) f.template operator()<Vectors<isa>>(row);
      });
  });
}

template <class V>
GALVATRON_INLINE float greatest(const V& x) {
  constexpr int lanes = sizeof(V) / sizeof(float);
  float most[lanes];
  std::memcpy(most, &x, sizeof x);
#pragma GCC unroll 8
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) most[i] = most[i] > most[i + half] ? most[i] : most[i + half];
  return most[0];
}

template <class V>
GALVATRON_INLINE auto total(const V& x) {
  constexpr int lanes = sizeof(V) / sizeof(x[0]);
  auto sum = x[0];
  for (int i = 1; i < lanes; ++i) sum += x[i];
  return sum;
}

/// The sum, over [0, n), of what `f.operator()<S>(sum, i)` adds to `sum` for the lanes from element i on; four sums run
/// side by side, because one would wait for each addition. Elements that are left come one by one.
template <class S>
GALVATRON_INLINE float sum_over(std::int64_t n, const auto& f) {
  using V = typename S::Float;
  constexpr std::int64_t lanes = S::lanes;
  V sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) f.template operator()<S>(sums[j], i + j * lanes);
  for (; i + lanes <= n; i += lanes) f.template operator()<S>(sums[0], i);
  float rest = 0;
  for (; i < n; ++i) f.template operator()<OneLane>(rest, i);
  const V sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  return total(sum) + rest;
}

}  // namespace galvatron::device::host
