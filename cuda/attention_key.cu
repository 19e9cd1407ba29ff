// The gradients of keys and values in device/cuda/flash_attention.hpp.
#include <galvatron/device/cuda/flash_attention.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

GALVATRON_INSTANTIATE_HEAD_WIDTHS(FlashKeyGradient)

}  // namespace galvatron::device::cuda
