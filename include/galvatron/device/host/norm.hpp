// LayerNorm and RMSNorm over rows, and sums over columns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include <galvatron/core/error.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/loops.hpp>
#include <galvatron/device/kernels/norm.hpp>

namespace galvatron::device::host {

/// y = normalized x * (offset + gamma) (+ beta).
template <class S, class T>
GALVATRON_INLINE void normalize_row(NormKind kind, std::int64_t hidden, const kernels::Normalization& normalized,
                                    const T* x, const T* gamma, const T* beta, T* y) {
  with_known_zero(gamma_offset(kind), [&](auto offset) GALVATRON_INLINE_LAMBDA {
    for_lanes<S>(0, hidden, [&]<class L>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
      typename L::Float v, slope;
      get_lanes<L>(x + i, v);
      get_lanes<L>(gamma + i, slope);
      normalized(v, v);
      if (offset != 0.0F) slope += float{offset};
      v *= slope;
      if (beta != nullptr) {
        typename L::Float shift;
        get_lanes<L>(beta + i, shift);
        v += shift;
      }
      put_lanes<L>(y + i, v);
    });
  });
}

/// What a row's elements share, which goes to `stats` (2) too.
template <class S>
GALVATRON_INLINE kernels::Normalization normalization_of(NormKind kind, std::int64_t hidden, double epsilon,
                                                         const auto* in, float* stats) {
  const float inverse = 1.0F / static_cast<float>(hidden);
  float mean = 0;
  if (kind == NormKind::layer_norm)
    mean = inverse * sum_over<S>(hidden, [&]<class L>(typename L::Float& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
             typename L::Float v;
             get_lanes<L>(in + i, v);
             sum += v;
           });
  const float squares =
      sum_over<S>(hidden, [&]<class L>(typename L::Float& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
        typename L::Float v;
        get_lanes<L>(in + i, v);
        v -= mean;
        sum += v * v;
      });
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(squares * inverse) + epsilon));
  stats[0] = mean;
  stats[1] = scale;
  return {mean, scale};
}

/// Of the lanes from element i on: d = dy, xhat = x normalized and g = dy * (offset + gamma).
template <class L, class T>
GALVATRON_INLINE void get_gradient_lanes(std::int64_t i, const T* dy, const T* x, auto offset, const T* gamma,
                                         const kernels::Normalization& normalized, typename L::Float& d,
                                         typename L::Float& xhat, typename L::Float& g) {
  get_lanes<L>(dy + i, d);
  get_lanes<L>(x + i, xhat);
  get_lanes<L>(gamma + i, g);
  normalized(xhat, xhat);
  if (offset != 0.0F) g += float{offset};
  g *= d;
}

/// The gradient of a row by its means; adds dy * xhat and dy to the column sums.
template <class S, class T>
GALVATRON_INLINE kernels::NormGradient gradient_of(NormKind kind, std::int64_t hidden, const T* dy, const T* x,
                                                   auto offset, const T* gamma,
                                                   const kernels::Normalization& normalized, float* gamma_sums,
                                                   float* beta_sums) {
  // Of the lanes from element i on.
  const auto add = [&]<class L>(std::int64_t i, typename L::Float& g_sum, typename L::Float& g_xhat_sum)
                       GALVATRON_INLINE_LAMBDA {
                         typename L::Float d, xhat, g;
                         get_gradient_lanes<L>(i, dy, x, offset, gamma, normalized, d, xhat, g);
                         g_sum += g;
                         g_xhat_sum += g * xhat;
                         vector_at<L>(gamma_sums + i) += d * xhat;
                         vector_at<L>(beta_sums + i) += d;
                       };
  typename S::Float g_lanes = {};
  typename S::Float g_xhat_lanes = {};
  std::int64_t i = 0;
  for (; i + S::lanes <= hidden; i += S::lanes) add.template operator()<S>(i, g_lanes, g_xhat_lanes);
  float g = total(g_lanes);
  float g_xhat = total(g_xhat_lanes);
  for (; i < hidden; ++i) add.template operator()<OneLane>(i, g, g_xhat);
  const float inverse = 1.0F / static_cast<float>(hidden);
  return {normalized.scale, kind == NormKind::layer_norm ? g * inverse : 0.0F, g_xhat * inverse};
}

/// The gradient dx of a row of x, plus `residual`'s where there is one; adds to the column sums as `gradient_of`.
template <class S, class T>
GALVATRON_INLINE void norm_backward_row(NormKind kind, std::int64_t hidden, const T* dy, const T* x, auto offset,
                                        const T* gamma, const kernels::Normalization& normalized, const T* residual,
                                        T* dx, float* gamma_sums, float* beta_sums) {
  const kernels::NormGradient slope =
      gradient_of<S>(kind, hidden, dy, x, offset, gamma, normalized, gamma_sums, beta_sums);
  for_lanes<S>(0, hidden, [&]<class L>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
    typename L::Float d, xhat, g;
    get_gradient_lanes<L>(i, dy, x, offset, gamma, normalized, d, xhat, g);
    slope(g, xhat, g);
    if (residual != nullptr) {
      get_lanes<L>(residual + i, d);
      g += d;
    }
    put_lanes<L>(dx + i, g);
  });
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

