// Element by element: additions, activations, AdamW, fills and copies.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <galvatron/device/device.hpp>
#include <galvatron/device/host/loops.hpp>
#include <galvatron/device/kernels/activation.hpp>
#include <galvatron/device/kernels/adamw.hpp>

#if GALVATRON_X86
#include <emmintrin.h>
#endif

namespace galvatron::device::host {

using kernels::get;
using kernels::put;

/// out (n) = Function of a (n), and of b (n) where it takes two; out may be one of them.
template <class Function>
void map(const Team& team, std::int64_t n, const auto* a, const auto* b, auto* out) {
  for_lanes(team, n, [=]<class S>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
    typename S::Float x, y;
    get_lanes<S>(a + i, x);
    if constexpr (requires { Function::of(x, x); }) {
      Function::of(x, y);
    } else {
      get_lanes<S>(b + i, y);
      Function::of(x, y, y);
    }
    put_lanes<S>(out + i, y);
  });
}

/// Calls f(run in `from`, run in `to`) for every run; those of a row on one thread, in order.
void for_each_run(const Team& team, const Runs& runs, const auto& f) {
  const std::int64_t cost = runs.blocks * runs.repeats * runs.width;
  if (cost == 0) return;  // a tensor without elements has no address
  for_runs(team, runs.rows, 1, cost, [&](std::int64_t first, std::int64_t last, int) {
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

void add_runs(const Team& team, const Runs& runs, const auto* from, auto* to) {
  for_each_run(team, runs, [&](std::int64_t source, std::int64_t target) GALVATRON_INLINE_LAMBDA {
#pragma omp simd
    for (std::int64_t i = 0; i < runs.width; ++i) put(to[target + i], get(to[target + i]) + get(from[source + i]));
  });
}

/// Calls `f.operator()<S>(first of u, first of g)` for the lanes of all rows of u (rows, 2n) and g (rows, n).
void for_gates(const Team& team, std::int64_t rows, std::int64_t n, const auto& f) {
  for_rows(team, rows, 2 * n, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    for_lanes<S>(0, n, [&]<class L>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
      f.template operator()<L>(row * 2 * n + i, row * n + i);
    });
  });
}

template <class T>
void activation_forward(const Team& team, ActivationKind kind, std::int64_t rows, std::int64_t n, const T* u, T* g) {
  if (inputs_of(kind) == 1) return kernels::with_activation(kind, [&]<class A>() { map<A>(team, rows * n, u, u, g); });
  kernels::with_gated(kind, [&]<class A>() {
    for_gates(team, rows, n, [=]<class S>(std::int64_t in, std::int64_t out) GALVATRON_INLINE_LAMBDA {
      typename S::Float gate, up, y;
      get_lanes<S>(u + in, gate);
      get_lanes<S>(u + in + n, up);
      A::forward(gate, up, y);
      put_lanes<S>(g + out, y);
    });
  });
}

template <class T>
void activation_backward(const Team& team, ActivationKind kind, std::int64_t rows, std::int64_t n, const T* u,
                         const T* dg, T* du) {
  if (inputs_of(kind) == 1)
    return kernels::with_activation(kind, [&]<class A>() { map<kernels::Backward<A>>(team, rows * n, u, dg, du); });
  kernels::with_gated(kind, [&]<class A>() {
    for_gates(team, rows, n, [=]<class S>(std::int64_t in, std::int64_t out) GALVATRON_INLINE_LAMBDA {
      typename S::Float gate, up, gradient;
      get_lanes<S>(u + in, gate);
      get_lanes<S>(u + in + n, up);
      get_lanes<S>(dg + out, gradient);
      A::backward(gate, up, gradient, gate, up);
      put_lanes<S>(du + in, gate);
      put_lanes<S>(du + in + n, up);
    });
  });
}

/// A run of a stream's words. fill() computes blocks side by side, which compilers turn into vectors.
class RandomRun {
 public:
  static constexpr std::int64_t most = 512;  ///< places

  /// The words of places [first, first + count), count <= most; with the vectors of the caller's instruction set.
  GALVATRON_INLINE void fill(const kernels::RandomStream& stream, std::uint64_t first, std::int64_t count) {
    skipped_ = static_cast<std::int64_t>(first % 4);
    const std::int64_t blocks = divide_up(skipped_ + count, 4);
    for (std::int64_t block = 0; block < blocks; block += lanes) {
      std::uint32_t c[4][lanes];
      for (int i = 0; i < lanes; ++i) {
        const std::uint64_t index = first / 4 + static_cast<std::uint64_t>(block + i);
        c[0][i] = static_cast<std::uint32_t>(index);
        c[1][i] = static_cast<std::uint32_t>(index >> 32);
        c[2][i] = static_cast<std::uint32_t>(stream.stream);
        c[3][i] = static_cast<std::uint32_t>(stream.stream >> 32);
      }
      auto key0 = static_cast<std::uint32_t>(stream.seed);
      auto key1 = static_cast<std::uint32_t>(stream.seed >> 32);
      for (int round = 0; round < philox_rounds; ++round) {
#pragma omp simd
        for (int i = 0; i < lanes; ++i) philox_round(c[0][i], c[1][i], c[2][i], c[3][i], key0, key1);
        next_philox_key(key0, key1);
      }
      std::uint32_t* out = words_.data() + 4 * block;
      for (int i = 0; i < lanes; ++i)
        for (int word = 0; word < 4; ++word) out[4 * i + word] = c[word][i];
    }
  }
  /// Those of place first + i and the places behind it.
  GALVATRON_INLINE const std::uint32_t* from(std::int64_t i) const { return words_.data() + skipped_ + i; }

 private:
  static constexpr int lanes = 16;  ///< blocks of four words at once
  std::array<std::uint32_t, most + 4 * lanes> words_;
  std::int64_t skipped_ = 0;
};

/// What AdamW rounds at a time.
inline constexpr std::int64_t adamw_block = 64;
/// Working parameters from this number on are written past the caches: when the next step reads them, the other states
/// have long displaced them, and a write through the caches would read what it replaces.
inline constexpr std::int64_t adamw_streams = 1 << 20;

/// to = from, a whole block past the caches where `streams`; then `to` starts at a multiple of 16 bytes.
GALVATRON_INLINE void put_block(const bfloat16* from, std::int64_t count, [[maybe_unused]] bool streams, bfloat16* to) {
#if GALVATRON_X86
  if (streams && count == adamw_block) {
    constexpr std::int64_t step = 8;
    for (std::int64_t i = 0; i < adamw_block; i += step)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), _mm_load_si128(reinterpret_cast<const __m128i*>(from + i)));
    return;
  }
