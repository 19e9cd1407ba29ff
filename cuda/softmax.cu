// The kernels of device/cuda/softmax.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/softmax.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                              \
  template void Stream::launch(const Geometry&, const SoftmaxStatistics<T>&); \
  template void Stream::launch(const Geometry&, const SoftmaxBackward<T>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const SoftmaxMerge&);

}  // namespace galvatron::device::cuda
