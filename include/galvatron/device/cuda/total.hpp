// The last stage of a sum over blocks.
#pragma once

#include <cstdint>

#include <galvatron/device/cuda/block.hpp>

namespace galvatron::device::cuda {

namespace detail {

/// total += the sums (count), by one block and in a fixed order.
struct AddTotal {
  static constexpr int most_threads = 256;
  std::int64_t count;
  const double* sums;
  double* total;

  template <class B>
  GALVATRON_KERNEL void operator()(B& block) const {
    double own = 0;
    for (std::int64_t i = block.thread(); i < count; i += block.threads()) own += sums[i];
    own = block_sum(block, own);
    if (block.thread() == 0) *total += own;
  }
};

}  // namespace detail

/// total (1) += the sums (count) that blocks have left.
template <class L>
void add_total(L& launcher, std::int64_t count, const double* sums, double* total) {
  launcher.launch(Geometry{.blocks = 1, .threads = detail::AddTotal::most_threads},
                  detail::AddTotal{count, sums, total});
}

}  // namespace galvatron::device::cuda
