// The instruction sets that the host's loops are compiled for, chosen when the program runs.
//
// A loop body is an always-inline lambda; `with_isa` calls it from a function of the wanted target, whose instruction
// set it takes. Compilers shy away from the widest registers, which slowed early processors down; here they are used.
#pragma once

#include <cstdint>

#include <galvatron/device/kernels/macros.hpp>

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
template <class F>
__attribute__((noinline, target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"))) void
call_avx512(const F& f) {
  f.template operator()<Isa::avx512>();
}
template <class F>
__attribute__((noinline, target("avx2,fma"))) void call_avx2(const F& f) {
  f.template operator()<Isa::avx2>();
}
#endif
template <class F>
__attribute__((noinline)) void call_portable(const F& f) {
  f.template operator()<Isa::portable>();
}
}  // namespace detail

/// Calls `f.operator()<isa>()`, an always-inline lambda, compiled for that instruction set.
template <class F>
void with_isa(Isa isa, const F& f) {
#if GALVATRON_X86
  if (isa == Isa::avx512) return detail::call_avx512(f);
  if (isa == Isa::avx2) return detail::call_avx2(f);
#endif
  detail::call_portable(f);
}

/// The same for an instruction set that the caller's code knows: one version.
template <Isa isa, class F>
GALVATRON_INLINE void with_isa(const F& f) {
#if GALVATRON_X86
  if constexpr (isa == Isa::avx512) return detail::call_avx512(f);
  if constexpr (isa == Isa::avx2) return detail::call_avx2(f);
#endif
  if constexpr (isa == Isa::portable) detail::call_portable(f);
}

/// Calls `f()`, an always-inline lambda whose code does not name the instruction set; a build that has AVX-512 anyway
/// compiles it once.
template <class F>
void vectorized([[maybe_unused]] Isa isa, const F& f) {
  const auto any = [&]<Isa>() GALVATRON_INLINE_LAMBDA { f(); };
#if GALVATRON_X86 && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__FMA__)
  detail::call_avx512(any);
#else
  with_isa(isa, any);
#endif
}

}  // namespace galvatron::device
