// Element-wise kernels: pack by pack where addresses allow, else element by element. And division by a given number.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include <galvatron/device/cuda/pack.hpp>

namespace galvatron::device::cuda {

/// Divides by `value` >= 1 as a multiplication and a shift (Granlund & Montgomery 1994), on a GPU ten times as fast.
/// With l = ceil(log2 value) and m = ceil(2^(31 + l) / value), floor(n m / 2^(31 + l)) = floor(n / value) for every n
/// below 2^31, and m has 32 bits.
class Divisor {
 public:
  struct Parts {
    std::int64_t quotient, remainder;
  };

  Divisor() = default;
  constexpr explicit Divisor(std::int64_t value) : value_(value) {
    if (value >= limit) return;
    const int bits = std::bit_width(static_cast<std::uint64_t>(value - 1));
    shift_ = 31 + bits;
    multiplier_ = static_cast<std::uint32_t>(((std::uint64_t{1} << shift_) + static_cast<std::uint64_t>(value) - 1) /
                                             static_cast<std::uint64_t>(value));
  }

  /// Of n >= 0.
  [[nodiscard]] GALVATRON_KERNEL Parts operator()(std::int64_t n) const {
    const std::int64_t quotient =
        n < limit && value_ < limit ? static_cast<std::int64_t>(product(n) >> shift_) : n / value_;
    return {quotient, n - quotient * value_};
  }
  [[nodiscard]] constexpr std::int64_t value() const { return value_; }

 private:
  static constexpr std::int64_t limit = std::int64_t{1} << 31;

  [[nodiscard]] GALVATRON_KERNEL std::uint64_t product(std::int64_t n) const {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * multiplier_;
  }

  std::int64_t value_ = 1;
  std::uint32_t multiplier_ = std::uint32_t{1} << 31;
  int shift_ = 31;
};

template <class F>
struct ForEach {
  static constexpr int most_threads = 256;
  std::int64_t count;
  F work;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t i = block.index() * block.threads() + block.thread(); i < count; i += step) work(i);
  }
};

/// @param work  a struct with `GALVATRON_KERNEL void operator()(std::int64_t i) const`
void for_each(auto& launcher, std::int64_t count, const auto& work) {
  if (count > 0) launcher.launch(over_items(count), ForEach{count, work});
}

/// Elements [0, count): the first `packed`, a multiple of the work's width, by the pack, the others one by one.
struct ElementRange {
  std::int64_t count, packed;
};

/// `aligned`: whether packs of `width` may be read and written.
constexpr ElementRange split_elements(std::int64_t count, int width, bool aligned) {
  return {count, aligned ? count / width * width : 0};
}
constexpr std::int64_t steps_of(const ElementRange& all, int width) {
  return all.packed > 0 ? divide_up(all.count, width) : all.count;
}

/// For steps that are alike and independent: blocks for several turns of the GPU, so that it is busy to the end.
constexpr Geometry over_steps(std::int64_t steps, int threads = 256) {
  return {.blocks = std::clamp<std::int64_t>(divide_up(steps, threads), 1, 16 * most_blocks), .threads = threads};
}

/// Calls work.at<size>(i) for elements [i, i + size), size W::width or 1; each element once, by all threads of the
/// grid.
template <class W>
GALVATRON_KERNEL void work_on(auto& block, const ElementRange& all, const W& work) {
  const std::int64_t step = block.blocks() * block.threads();
  const std::int64_t first = block.index() * block.threads() + block.thread();
  for (std::int64_t i = first * W::width; i < all.packed; i += step * W::width) work.template at<W::width>(i);
  for (std::int64_t i = all.packed + first; i < all.count; i += step) work.template at<1>(i);
}

template <class W>
struct ForElements {
  static constexpr int most_threads = 256;
  ElementRange all;
  W work;

  GALVATRON_KERNEL void operator()(auto& block) const { work_on(block, all, work); }
};

/// @tparam W  a struct with `static constexpr int width` and
///            `template <int size> GALVATRON_KERNEL void at(std::int64_t i) const`
template <class W>
void for_elements(auto& launcher, std::int64_t count, bool aligned, const W& work) {
  if (count <= 0) return;
  const ElementRange all = split_elements(count, W::width, aligned);
  launcher.launch(over_steps(steps_of(all, W::width)), ForElements<W>{all, work});
}

/// results (blocks): of each block, what the elements that it goes over come to. A thread asks for four packs before it
/// looks at them.
/// @tparam Own  what a thread has seen: `take(element, j)` with j the element's place in its pack, 0 for single ones,
/// and
///              `join(block)`, which all threads call, to one value of a block; elements that are 0 change nothing
template <class T, class Own, class V>
struct ReduceElements {
  static constexpr int most_threads = 256;
  static constexpr int least_blocks = 4;  ///< with more, registers allow one load in flight only
  static constexpr int width = Pack<T>::size;
  static constexpr int at_once = 4;
  ElementRange all;
  const T* x;
  V* results;

  GALVATRON_KERNEL void operator()(auto& block) const {
    const std::int64_t first = block.index() * block.threads() + block.thread();
    const std::int64_t step = block.blocks() * block.threads();
    Own own;
    for (std::int64_t i = first * width; i < all.packed; i += at_once * step * width) {
      Pack<T> packs[at_once];
      GALVATRON_UNROLL
      for (int p = 0; p < at_once; ++p) {
        const std::int64_t at = i + p * step * width;
        packs[p] = at < all.packed ? Pack<T>::at(x + at) : Pack<T>{};
      }
      for (int p = 0; p < at_once; ++p)
        for (int j = 0; j < width; ++j) own.take(packs[p][j], j);
    }
    for (std::int64_t i = all.packed + first; i < all.count; i += step) own.take(x[i], 0);
    const V result = own.join(block);
    if (block.thread() == 0) results[block.index()] = result;
  }
};

}  // namespace galvatron::device::cuda
