// The kernels of device/cuda/embedding.hpp.
#include <galvatron/device/cuda/embedding.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                  \
  template void Stream::launch(const Geometry&, const ForRows<GatherTokens<T>>&); \
  template void Stream::launch(const Geometry&, const SumTokens<T>&);             \
  template void Stream::launch(const Geometry&, const ForRows<AddPosition<T>>&);  \
  template void Stream::launch(const Geometry&, const ForRows<SumPositions<T>>&); \
  template void Stream::launch(const Geometry&, const ForRows<SpreadMean<T>>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const ColumnSums<bfloat16, PutSums<bfloat16>>&);
template void Stream::launch(const Geometry&, const SortTokens&);
template void Stream::launch(const Geometry&, const ForEach<MergeTokens>&);
template void Stream::launch(const Geometry&, const SumContinued&);

}  // namespace galvatron::device::cuda
