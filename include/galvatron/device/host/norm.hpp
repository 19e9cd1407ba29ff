// LayerNorm and RMSNorm over rows, and sums over columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/team.hpp>
#include <galvatron/device/kernels/norm.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::host {

namespace detail {

/// y = normalized x * gamma (+ beta).
template <class T>
GALVATRON_INLINE void normalize_row(std::int64_t hidden, const kernels::Normalization& normalized, const T* x,
                                    const T* gamma, const T* beta, T* y) {
  using kernels::get;
  using kernels::put;
  const float mean = normalized.mean;
  const float scale = normalized.scale;
  if (beta != nullptr) {
#pragma omp simd
    for (std::int64_t i = 0; i < hidden; ++i)
      put(y[i], kernels::Normalization{mean, scale}(get(x[i])) * get(gamma[i]) + get(beta[i]));
  } else {
#pragma omp simd
    for (std::int64_t i = 0; i < hidden; ++i)
      put(y[i], kernels::Normalization{mean, scale}(get(x[i])) * get(gamma[i]));
  }
}

/// Adds the partial column sums of all threads that worked, in their order, to `sums` (columns).
inline void add_partial_sums(const Team& team, std::int64_t columns, int partials, std::int64_t offset, float* sums) {
  for_runs(team, columns, 64, partials, [&](std::int64_t first, std::int64_t last, int) {
    for (int thread = 0; thread < partials; ++thread) {
      const float* part = reinterpret_cast<const float*>(team.scratch_of(thread).data) + offset;
      for (std::int64_t i = first; i < last; ++i) sums[i] += part[i];
    }
  });
}

/// How many threads work on `rows` rows of `columns`, each with `sums` partial sums of a row's width in its scratch.
inline int row_threads(const Team& team, std::int64_t rows, std::int64_t columns, std::int64_t sums) {
  const std::int64_t bytes = sums * round_up(columns, 16) * 4;
  if (bytes > team.scratch_of(0).count)
    throw DeviceFailure("sums over columns of rows of " + std::to_string(columns) + " need " + std::to_string(bytes) +
                        " bytes of library workspace per thread, there are " +
                        std::to_string(team.scratch_of(0).count) + ": enlarge it");
  if (team.threads == 1 || rows * columns < parallel_elements) return 1;
  return static_cast<int>(std::min<std::int64_t>(team.threads, rows));
}

}  // namespace detail

/// y (rows, hidden) = norm(x) * gamma (+ beta); stats (rows, 2) = mean, 1/deviation; RMSNorm: 0, 1/rms.
template <class T>
void norm_forward(const Team& team, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
                  const T* gamma, const T* beta, T* y, float* stats) {
  using kernels::get;
  for_runs(team, rows, 1, hidden, [&](std::int64_t first, std::int64_t last, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      const float inverse = 1.0F / static_cast<float>(hidden);
      for (std::int64_t row = first; row < last; ++row) {
        const T* in = x + row * hidden;
        float mean = 0;
        if (kind == NormKind::layer_norm) {
          float sum = 0;
#pragma omp simd reduction(+ : sum) simdlen(64)
          for (std::int64_t i = 0; i < hidden; ++i) sum += get(in[i]);
          mean = sum * inverse;
        }
        float squares = 0;
#pragma omp simd reduction(+ : squares) simdlen(64)
        for (std::int64_t i = 0; i < hidden; ++i) {
          const float d = get(in[i]) - mean;
          squares += d * d;
        }
        const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(squares * inverse) + epsilon));
        stats[2 * row] = mean;
        stats[2 * row + 1] = scale;
        detail::normalize_row(hidden, {mean, scale}, in, gamma, beta, y + row * hidden);
      }
    });
  });
}

/// y again from the statistics kept.
template <class T>
void norm_again(const Team& team, std::int64_t rows, std::int64_t hidden, const T* x, const T* gamma, const T* beta,
                const float* stats, T* y) {
  for_runs(team, rows, 1, hidden, [&](std::int64_t first, std::int64_t last, int) {
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      for (std::int64_t row = first; row < last; ++row)
        detail::normalize_row(hidden, {stats[2 * row], stats[2 * row + 1]}, x + row * hidden, gamma, beta,
                              y + row * hidden);
    });
  });
}

