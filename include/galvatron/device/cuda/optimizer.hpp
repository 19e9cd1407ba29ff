// The end of a training step: the length of the gradient, its scale, and AdamW, none of which the host waits for.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <galvatron/core/error.hpp>
#include <galvatron/core/rng.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/total.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/adamw.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::cuda {

/// How AdamW rounds masters to working parameters of type bfloat16: to the nearest, or up or down at random with the
/// master as the mean. The random bits are those of the parameter's number and of the stream (core/rng.hpp), so that
/// they do not depend on who holds it; every step takes a stream of its own.
struct Rounding {
  bool stochastic = false;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t first = 0;  ///< number of the first parameter
};

namespace detail {

/// sums (blocks): of the squares that a block goes over. A thread reads four packs at once.
struct SumSquares {
  static constexpr int most_threads = 256;
  static constexpr int width = Pack<float>::size;
  static constexpr int packs = 4;
  ElementRange all;
  const float* x;
  double* sums;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const std::int64_t first = block.index() * block.threads() + block.thread();
    const std::int64_t step = block.blocks() * block.threads();
    double own[width] = {};
    std::int64_t i = first * width;
    for (; i + (packs - 1) * step * width < all.packed; i += packs * step * width) {
      float values[packs][width];
      for (int k = 0; k < packs; ++k) get_elements(x + i + k * step * width, values[k]);
      for (int k = 0; k < packs; ++k) add_squares(values[k], own);
    }
    for (; i < all.packed; i += step * width) {
      float values[width];
      get_elements(x + i, values);
      add_squares(values, own);
    }
    for (i = all.packed + first; i < all.count; i += step) {
      const float value[1] = {x[i]};
      add_squares(value, own);
    }
    const double sum = block_sum(block, (own[0] + own[1]) + (own[2] + own[3]));
    if (block.thread() == 0) sums[block.index()] = sum;
  }

 private:
  template <int size>
  GALVATRON_KERNEL static void add_squares(const float (&values)[size], double (&to)[width]) {
    for (int j = 0; j < size; ++j) to[j] += static_cast<double>(values[j]) * static_cast<double>(values[j]);
  }
};

/// By one thread.
struct ClipScale {
  static constexpr int most_threads = warp_threads;
  const double* sums;
  double clip;
  float* scale;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    if (block.thread() == 0) *scale = kernels::clip_scale(sums[loss_sum], sums[gradient_squares], clip);
  }
};

template <class T>
struct StepAdamW {
  static constexpr int width = Pack<float>::size;
  kernels::AdamWStep step;
  const float* scale;
  float* master;
  const float* g;
  float* m;
  float* v;
  T* working;  ///< null when the masters are
  Rounding rounding;

  template <int size>
  GALVATRON_KERNEL void at(std::int64_t i) const {
    float masters[size];
    float gradients[size];
    float means[size];
    float variances[size];
    get_elements(master + i, masters);
    get_elements(g + i, gradients);
    get_elements(m + i, means);
    get_elements(v + i, variances);
    const float by = *scale;
    if (!std::isfinite(by)) return;
    for (int j = 0; j < size; ++j) step(masters[j], gradients[j] * by, means[j], variances[j]);
    put_elements(master + i, masters);
    put_elements(m + i, means);
    put_elements(v + i, variances);
    if (working == nullptr) return;
    if constexpr (std::is_same_v<T, bfloat16>)
      if (rounding.stochastic) return put_rounded(working + i, masters, rounding.first + static_cast<std::uint64_t>(i));
    put_elements(working + i, masters);
  }

 private:
  /// `number`: of the first of the parameters; a multiple of 4 for packs.
  template <int size>
  GALVATRON_KERNEL void put_rounded(T* to, const float (&values)[size], std::uint64_t number) const {
    const std::array<std::uint32_t, 4> words = random_block(rounding.seed, rounding.stream, number / 4);
    Access<T, size> rounded;
    if constexpr (size == 4) {
      for (int j = 0; j < size; ++j) kernels::put_stochastically(rounded.values[j], values[j], words[j]);
    } else {
      const std::uint32_t even = number % 4 < 2 ? words[0] : words[2];
      const std::uint32_t odd = number % 4 < 2 ? words[1] : words[3];
      kernels::put_stochastically(rounded.values[0], values[0], number % 2 == 0 ? even : odd);
    }
    *reinterpret_cast<Access<T, size>*>(to) = rounded;
  }
};

}  // namespace detail

/// sum (1) += the sum of squares, in double: a sum for every block in `scratch`, and then theirs.
template <class L>
void norm_squared(L& launcher, View<std::byte> scratch, std::int64_t n, const float* x, double* sum) {
  if (n <= 0) return;
  const ElementRange all = split_elements(n, detail::SumSquares::width, are_aligned<detail::SumSquares::width>(x));
  Geometry geometry = over_items(divide_up(steps_of(all, detail::SumSquares::width), detail::SumSquares::packs));
  const std::int64_t at_once = most_blocks / 2;  // what its registers let run
  geometry.blocks = std::min({geometry.blocks, at_once, scratch.count / static_cast<std::int64_t>(sizeof(double))});
  if (geometry.blocks == 0)
    throw DeviceFailure("a sum of squares needs 8 bytes of scratch memory at least, not " +
                        std::to_string(scratch.count));
  auto* sums = reinterpret_cast<double*>(scratch.data);
  launcher.launch(geometry, detail::SumSquares{all, x, sums});
  add_total(launcher, geometry.blocks, sums, sum);
}

/// scale (1) from the sums of a step; see kernels::clip_scale.
template <class L>
void clip_scale(L& launcher, const double* sums, double clip, float* scale) {
  launcher.launch(Geometry{.blocks = 1, .threads = warp_threads}, detail::ClipScale{sums, clip, scale});
}

/// One step of n parameters with gradient g * scale[0]; `working` receives the rounded masters and may be `master`.
/// Nothing changes when the scale is not finite.
template <class L, class T>
void adamw(L& launcher, std::int64_t n, const AdamW& adam, const float* scale, float* master, const float* g, float* m,
           float* v, T* working, const Rounding& rounding = {}) {
  using Step = detail::StepAdamW<T>;
  const bool same = static_cast<const void*>(working) == static_cast<const void*>(master);
  const bool aligned = are_aligned<Step::width>(master, g, m, v) && (same || are_aligned<Step::width>(working));
  for_elements(launcher, n, aligned && (!rounding.stochastic || rounding.first % 4 == 0),
               Step{kernels::AdamWStep(adam), scale, master, g, m, v, same ? nullptr : working, rounding});
}

}  // namespace galvatron::device::cuda
