// Softmax cross-entropy over a vocabulary that may be in shards.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/device/host/loops.hpp>
#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/device/kernels/softmax.hpp>

namespace galvatron::device::host {

/// Merges n logits into the statistics of their row.
template <class S>
GALVATRON_INLINE void piece_statistics(std::int64_t n, const auto* x, auto cap, kernels::SoftmaxStatistics& whole) {
  using V = typename S::Float;
  constexpr std::int64_t lanes = S::lanes;
  kernels::SoftmaxStatistics piece;
  V a = V{} + piece.maximum;
  V b = a;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    V u, v;
    get_lanes<S>(x + i, u);
    get_lanes<S>(x + i + lanes, v);
    a = u > a ? u : a;
    b = v > b ? v : b;
  }
  a = a > b ? a : b;
  float maximum = greatest(a);
  for (; i < n; ++i) maximum = kernels::get(x[i]) > maximum ? kernels::get(x[i]) : maximum;
  kernels::soft_cap(maximum, cap, piece.maximum);
  const float reference = piece.reference();
  piece.sum = sum_over<S>(n, [&]<class L>(typename L::Float& sum, std::int64_t from) GALVATRON_INLINE_LAMBDA {
    typename L::Float e;
    get_lanes<L>(x + from, e);
    kernels::soft_cap<typename L::Float>(e, cap, e);
    kernels::exponential<typename L::Float>(e - reference, e);
    sum += e;
  });
  whole.merge(piece);
}

template <class T>
void softmax_statistics(const Team& team, std::int64_t rows, std::int64_t columns, std::int64_t valid,
                        std::int64_t first, const T* logits, const std::int32_t* targets, float* stats, float cap = 0) {
  constexpr std::int64_t block = 1024;  // stays in the first cache between the maximum and the sum
  for_rows(team, rows, columns, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    const T* x = logits + row * columns;
    kernels::SoftmaxStatistics whole;
    with_known_zero(cap, [&](auto known) GALVATRON_INLINE_LAMBDA {
      for (std::int64_t from = 0; from < valid; from += block)
        piece_statistics<S>(std::min(block, valid - from), x + from, known, whole);
    });
    whole.find_target(targets[row], first, valid, x, cap);
    whole.put(stats + 3 * row);
  });
}

inline void softmax_merge(const Team&, std::int64_t rows, std::int64_t shards, const float* stats, float* lse,
                          double* loss) {
  double sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const auto whole = kernels::SoftmaxStatistics::merged(stats, shards, rows, row);
    lse[row] = whole.log_sum();
    sum += whole.loss(lse[row]);
  }
  if (loss != nullptr) *loss += sum;
}

template <class T>
void softmax_backward(const Team& team, std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                      const float* lse, const std::int32_t* targets, float scale, bool balanced, T* logits,
                      float cap = 0) {
  for_rows(team, rows, columns, [&]<class S>(std::int64_t row) GALVATRON_INLINE_LAMBDA {
    T* x = logits + row * columns;
    if (targets[row] < 0) {
      std::fill(x, x + columns, T{});
      return;
    }
    const float log_sum = lse[row];
    const std::int64_t target = kernels::shard_row(targets[row], first, valid);
    float at_target = 0;
    float slope = 1;
    if (target >= 0) kernels::softmax_gradient(kernels::get(x[target]), log_sum, scale, cap, at_target, slope);
    with_known_zero(cap, [&](auto known) GALVATRON_INLINE_LAMBDA {
      for_lanes<S>(0, valid, [&]<class L>(std::int64_t i) GALVATRON_INLINE_LAMBDA {
        typename L::Float v, slopes;
        get_lanes<L>(x + i, v);
        kernels::softmax_gradient(v, log_sum, scale, known, v, slopes);
        put_lanes<L>(x + i, v);
      });
    });
    at_target -= scale * slope;
    if (balanced) {
      x[target] = T{};
      at_target = -sum_over<S>(valid, [&]<class L>(typename L::Float& sum, std::int64_t i) GALVATRON_INLINE_LAMBDA {
        typename L::Float v;
        get_lanes<L>(x + i, v);
        sum += v;
      });
    }
    if (target >= 0) kernels::put(x[target], at_target);
    std::fill(x + valid, x + columns, T{});
  });
}

/// row = factor * e^log.
template <class T>
void exponential_row(const Team&, std::int64_t n, float factor, const T* log, T* row) {
  const float value = factor * (log == nullptr ? 1.0F : kernels::exponential(kernels::get(*log)));
  for (std::int64_t i = 0; i < n; ++i) kernels::put(row[i], value);
}
template <class T>
void exponential_row_backward(const Team&, std::int64_t n, const T* row, const float* d_row, float* d_log) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(kernels::get(row[i])) * static_cast<double>(d_row[i]);
  *d_log += static_cast<float>(sum);
}

}  // namespace galvatron::device::host