/// dx = d_residual (null: 0) + the norm's input gradient; dgamma and dbeta (null for RMSNorm) accumulate.
template <class T>
void norm_backward(const Team& team, NormKind kind, std::int64_t rows, std::int64_t hidden, const T* dy, const T* x,
                   const T* gamma, const float* stats, const T* d_residual, T* dx, float* dgamma, float* dbeta) {
  using kernels::get;
  using kernels::put;
  const std::int64_t width = round_up(hidden, 16);
  const int threads = detail::row_threads(team, rows, hidden, 2);
  on_threads(threads, [&](int thread) {
    float* gamma_sums = reinterpret_cast<float*>(team.scratch_of(thread).data);
    float* beta_sums = gamma_sums + width;
    const std::int64_t first = rows * thread / threads;
    const std::int64_t last = rows * (thread + 1) / threads;
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      std::fill_n(gamma_sums, 2 * width, 0.0F);
      const float inverse = 1.0F / static_cast<float>(hidden);
      for (std::int64_t row = first; row < last; ++row) {
        const T* in = x + row * hidden;
        const T* gradient = dy + row * hidden;
        T* out = dx + row * hidden;
        const float mean = stats[2 * row];
        const float scale = stats[2 * row + 1];
        float sum_g = 0;
        float sum_g_xhat = 0;
#pragma omp simd reduction(+ : sum_g, sum_g_xhat) simdlen(32)
        for (std::int64_t i = 0; i < hidden; ++i) {
          const float d = get(gradient[i]);
          const float xhat = kernels::Normalization{mean, scale}(get(in[i]));
          const float g = d * get(gamma[i]);
          sum_g += g;
          sum_g_xhat += g * xhat;
          gamma_sums[i] += d * xhat;
          beta_sums[i] += d;
        }
        const float mean_g = kind == NormKind::layer_norm ? sum_g * inverse : 0.0F;
        const float mean_g_xhat = sum_g_xhat * inverse;
        if (d_residual != nullptr) {
          const T* residual = d_residual + row * hidden;
#pragma omp simd
          for (std::int64_t i = 0; i < hidden; ++i) {
            const float xhat = kernels::Normalization{mean, scale}(get(in[i]));
            const float g = get(gradient[i]) * get(gamma[i]);
            put(out[i], get(residual[i]) + kernels::NormGradient{scale, mean_g, mean_g_xhat}(g, xhat));
          }
        } else {
#pragma omp simd
          for (std::int64_t i = 0; i < hidden; ++i) {
            const float xhat = kernels::Normalization{mean, scale}(get(in[i]));
            const float g = get(gradient[i]) * get(gamma[i]);
            put(out[i], kernels::NormGradient{scale, mean_g, mean_g_xhat}(g, xhat));
          }
        }
      }
    });
  });
  detail::add_partial_sums(team, hidden, threads, 0, dgamma);
  if (dbeta != nullptr) detail::add_partial_sums(team, hidden, threads, width, dbeta);
}

/// db (n) += column sums of dy (rows, n).
template <class T>
void bias_gradient(const Team& team, std::int64_t rows, std::int64_t n, const T* dy, float* db) {
  using kernels::get;
  const int threads = detail::row_threads(team, rows, n, 1);
  on_threads(threads, [&](int thread) {
    float* sums = reinterpret_cast<float*>(team.scratch_of(thread).data);
    const std::int64_t first = rows * thread / threads;
    const std::int64_t last = rows * (thread + 1) / threads;
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      std::fill_n(sums, n, 0.0F);
      std::int64_t row = first;
      for (; row + 4 <= last; row += 4) {
        const T* r0 = dy + row * n;
        const T* r1 = r0 + n;
        const T* r2 = r1 + n;
        const T* r3 = r2 + n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) sums[i] += (get(r0[i]) + get(r1[i])) + (get(r2[i]) + get(r3[i]));
      }
      for (; row < last; ++row) {
        const T* r0 = dy + row * n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) sums[i] += get(r0[i]);
      }
    });
  });
  detail::add_partial_sums(team, n, threads, 0, db);
}

}  // namespace galvatron::device::host
