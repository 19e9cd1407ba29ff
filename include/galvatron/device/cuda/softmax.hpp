// Softmax cross-entropy over a vocabulary that may be in shards.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/kernels/embedding.hpp>
#include <galvatron/device/kernels/softmax.hpp>

namespace galvatron::device::cuda {

inline constexpr int softmax_threads = 256;
inline constexpr int softmax_packs = 4;  ///< that a thread asks for before it works on them: a batch

/// True when the batch of a thread from element `from` on lies within the first `count` of a row.
constexpr bool is_batch_within(int from, int step, int size, int count) {
  return from + (softmax_packs - 1) * step + size <= count;
}

/// Such a batch of the first `count` of a row, all of it within them where `inside`.
template <bool inside, class T>
GALVATRON_KERNEL void load_batch(const T* row, int from, int step, int count, bool packed,
                                 Pack<T> (&packs)[softmax_packs]) {
  if constexpr (inside)
    for (int p = 0; p < softmax_packs; ++p) packs[p] = Pack<T>::at(row + from + p * step);
  else
    load_packs(packed, [&](int p) { return RestOfRow<T>{row + from + p * step, count - from - p * step}; }, packs);
}

/// The statistics of rows, a block a row, which it reads once: a batch ahead of the one that it works on.
template <class T>
struct SoftmaxStatistics {
  static constexpr int most_threads = softmax_threads;
  static constexpr int least_blocks = 4;  ///< a multiprocessor
  static constexpr int size = Pack<T>::size;
  std::int64_t rows;
  int columns, valid;
  std::int64_t first;
  bool packed;
  const T* logits;
  const std::int32_t* targets;
  float* stats;
  float cap;  ///< see soft_cap()

  GALVATRON_KERNEL void operator()(auto& block) const {
    const int step = block.threads() * size;
    for (std::int64_t row = block.index(); row < rows; row += block.blocks()) {
      const T* x = logits + row * columns;
      const std::int32_t token = targets[row];
      kernels::SoftmaxStatistics whole;
      int from = block.thread() * size;
      Pack<T> packs[softmax_packs], next[softmax_packs];
      load_batch<false>(x, from, step, valid, packed, next);
      if (block.thread() == 0) whole.find_target(token, first, valid, x, cap);
      while (from < valid) {
        for (int p = 0; p < softmax_packs; ++p) packs[p] = next[p];
        load_batch<false>(x, from + softmax_packs * step, step, valid, packed, next);
        if (is_batch_within(from, step, size, valid))
          add<true>(packs, from, step, whole);
        else
          add<false>(packs, from, step, whole);
        from += softmax_packs * step;
      }
      const kernels::SoftmaxStatistics own = whole;
      whole.maximum = block_maximum(block, own.maximum);
      whole.sum = block_sum(block, own.sum * kernels::exponential(own.reference() - whole.reference()));
      if (block.thread() == 0) whole.put(stats + 3 * row);
    }
  }

 private:
  /// Takes in a batch of packs, all of whose elements count where `inside`.
  template <bool inside>
  GALVATRON_KERNEL void add(const Pack<T> (&packs)[softmax_packs], int from, int step,
                            kernels::SoftmaxStatistics& whole) const {
    float values[softmax_packs][size];
    kernels::SoftmaxStatistics piece;
    for (int p = 0; p < softmax_packs; ++p)
      for (int j = 0; j < size; ++j) {
        values[p][j] = -std::numeric_limits<float>::infinity();
        if (inside || j < valid - from - p * step) kernels::soft_cap(packs[p].get(j), cap, values[p][j]);
        piece.maximum = std::fmax(piece.maximum, values[p][j]);
      }
    const float reference = piece.reference();
    for (int p = 0; p < softmax_packs; ++p)
      for (int j = 0; j < size; ++j) piece.sum += kernels::exponential(values[p][j] - reference);
    whole.merge(piece);
  }
};

/// lse of rows, a thread a row, and the sum of their losses for every block.
struct SoftmaxMerge {
  static constexpr int most_threads = 256;
  static constexpr int least_blocks = 4;  ///< a multiprocessor
  std::int64_t rows, shards;
  const float* stats;
  float* lse;
  double* losses;  ///< (blocks), or null

  GALVATRON_KERNEL void operator()(auto& block) const {
    double loss = 0;
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t row = block.index() * block.threads() + block.thread(); row < rows; row += step) {
      const auto whole = kernels::SoftmaxStatistics::merged(stats, shards, rows, row);
      const float log_sum = whole.log_sum();
      lse[row] = log_sum;
      loss += whole.loss(log_sum);
    }
    if (losses == nullptr) return;
    loss = block_sum(block, loss);
    if (block.thread() == 0) losses[block.index()] = loss;
  }
};

/// Gradients of logits in place, a block a row.
template <class T>
struct SoftmaxBackward {
  static constexpr int most_threads = softmax_threads;
  static constexpr int size = Pack<T>::size;
  std::int64_t rows;
  int columns, valid;
  std::int64_t first;
  bool packed;
  const float* lse;
  const std::int32_t* targets;
  float scale;
  T* logits;
  float cap;  ///< see soft_cap()

  GALVATRON_KERNEL void operator()(auto& block) const {
    const int step = block.threads() * size;
    for (std::int64_t row = block.index(); row < rows; row += block.blocks()) {
      T* x = logits + row * columns;
      const float log_sum = lse[row];
      const auto target = static_cast<int>(kernels::shard_row(targets[row], first, valid));
      const int sloped = targets[row] < 0 ? 0 : valid;  // columns with a gradient
      int from = block.thread() * size;
      for (; packed && is_batch_within(from, step, size, sloped); from += softmax_packs * step)
        replace<true>(x, from, step, sloped, target, log_sum);
      for (; from < columns; from += softmax_packs * step) replace<false>(x, from, step, sloped, target, log_sum);
    }
  }

