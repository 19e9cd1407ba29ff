// The kernels of device/cuda/attention_bias.hpp.
#include <galvatron/device/cuda/attention_bias.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

GALVATRON_INSTANTIATE_HEAD_WIDTHS(FlashScoreGradient)
template void Stream::launch(const Geometry&, const ForEach<AddPlanes>&);
template void Stream::launch(const Geometry&, const ForEach<AddPairs>&);
template void Stream::launch(const Geometry&, const ForEach<AddDistances>&);
template void Stream::launch(const Geometry&, const ForEach<AddWindowPairs>&);

template void Stream::launch(const Geometry&, const ForEach<SpreadBiases<float>>&);
template void Stream::launch(const Geometry&, const ForEach<SpreadBiases<bfloat16>>&);
template void Stream::launch(const Geometry&, const GatherBiases&);

}  // namespace galvatron::device::cuda
