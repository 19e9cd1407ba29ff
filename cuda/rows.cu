// The kernels of device/cuda/norm.hpp and softmax.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/norm.hpp>
#include <galvatron/device/cuda/softmax.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE_NORM(T)                                    \
  template void Stream::launch(const Geometry&, const Norm<T>&);         \
  template void Stream::launch(const Geometry&, const Norm<T, true>&);   \
  template void Stream::launch(const Geometry&, const NormBackward<T>&); \
  template void Stream::launch(const Geometry&, const ColumnSums<T, KeepSums>&);
GALVATRON_INSTANTIATE_NORM(float)
GALVATRON_INSTANTIATE_NORM(bfloat16)
template void Stream::launch(const Geometry&, const ColumnSums<float, AddSums>&);

#define GALVATRON_INSTANTIATE_SOFTMAX(T)                                      \
  template void Stream::launch(const Geometry&, const SoftmaxStatistics<T>&); \
  template void Stream::launch(const Geometry&, const SoftmaxBackward<T>&);
GALVATRON_INSTANTIATE_SOFTMAX(float)
GALVATRON_INSTANTIATE_SOFTMAX(bfloat16)
template void Stream::launch(const Geometry&, const SoftmaxMerge&);

}  // namespace galvatron::device::cuda
