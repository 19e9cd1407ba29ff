// The kernels of comm/local_gpu/kernels.hpp.
#include <galvatron/comm/local_gpu/kernels.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

namespace local_gpu = comm::local_gpu::detail;

#define GALVATRON_INSTANTIATE_REDUCE(T)                                                               \
  template void Stream::launch(const Geometry&, const ForEach<local_gpu::Reduce<T, Pack<T>::size>>&); \
  template void Stream::launch(const Geometry&, const ForEach<local_gpu::Reduce<T, 1>>&);
GALVATRON_INSTANTIATE_REDUCE(float)
GALVATRON_INSTANTIATE_REDUCE(bfloat16)
GALVATRON_INSTANTIATE_REDUCE(double)
GALVATRON_INSTANTIATE_REDUCE(std::int32_t)

template void Stream::launch(const Geometry&, const ForEach<local_gpu::CopyUnits<16>>&);
template void Stream::launch(const Geometry&, const ForEach<local_gpu::CopyUnits<4>>&);
template void Stream::launch(const Geometry&, const ForEach<local_gpu::CopyUnits<2>>&);
template void Stream::launch(const Geometry&, const ForEach<local_gpu::CopyUnits<1>>&);

}  // namespace galvatron::device::cuda
