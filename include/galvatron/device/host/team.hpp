// The threads that execute one operation of the host device, and the instruction sets that its loops are compiled for,
// chosen when the program runs.
//
// A loop body is an always-inline lambda; `with_isa` calls it from a function of the wanted target, whose instruction
// set it takes. Compilers shy away from the widest registers, which slowed early processors down; here they are used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/kernels/macros.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace galvatron::device {

enum class Isa : std::uint8_t { portable, avx2, avx512 };

constexpr const char* name_of(Isa isa) {
  return isa == Isa::avx512 ? "avx512" : isa == Isa::avx2 ? "avx2" : "portable";
}

/// The best that this processor executes.
inline Isa best_isa() {
#if GALVATRON_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::portable;
}

namespace detail {
#if GALVATRON_X86
__attribute__((noinline, target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"))) void
call_avx512(const auto& f) {
  f.template operator()<Isa::avx512>();
}
__attribute__((noinline, target("avx2,fma"))) void call_avx2(const auto& f) { f.template operator()<Isa::avx2>(); }
#endif
__attribute__((noinline)) void call_portable(const auto& f) { f.template operator()<Isa::portable>(); }
}  // namespace detail

/// Calls `f.operator()<isa>()`, an always-inline lambda, compiled for that instruction set.
void with_isa(Isa isa, const auto& f) {
#if GALVATRON_X86
  if (isa == Isa::avx512) return detail::call_avx512(f);
  if (isa == Isa::avx2) return detail::call_avx2(f);
#endif
  detail::call_portable(f);
}

/// The same for an instruction set that the caller's code knows: one version.
template <Isa isa>
GALVATRON_INLINE void with_isa(const auto& f) {
#if GALVATRON_X86
  if constexpr (isa == Isa::avx512) return detail::call_avx512(f);
  if constexpr (isa == Isa::avx2) return detail::call_avx2(f);
#endif
  if constexpr (isa == Isa::portable) detail::call_portable(f);
}

/// Calls `f()`, an always-inline lambda whose code does not name the instruction set; a build that has AVX-512 anyway
/// compiles it once.
void vectorized([[maybe_unused]] Isa isa, const auto& f) {
  const auto any = [&]<Isa>() GALVATRON_INLINE_LAMBDA { f(); };
#if GALVATRON_X86 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__FMA__)
  detail::call_avx512(any);
#else
  with_isa(isa, any);
#endif
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
void on_threads([[maybe_unused]] int threads, const auto& f) {
#if defined(_OPENMP)
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      // An enclosing parallel region may have left fewer threads than asked for.
      for (int thread = omp_get_thread_num(); thread < threads; thread += omp_get_num_threads()) f(thread);
    }
    return;
  }
#endif
  for (int thread = 0; thread < threads; ++thread) f(thread);
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

/// A view whose element type follows from another argument; takes mutable views too.
template <class T>
using In = std::type_identity_t<View<const T>>;

}  // namespace galvatron::device
