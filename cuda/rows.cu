// The kernels of device/cuda/embedding.hpp, norm.hpp and softmax.hpp.
#include <galvatron/device/cuda/embedding.hpp>
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/norm.hpp>
#include <galvatron/device/cuda/softmax.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                    \
  template void Stream::launch(const Geometry&, const Norm<T, false, 4>&);          \
  template void Stream::launch(const Geometry&, const Norm<T, false, 8>&);          \
  template void Stream::launch(const Geometry&, const Norm<T, true, 4>&);           \
  template void Stream::launch(const Geometry&, const Norm<T, true, 8>&);           \
  template void Stream::launch(const Geometry&, const NormBackward<T>&);            \
  template void Stream::launch(const Geometry&, const BiasSums<T>&);                \
  template void Stream::launch(const Geometry&, const ColumnSums<T, PutSums<T>>&);  \
  template void Stream::launch(const Geometry&, const SoftmaxStatistics<T>&);       \
  template void Stream::launch(const Geometry&, const SoftmaxBackward<T>&);         \
  template void Stream::launch(const Geometry&, const SoftmaxBalance<T>&);          \
  template void Stream::launch(const Geometry&, const ForEach<ExponentialRow<T>>&); \
  template void Stream::launch(const Geometry&, const ExponentialRowBackward<T>&);  \
  template void Stream::launch(const Geometry&, const ForRows<GatherTokens<T>>&);   \
  template void Stream::launch(const Geometry&, const SumTokens<T>&);               \
  template void Stream::launch(const Geometry&, const ForRows<AddPosition<T>>&);    \
  template void Stream::launch(const Geometry&, const ForRows<SumPositions<T>>&);   \
  template void Stream::launch(const Geometry&, const ForRows<SpreadMean<T>>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const ColumnSums<float, AddSums>&);
template void Stream::launch(const Geometry&, const SoftmaxMerge&);
template void Stream::launch(const Geometry&, const WithTotal<SoftmaxMerge>&);
template void Stream::launch(const Geometry&, const SortTokens&);
template void Stream::launch(const Geometry&, const MergeTokens&);
template void Stream::launch(const Geometry&, const SumContinued&);

}  // namespace galvatron::device::cuda