 private:
  /// A batch of packs, all of whose elements have a gradient where `inside`.
  template <bool inside>
  GALVATRON_KERNEL void replace(T* x, int from, int step, int sloped, int target, float log_sum) const {
    Pack<T> packs[softmax_packs];
    load_batch<inside>(x, from, step, sloped, packed, packs);
    GALVATRON_UNROLL
    for (int p = 0; p < softmax_packs; ++p) {
      const int at = from + p * step;
      if (!inside && at >= columns) return;
      float gradients[size];
      for (int j = 0; j < size; ++j) {
        float slope = 1;
        kernels::softmax_gradient(packs[p].get(j), log_sum, scale, cap, gradients[j], slope);
        if (!inside && at + j >= sloped) gradients[j] = 0.0F;
        if (at + j == target) gradients[j] -= scale * slope;
      }
      store_pack(Pack<T>::of(gradients), x, at, columns, inside || packed);
    }
  }
};

/// Gradients of targets become minus the sums of their rows' others, a block a row.
template <class T>
struct SoftmaxBalance {
  static constexpr int most_threads = softmax_threads;
  std::int64_t rows;
  int columns;
  const std::int32_t* targets;
  T* gradients;

  GALVATRON_KERNEL void operator()(auto& block) const {
    for (std::int64_t row = block.index(); row < rows; row += block.blocks()) {
      T* x = gradients + row * columns;
      const std::int32_t target = targets[row];
      float sum = 0;
      for (int i = block.thread(); i < columns; i += block.threads())
        if (i != target) sum += kernels::get(x[i]);
      sum = block_sum(block, sum);
      if (block.thread() == 0 && target >= 0) kernels::put(x[target], -sum);
    }
  }
};

/// Blocks for rows that their threads read `softmax_packs` packs at a time.
template <class T>
constexpr Geometry softmax_geometry(std::int64_t rows, std::int64_t columns) {
  return over_rows(rows, divide_up(columns, Pack<T>::size * softmax_packs), softmax_threads);
}

template <class T>
void softmax_statistics(auto& launcher, std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                        const T* logits, const std::int32_t* targets, float* stats, float cap = 0) {
  if (rows > 0)
    launcher.launch(softmax_geometry<T>(rows, columns),
                    SoftmaxStatistics<T>{rows, static_cast<int>(columns), static_cast<int>(valid), first,
                                         is_packed<T>(columns, logits), logits, targets, stats, cap});
}

/// Throws DeviceFailure when the sums of blocks exceed the scratch memory.
/// @param tickets  see is_last_block()
void softmax_merge(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, std::int64_t rows,
                   std::int64_t shards, const float* stats, float* lse, double* loss) {
  if (rows == 0) return;
  Geometry geometry = over_items(rows);
  if (loss == nullptr) return launcher.launch(geometry, SoftmaxMerge{rows, shards, stats, lse, nullptr});
  geometry.blocks = partials_within(scratch, sizeof(double), geometry.blocks);
  auto* losses = reinterpret_cast<double*>(scratch.data);
  launcher.launch(
      geometry, WithTotal<SoftmaxMerge>{{rows, shards, stats, lse, losses}, {geometry.blocks, losses, loss}, tickets});
}

template <class T>
void softmax_backward(auto& launcher, std::int64_t rows, std::int64_t columns, std::int64_t valid, std::int64_t first,
                      const float* lse, const std::int32_t* targets, float scale, bool balanced, T* logits,
                      float cap = 0) {
  if (rows == 0 || columns == 0) return;
  launcher.launch(softmax_geometry<T>(rows, columns),
                  SoftmaxBackward<T>{rows, static_cast<int>(columns), static_cast<int>(valid), first,
                                     is_packed<T>(columns, logits), lse, targets, scale, logits, cap});
  if (balanced)
    launcher.launch(softmax_geometry<T>(rows, columns),
                    SoftmaxBalance<T>{rows, static_cast<int>(columns), targets, logits});
}

/// row = factor * e^log.
template <class T>
struct ExponentialRow {
  float factor;
  const T* log;  ///< or null
  T* row;
  GALVATRON_KERNEL void operator()(std::int64_t i) const {
    kernels::put(row[i], factor * (log == nullptr ? 1.0F : kernels::exponential(kernels::get(*log))));
  }
};

/// d_log += the sum of products, by one block.
template <class T>
struct ExponentialRowBackward {
  static constexpr int most_threads = 256;
  std::int64_t n;
  const T* row;
  const float* d_row;
  float* d_log;
  GALVATRON_KERNEL void operator()(auto& block) const {
    double own = 0;
    for (std::int64_t i = block.thread(); i < n; i += block.threads())
      own += static_cast<double>(kernels::get(row[i])) * static_cast<double>(d_row[i]);
    own = block_sum(block, own);
    if (block.thread() == 0) *d_log += static_cast<float>(own);
  }
};

template <class T>
void exponential_row(auto& launcher, std::int64_t n, float factor, const T* log, T* row) {
  for_each(launcher, n, ExponentialRow<T>{factor, log, row});
}
template <class T>
void exponential_row_backward(auto& launcher, std::int64_t n, const T* row, const float* d_row, float* d_log) {
  using Kernel = ExponentialRowBackward<T>;
  launcher.launch({.blocks = 1, .threads = Kernel::most_threads}, Kernel{n, row, d_row, d_log});
}

}  // namespace galvatron::device::cuda
