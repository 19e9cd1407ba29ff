// Element by element: additions, activations, AdamW, fills and copies.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <galvatron/device/device.hpp>
#include <galvatron/device/host/random.hpp>
#include <galvatron/device/host/team.hpp>
#include <galvatron/device/host/vector.hpp>
#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/kernels/adamw.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::host {

using kernels::get;
using kernels::put;

/// out = a + b.
template <class T>
void add(const Team& team, std::int64_t n, const T* a, const T* b, T* out) {
  for_elements(team, n, [=](std::int64_t i) GALVATRON_INLINE_LAMBDA { put(out[i], get(a[i]) + get(b[i])); });
}

/// to += from.
template <class T>
void accumulate(const Team& team, std::int64_t n, const T* from, float* to) {
  for_elements(team, n, [=](std::int64_t i) GALVATRON_INLINE_LAMBDA { to[i] += get(from[i]); });
}

/// Calls f(run in `from`, run in `to`) for every run; those of a row on one thread, in order.
template <class F>
void for_each_run(const Team& team, const Runs& runs, const F& f) {
  for_runs(team, runs.rows, 1, runs.blocks * runs.repeats * runs.width,
           [&](std::int64_t first, std::int64_t last, int) {
             vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
               const auto at = [](const Runs::Distances& d, std::int64_t block, std::int64_t repeat, std::int64_t row) {
                 return block * d.block + repeat * d.repeat + row * d.row;
               };
               for (std::int64_t block = 0; block < runs.blocks; ++block)
                 for (std::int64_t repeat = 0; repeat < runs.repeats; ++repeat)
                   for (std::int64_t row = first; row < last; ++row)
                     f(at(runs.from, block, repeat, row), at(runs.to, block, repeat, row));
             });
           });
}

/// to = from, run by run.
template <class A, class B>
void copy_runs(const Team& team, const Runs& runs, const A* from, B* to) {
  for_each_run(team, runs, [&](std::int64_t source, std::int64_t target) GALVATRON_INLINE_LAMBDA {
    if constexpr (std::is_same_v<A, B>) {
      std::memcpy(static_cast<void*>(to + target), from + source, static_cast<std::size_t>(runs.width) * sizeof(A));
    } else {
#pragma omp simd
      for (std::int64_t i = 0; i < runs.width; ++i) put(to[target + i], get(from[source + i]));
    }
  });
}

/// to += from, run by run.
template <class A, class B>
void add_runs(const Team& team, const Runs& runs, const A* from, B* to) {
  for_each_run(team, runs, [&](std::int64_t source, std::int64_t target) GALVATRON_INLINE_LAMBDA {
#pragma omp simd
    for (std::int64_t i = 0; i < runs.width; ++i) put(to[target + i], get(to[target + i]) + get(from[source + i]));
  });
}

/// g (rows, n) from u (rows, n), or (rows, 2n) for SwiGLU.
template <class T>
void activation_forward(const Team& team, ActivationKind kind, std::int64_t rows, std::int64_t n, const T* u, T* g) {
  if (kind == ActivationKind::gelu) {
    for_elements(team, rows * n,
                 [=](std::int64_t i) GALVATRON_INLINE_LAMBDA { put(g[i], kernels::Gelu::forward(get(u[i]))); });
    return;
  }
  if (kind == ActivationKind::relu) {
    for_elements(team, rows * n,
                 [=](std::int64_t i) GALVATRON_INLINE_LAMBDA { put(g[i], kernels::Relu::forward(get(u[i]))); });
    return;
  }
  for_runs(team, rows, 1, n, [&](std::int64_t first, std::int64_t last, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t row = first; row < last; ++row) {
        const T* gate = u + row * 2 * n;
        const T* up = gate + n;
        T* out = g + row * n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) put(out[i], kernels::SwiGlu::forward(get(gate[i]), get(up[i])));
      }
    });
  });
}

/// du (the shape of u) from u and dg (rows, n); du may be u.
template <class T>
void activation_backward(const Team& team, ActivationKind kind, std::int64_t rows, std::int64_t n, const T* u,
                         const T* dg, T* du) {
  if (kind == ActivationKind::gelu) {
    for_elements(team, rows * n, [=](std::int64_t i) GALVATRON_INLINE_LAMBDA {
      put(du[i], get(dg[i]) * kernels::Gelu::derivative(get(u[i])));
    });
    return;
  }
  if (kind == ActivationKind::relu) {
    for_elements(team, rows * n, [=](std::int64_t i) GALVATRON_INLINE_LAMBDA {
      put(du[i], get(dg[i]) * kernels::Relu::derivative(get(u[i])));
    });
    return;
  }
  for_runs(team, rows, 1, 2 * n, [&](std::int64_t first, std::int64_t last, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t row = first; row < last; ++row) {
        const T* gate = u + row * 2 * n;
        const T* up = gate + n;
        const T* gradient = dg + row * n;
        T* dgate = du + row * 2 * n;
        T* dup = dgate + n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) {
          const auto d = kernels::SwiGlu::backward(get(gate[i]), get(up[i]), get(gradient[i]));
          put(dgate[i], d.gate);
          put(dup[i], d.up);
        }
      }
    });
  });
}

