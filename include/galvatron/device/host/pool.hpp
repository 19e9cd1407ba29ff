// Means over the tokens of a sample, and their gradient.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include <galvatron/device/host/team.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::host {

/// out (b, hidden) = scale * the sum of a sample's rows of x (tokens * b, hidden), in order and in float.
template <class T>
void pool_forward(const Team& team, std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale, const T* x,
                  T* out) {
  constexpr std::int64_t run = 64;
  for_runs(team, b * hidden, run, tokens, [&](std::int64_t begin, std::int64_t end, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t first = begin; first < end; first += run) {
        const std::int64_t n = std::min(run, end - first);
        std::array<float, run> sums{};
        for (std::int64_t s = 0; s < tokens; ++s) {
          const T* from = x + s * b * hidden + first;
#pragma omp simd
          for (std::int64_t i = 0; i < n; ++i) sums[static_cast<std::size_t>(i)] += kernels::get(from[i]);
        }
        for (std::int64_t i = 0; i < n; ++i) kernels::put(out[first + i], scale * sums[static_cast<std::size_t>(i)]);
      }
    });
  });
}

/// dx (tokens * b, hidden) = scale * dout (b, hidden), for every token.
template <class T>
void pool_backward(const Team& team, std::int64_t tokens, std::int64_t b, std::int64_t hidden, float scale,
                   const T* dout, T* dx) {
  for_runs(team, tokens, 1, b * hidden, [&](std::int64_t begin, std::int64_t end, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t s = begin; s < end; ++s) {
        T* to = dx + s * b * hidden;
#pragma omp simd
        for (std::int64_t i = 0; i < b * hidden; ++i) kernels::put(to[i], scale * kernels::get(dout[i]));
      }
    });
  });
}

}  // namespace galvatron::device::host
