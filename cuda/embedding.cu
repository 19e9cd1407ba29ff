// The kernels of device/cuda/embedding.hpp.
#include <galvatron/device/cuda/embedding.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                           \
  template void Stream::launch(const Geometry&, const ForRows<detail::GatherTokens<T>>&);  \
  template void Stream::launch(const Geometry&, const detail::SumTokens<T>&);              \
  template void Stream::launch(const Geometry&, const ForRows<detail::AddPosition<T>>&);   \
  template void Stream::launch(const Geometry&, const ForRows<detail::SumPositions<T>>&);  \
  template void Stream::launch(const Geometry&, const ColumnSums<T, detail::PutMean<T>>&); \
  template void Stream::launch(const Geometry&, const ForRows<detail::SpreadMean<T>>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const detail::SortTokens&);
template void Stream::launch(const Geometry&, const detail::MergeTokens&);
template void Stream::launch(const Geometry&, const detail::SumContinued&);

}  // namespace galvatron::device::cuda
