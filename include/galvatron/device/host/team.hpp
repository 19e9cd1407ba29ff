// The threads that execute one operation of the host device.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/host/isa.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace galvatron::device {

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
template <class F>
void on_threads([[maybe_unused]] int threads, const F& f) {
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
template <class F>
void for_runs(const Team& team, std::int64_t n, std::int64_t unit, std::int64_t cost, const F& f) {
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
