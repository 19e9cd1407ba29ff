// The kernels of device/cuda/norm.hpp and softmax.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/norm.hpp>
#include <galvatron/device/cuda/softmax.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                       \
  template void Stream::launch(const Geometry&, const Norm<T>&);                       \
  template void Stream::launch(const Geometry&, const Norm<T, true>&);                 \
  template void Stream::launch(const Geometry&, const NormBackward<T>&);               \
  template void Stream::launch(const Geometry&, const ColumnSums<T, PutSums<float>>&); \
  template void Stream::launch(const Geometry&, const SoftmaxStatistics<T>&);          \
  template void Stream::launch(const Geometry&, const SoftmaxBackward<T>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const ColumnSums<float, AddSums>&);
template void Stream::launch(const Geometry&, const SoftmaxMerge&);

}  // namespace galvatron::device::cuda
