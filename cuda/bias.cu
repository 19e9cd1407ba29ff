// The kernels of device/cuda/bias.hpp.
#include <galvatron/device/cuda/bias.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const ForEach<detail::BiasElements<float, float>>&);
template void Stream::launch(const Geometry&, const ForEach<detail::BiasElements<bfloat16, float>>&);
template void Stream::launch(const Geometry&, const ForEach<detail::BiasElements<bfloat16, bfloat16>>&);

}  // namespace galvatron::device::cuda