/// How many threads work on `rows` rows of `columns`, each with `buffers` rows of floats in its scratch memory.
inline int row_threads(const Team& team, std::int64_t rows, std::int64_t columns, std::int64_t buffers) {
  const std::int64_t bytes = buffers * round_up(columns, 16) * 4;
  if (bytes > team.scratch_of(0).count)
    throw DeviceFailure("operations on rows of " + std::to_string(columns) + " elements need " + std::to_string(bytes) +
                        " bytes of library workspace per thread, there are " +
                        std::to_string(team.scratch_of(0).count) + ": enlarge it");
  if (team.threads == 1 || rows * columns < parallel_elements) return 1;
  return static_cast<int>(std::min<std::int64_t>(team.threads, rows));
}

template <class T>
void norm_forward(const Team& team, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon, const T* x,
                  const T* gamma, const T* beta, T* y, float* stats) {
  for_rows(team, rows, hidden, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const T* in = x + row * hidden;
    const auto normalized = normalization_of<S>(kind, hidden, epsilon, in, stats + 2 * row);
    normalize_row<S>(kind, hidden, normalized, in, gamma, beta, y + row * hidden);
  });
}

/// A row of the sum is read again while it is near.
template <class T>
void add_norm_forward(const Team& team, NormKind kind, std::int64_t rows, std::int64_t hidden, double epsilon,
                      const T* x, const T* r, const T* gamma, const T* beta, T* sum, T* y, float* stats) {
  for_rows(team, rows, hidden, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    T* out = sum + row * hidden;
    for_lanes<S>(0, hidden, [&]<class L>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
      typename L::Float u, v;
      get_lanes<L>(x + row * hidden + i, u);
      get_lanes<L>(r + row * hidden + i, v);
      put_lanes<L>(out + i, u + v);
    });
    const auto normalized = normalization_of<S>(kind, hidden, epsilon, out, stats + 2 * row);
    normalize_row<S>(kind, hidden, normalized, out, gamma, beta, y + row * hidden);
  });
}

template <class T>
void norm_recompute(const Team& team, NormKind kind, std::int64_t rows, std::int64_t hidden, const T* x, const T* gamma,
                    const T* beta, const float* stats, T* y) {
  for_rows(team, rows, hidden, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    normalize_row<S>(kind, hidden, {stats[2 * row], stats[2 * row + 1]}, x + row * hidden, gamma, beta,
                     y + row * hidden);
  });
}

template <class T>
void norm_backward(const Team& team, NormKind kind, std::int64_t rows, std::int64_t hidden, const T* dy, const T* x,
                   const T* gamma, const float* stats, const T* d_residual, T* dx, float* dgamma, float* dbeta) {
  const std::int64_t width = round_up(hidden, 16);
  const int threads = row_threads(team, rows, hidden, 2);
  on_threads(threads, [&](int thread) {
    float* gamma_sums = reinterpret_cast<float*>(team.scratch_of(thread).data);
    float* beta_sums = gamma_sums + width;
    const std::int64_t first = rows * thread / threads;
    const std::int64_t last = rows * (thread + 1) / threads;
    with_isa(team.isa, [&]<Isa isa>() GALVATRON_INLINE_LAMBDA {
      std::fill_n(gamma_sums, 2 * width, 0.0F);
      with_known_zero(gamma_offset(kind), [&](auto offset) GALVATRON_INLINE_LAMBDA {
        for (std::int64_t row = first; row < last; ++row)
          norm_backward_row<Vectors<isa>>(
              kind, hidden, dy + row * hidden, x + row * hidden, offset, gamma, {stats[2 * row], stats[2 * row + 1]},
              d_residual == nullptr ? nullptr : d_residual + row * hidden, dx + row * hidden, gamma_sums, beta_sums);
      });
    });
  });
  if (dgamma != nullptr) add_partial_sums(team, hidden, threads, 0, dgamma);
  if (dbeta != nullptr) add_partial_sums(team, hidden, threads, width, dbeta);
}

template <class T>
void bias_gradient(const Team& team, std::int64_t rows, std::int64_t n, const T* dy, float* db) {
  using kernels::get;
  const int threads = row_threads(team, rows, n, 1);
  on_threads(threads, [&](int thread) {
    float* sums = reinterpret_cast<float*>(team.scratch_of(thread).data);
    const std::int64_t first = rows * thread / threads;
    const std::int64_t last = rows * (thread + 1) / threads;
    vectorized(team.isa, [&]() GALVATRON_INLINE_LAMBDA {
      std::fill_n(sums, n, 0.0F);
      std::int64_t row = first;
      for (; row + 4 <= last; row += 4) {
        const T* r = dy + row * n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i)
          sums[i] += (get(r[i]) + get(r[n + i])) + (get(r[2 * n + i]) + get(r[3 * n + i]));
      }
      for (; row < last; ++row) {
        const T* r = dy + row * n;
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) sums[i] += get(r[i]);
      }
    });
  });
  add_partial_sums(team, n, threads, 0, db);
}

}  // namespace galvatron::device::host