/// One AdamW step of n parameters; `working` receives the rounded masters and may be `master`.
/// @tparam M  in which the moments are kept: float, or bfloat16
template <class M, class W>
void adamw(const Team& team, std::int64_t n, const kernels::AdamWStep& constants, const AdamWPart& part, float scale,
           float* master, const float* g, M* m, M* v, W* working) {
  if (!std::isfinite(scale)) return;
  const kernels::AdamWStep step = constants.of(part);
  const bool random = std::is_same_v<W, bfloat16> && step.rounding == Rounding::stochastic;
  for_runs(team, n, 64, 4, [&](std::int64_t first, std::int64_t last, int) {
    RandomRun bits;
    for (; first < last; first += RandomRun::most) {
      const std::int64_t count = std::min(RandomRun::most, last - first);
      const std::uint64_t place = part.first + static_cast<std::uint64_t>(first);
      vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
        if constexpr (std::is_same_v<M, bfloat16>) bits.fill(step.moment_bits(part), place, count);
#pragma omp simd
        for (std::int64_t j = 0; j < count; ++j) {
          const std::int64_t i = first + j;
          float w = master[i];
          float mean = get(m[i]);
          float variance = get(v[i]);
          step(w, g[i] * scale, mean, variance);
          step.keep_moments(mean, variance, std::is_same_v<M, bfloat16> ? bits[j] : 0, m[i], v[i]);
          master[i] = w;
          put(working[i], w);
        }
        if constexpr (std::is_same_v<W, bfloat16>) {
          if (!random) return;
          bits.fill(step.master_bits(part), place, count);
#pragma omp simd
          for (std::int64_t j = 0; j < count; ++j)
            kernels::put_stochastically(working[first + j], master[first + j], bits[j]);
        }
      });
    }
  });
}

/// The sum of squares: 64 runs, each in double, added in order, so that the number of threads does not matter.
inline double norm_squared(const Team& team, std::int64_t n, const float* x) {
  constexpr std::int64_t runs = 64;
  const std::int64_t length = std::max<std::int64_t>(1 << 12, round_up(divide_up(n, runs), 64));
  std::array<double, runs> sums{};
  for_runs(team, divide_up(n, length), 1, length, [&](std::int64_t first, std::int64_t last, int) {
    with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
      using S = Vectors<isa>;
      using Doubles = typename S::Doubles;
      constexpr std::int64_t lanes = S::lanes / 2;
      for (std::int64_t run = first; run < last; ++run) {
        const std::int64_t end = std::min(n, (run + 1) * length);
        Doubles a = {}, b = {}, c = {}, d = {};
        const auto add_square = [&](Doubles& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
          const Doubles wide = __builtin_convertvector(*reinterpret_cast<const typename S::HalfAt*>(x + i), Doubles);
          sum += wide * wide;
        };
        std::int64_t i = run * length;
        for (; i + 4 * lanes <= end; i += 4 * lanes) {
          add_square(a, i);
          add_square(b, i + lanes);
          add_square(c, i + 2 * lanes);
          add_square(d, i + 3 * lanes);
        }
        double sum = 0;
        for (; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        const Doubles lanes_sum = (a + b) + (c + d);
        sums[static_cast<std::size_t>(run)] = sum + total(lanes_sum);
      }
    });
  });
  double whole = 0;
  for (const double sum : sums) whole += sum;
  return whole;
}

/// Bytes set to zero.
inline void zero(const Team& team, View<std::byte> bytes) {
  for_runs(team, bytes.count, 4096, 1, [&](std::int64_t first, std::int64_t last, int) {
    std::memset(bytes.data + first, 0, static_cast<std::size_t>(last - first));
  });
}

/// Bytes copied; the two do not overlap.
inline void copy(const Team& team, std::int64_t n, const std::byte* from, std::byte* to) {
  for_runs(team, n, 4096, 1, [&](std::int64_t first, std::int64_t last, int) {
    std::memcpy(to + first, from + first, static_cast<std::size_t>(last - first));
  });
}

}  // namespace galvatron::device::host
