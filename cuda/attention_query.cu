// The gradients of queries in device/cuda/flash_attention.hpp.
#include <galvatron/device/cuda/flash_attention.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

GALVATRON_INSTANTIATE_HEAD_WIDTHS(FlashQueryGradient)

}  // namespace galvatron::device::cuda