#endif
  std::memcpy(static_cast<void*>(to), from, static_cast<std::size_t>(count) * sizeof(bfloat16));
}

template <class M, class W>
void adamw(const Team& team, std::int64_t n, const kernels::AdamWStep& constants, const AdamWPart& part, float scale,
           float* master, const float* g, M* m, M* v, W* working) {
  if (!std::isfinite(scale)) return;
  constexpr bool half_moments = std::is_same_v<M, bfloat16>;
  constexpr bool rounds = std::is_same_v<W, bfloat16>;
  const kernels::AdamWStep step = constants.of(part);
  const bool random = rounds && step.rounding == Rounding::stochastic;
  const bool same = static_cast<const void*>(working) == static_cast<const void*>(master);
  const bool streams =
      rounds && n >= adamw_streams && reinterpret_cast<std::uintptr_t>(working) % tensor_alignment == 0;
  for_runs(team, n, adamw_block, 4, [&](std::int64_t begin, std::int64_t end, int) {
    RandomRun moment_bits, master_bits;
    with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t run = begin; run < end; run += RandomRun::most) {
        const std::int64_t run_end = std::min(run + RandomRun::most, end);
        const std::uint64_t place = part.first + static_cast<std::uint64_t>(run);
        if constexpr (half_moments) moment_bits.fill(step.moment_bits(part), place, run_end - run);
        if (random) master_bits.fill(step.master_bits(part), place, run_end - run);
        for (std::int64_t first = run; first < run_end; first += adamw_block) {
          const std::int64_t last = std::min(first + adamw_block, run_end);
          alignas(tensor_alignment) std::array<W, adamw_block> rounded;
          const auto update = [&, step, scale, master, g, m, v]<class S>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
            typename S::Float w, gradient, mean, variance;
            get_lanes<S>(master + i, w);
            get_lanes<S>(g + i, gradient);
            get_lanes<S>(m + i, mean);
            get_lanes<S>(v + i, variance);
            gradient *= scale;
            step(w, gradient, mean, variance);
            if constexpr (half_moments) {  // rounded at random
              put_lanes_stochastically<S>(m + i, mean, moment_bits.from(i - run), 0);
              put_lanes_stochastically<S>(v + i, variance, moment_bits.from(i - run), 16);
            } else {
              put_lanes<S>(m + i, mean);
              put_lanes<S>(v + i, variance);
            }
            put_lanes<S>(master + i, w);
            if constexpr (!rounds) {
              if (!same) put_lanes<S>(working + i, w);
            } else if (random) {
              put_lanes_stochastically<S>(rounded.data() + (i - first), w, master_bits.from(i - run), 0);
            } else {
              put_lanes<S>(rounded.data() + (i - first), w);
            }
          };
          for_lanes<Vectors<isa>>(first, last, update);
          if constexpr (rounds) put_block(rounded.data(), last - first, streams, working + first);
        }
      }
    });
#if GALVATRON_X86
    if (streams) _mm_sfence();  // makes what was written past the caches visible as any other write
#endif
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
        Doubles four[4] = {};
        const auto add_square = [&](Doubles& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
          foresee(x + i);
          typename S::Half some;
          std::memcpy(&some, x + i, sizeof some);
          const Doubles wide = __builtin_convertvector(some, Doubles);
          sum += wide * wide;
        };
        std::int64_t i = run * length;
        for (; i + 4 * lanes <= end; i += 4 * lanes)
#pragma GCC unroll 4
          for (int j = 0; j < 4; ++j) add_square(four[j], i + j * lanes);
        double sum = 0;
        for (; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        const Doubles lanes_sum = (four[0] + four[1]) + (four[2] + four[3]);
        sums[static_cast<std::size_t>(run)] = sum + total(lanes_sum);
      }
    });
  });
  double whole = 0;
  for (const double sum : sums) whole += sum;
  return whole;
}

}  // namespace galvatron::device::host
