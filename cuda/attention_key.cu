// The gradients of keys and values in device/cuda/flash_backward.hpp.
#include <galvatron/device/cuda/flash_backward.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                          \
  template void Stream::launch(const Geometry&, const detail::FlashKeyGradient<T, 32>&);  \
  template void Stream::launch(const Geometry&, const detail::FlashKeyGradient<T, 64>&);  \
  template void Stream::launch(const Geometry&, const detail::FlashKeyGradient<T, 128>&); \
  template void Stream::launch(const Geometry&, const detail::FlashKeyGradient<T, 256>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)

}  // namespace galvatron::device::cuda
