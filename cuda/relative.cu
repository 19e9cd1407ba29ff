// The kernels of device/cuda/relative.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/relative.hpp>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const ForEach<detail::SpreadBiases<float>>&);
template void Stream::launch(const Geometry&, const ForEach<detail::SpreadBiases<bfloat16>>&);
template void Stream::launch(const Geometry&, const detail::GatherBiases&);

}  // namespace galvatron::device::cuda
