// A kernel for element-wise work: pack by pack where addresses allow, else element by element.
#pragma once

#include <algorithm>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/pack.hpp>

namespace galvatron::device::cuda {

/// Calls work(i) for i in [0, count), each once.
template <class F>
struct ForEach {
  static constexpr int most_threads = 256;
  std::int64_t count;
  F work;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t i = block.index() * block.threads() + block.thread(); i < count; i += step) work(i);
  }
};

/// @tparam F  a struct with `GALVATRON_KERNEL void operator()(std::int64_t i) const`
template <class L, class F>
void for_each(L& launcher, std::int64_t count, const F& work) {
  if (count > 0) launcher.launch(over_items(count), ForEach<F>{count, work});
}

/// Elements [0, count): the first `packed`, a multiple of the work's width, by the pack, the others one by one.
struct ElementRange {
  std::int64_t count;
  std::int64_t packed;
};

/// `aligned`: whether packs of `width` may be read and written.
constexpr ElementRange split_elements(std::int64_t count, int width, bool aligned) {
  return {count, aligned ? count / width * width : 0};
}
constexpr std::int64_t steps_of(const ElementRange& all, int width) {
  return all.packed > 0 ? divide_up(all.count, width) : all.count;
}

/// For steps that are alike and leave nothing behind for others: blocks for several turns of the GPU, so that it is
/// busy to the end however many of them fit at once.
constexpr Geometry over_steps(std::int64_t steps, int threads = 256) {
  return {.blocks = std::clamp<std::int64_t>(divide_up(steps, threads), 1, 16 * most_blocks), .threads = threads};
}

/// Calls work.at<size>(i) for elements [i, i + size), with the sizes W::width and 1; each element once, by all threads
/// of the grid.
template <class B, class W>
GALVATRON_KERNEL void work_on(B& block, const ElementRange& all, const W& work) {
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

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    work_on(block, all, work);
  }
};

/// @tparam W  a struct with `static constexpr int width` and
///            `template <int size> GALVATRON_KERNEL void at(std::int64_t i) const`
template <class L, class W>
void for_elements(L& launcher, std::int64_t count, bool aligned, const W& work) {
  if (count <= 0) return;
  const ElementRange all = split_elements(count, W::width, aligned);
  launcher.launch(over_steps(steps_of(all, W::width)), ForElements<W>{all, work});
}

}  // namespace galvatron::device::cuda
