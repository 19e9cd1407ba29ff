// The end of a training step: the length of the gradient, its scale, and AdamW, none of which the host waits for.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include <galvatron/device/cuda/elements.hpp>
#include <galvatron/device/cuda/rows.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/kernels/adamw.hpp>

namespace galvatron::device::cuda {

/// The sum of squares, in double.
struct Squares {
  double sums[Pack<float>::size] = {};
  GALVATRON_KERNEL void take(float x, int j) { sums[j] += static_cast<double>(x) * static_cast<double>(x); }
  GALVATRON_KERNEL double join(auto& block) const {
    return block_sum(block, (sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
};
using SumSquares = ReduceElements<float, Squares, double>;

/// The only element is the scale.
struct ClipScale {
  const double* sums;
  double clip;
  float* scale;
  GALVATRON_KERNEL void operator()(std::int64_t) const {
    *scale = kernels::clip_scale(sums[loss_sum], sums[gradient_squares], clip);
  }
};

/// The words of `size` places of a stream, 1 or 4, of which the first is a multiple of 4.
template <int size>
GALVATRON_KERNEL void get_words(const kernels::RandomStream& stream, std::uint64_t place, std::uint32_t (&to)[size]) {
  static_assert(size == 1 || size == 4);
  const std::array<std::uint32_t, 4> words = random_block(stream.seed, stream.stream, place / 4);
  if constexpr (size == 4) {
    for (int j = 0; j < size; ++j) to[j] = words[static_cast<unsigned>(j)];
  } else {  // no index that is not known: it would put the words into memory
    const std::uint32_t even = place % 4 < 2 ? words[0] : words[2];
    const std::uint32_t odd = place % 4 < 2 ? words[1] : words[3];
    to[0] = place % 2 == 0 ? even : odd;
  }
}

/// The elements from `to` on = values, each rounded at random by its word of `bits` from bit `low` on.
template <int size, class T>
GALVATRON_KERNEL void put_elements_stochastically(T* to, const float (&values)[size], const std::uint32_t (&bits)[size],
                                                  int low) {
  Pack<T, size> rounded{};
  for (int j = 0; j < size; ++j) {
    T element;
    kernels::put_stochastically(element, values[j], bits[j] >> low);
    rounded.set(j, element);
  }
  rounded.store(to);
}

/// @tparam T  of working parameters  @tparam M  of the moments as they are kept
template <class T, class M>
struct StepAdamW {
  static constexpr int width = Pack<float>::size;
  const kernels::AdamWStep* constants;
  AdamWPart part;
  const float* scale;
  float* master;
  const float* g;
  M* m;
  M* v;
  T* working;  ///< null when the masters are

  template <int size>
  GALVATRON_KERNEL void at(std::int64_t i) const {
    const kernels::AdamWStep step = constants->of(part);
    float masters[size], gradients[size], means[size], variances[size];
    get_elements(master + i, masters);
    get_elements(g + i, gradients);
    get_elements(m + i, means);
    get_elements(v + i, variances);
    const float by = *scale;
    if (!std::isfinite(by)) return;
    for (int j = 0; j < size; ++j) step(masters[j], gradients[j] * by, means[j], variances[j]);
    put_elements(master + i, masters);
    const std::uint64_t place = part.first + static_cast<std::uint64_t>(i);
    if constexpr (std::is_same_v<M, float>) {
      put_elements(m + i, means);
      put_elements(v + i, variances);
    } else {
      std::uint32_t bits[size];
      get_words(step.moment_bits(part), place, bits);
      put_elements_stochastically(m + i, means, bits, 0);
      put_elements_stochastically(v + i, variances, bits, 16);
    }
    if (working == nullptr) return;
    if (std::is_same_v<T, float> || step.rounding == Rounding::nearest) return put_elements(working + i, masters);
    if constexpr (!std::is_same_v<T, float>) {
      std::uint32_t bits[size];
      get_words(step.master_bits(part), place, bits);
      put_elements_stochastically(working + i, masters, bits, 0);
    }
  }
};

/// A sum for every block in `scratch`, and then theirs.
/// @param tickets  see is_last_block()
void norm_squared(auto& launcher, View<std::byte> scratch, std::uint32_t* tickets, std::int64_t n, const float* x,
                  double* sum) {
  if (n <= 0) return;
  const ElementRange all = split_elements(n, SumSquares::width, are_aligned<SumSquares::width>(x));
  Geometry geometry = over_items(divide_up(steps_of(all, SumSquares::width), SumSquares::at_once));
  const std::int64_t at_once = most_blocks / 2;  // what its registers let run
  geometry.blocks = std::min({geometry.blocks, at_once, scratch.count / static_cast<std::int64_t>(sizeof(double))});
  if (geometry.blocks == 0)
    throw DeviceFailure("a sum of squares needs 8 bytes of scratch memory at least, not " +
                        std::to_string(scratch.count));
  auto* sums = reinterpret_cast<double*>(scratch.data);
  launcher.launch(geometry, WithTotal<SumSquares>{{all, x, sums}, {geometry.blocks, sums, sum}, tickets});
}

void clip_scale(auto& launcher, const double* sums, double clip, float* scale) {
  for_each(launcher, 1, ClipScale{sums, clip, scale});
}

/// @param constants  memory of the device, so that a step that is done again may have others
template <class M, class T>
void adamw(auto& launcher, std::int64_t n, const kernels::AdamWStep* constants, const AdamWPart& part,
           const float* scale, float* master, const float* g, M* m, M* v, T* working) {
  using Step = StepAdamW<T, M>;
  const bool same = static_cast<const void*>(working) == static_cast<const void*>(master);
  const bool aligned = are_aligned<Step::width>(master, g, m, v) && (same || are_aligned<Step::width>(working));
  for_elements(launcher, n, aligned && part.first % Step::width == 0,
               Step{constants, part, scale, master, g, m, v, same ? nullptr : working});
}

}  // namespace galvatron::device::cuda
