// The gradients of scores, and of their biases, in device/cuda/flash_bias.hpp.
#include <galvatron/device/cuda/flash_bias.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                            \
  template void Stream::launch(const Geometry&, const detail::FlashScoreGradient<T, 32>&);  \
  template void Stream::launch(const Geometry&, const detail::FlashScoreGradient<T, 64>&);  \
  template void Stream::launch(const Geometry&, const detail::FlashScoreGradient<T, 128>&); \
  template void Stream::launch(const Geometry&, const detail::FlashScoreGradient<T, 256>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const ForEach<detail::AddPlanes>&);
template void Stream::launch(const Geometry&, const ForEach<detail::AddPairs>&);
template void Stream::launch(const Geometry&, const ForEach<detail::AddDistances>&);
template void Stream::launch(const Geometry&, const ForEach<detail::AddWindowPairs>&);

}  // namespace galvatron::device::cuda
