// The kernels of device/cuda/flash_forward.hpp, and of merging results.
#include <galvatron/device/cuda/attention.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                      \
  template void Stream::launch(const Geometry&, const detail::FlashForward<T, 32>&);  \
  template void Stream::launch(const Geometry&, const detail::FlashForward<T, 64>&);  \
  template void Stream::launch(const Geometry&, const detail::FlashForward<T, 128>&); \
  template void Stream::launch(const Geometry&, const detail::FlashForward<T, 256>&); \
  template void Stream::launch(const Geometry&, const detail::MergeAttention<T>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)

}  // namespace galvatron::device::cuda
