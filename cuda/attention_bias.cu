// The gradients of scores, and of their biases, in device/cuda/flash_bias.hpp; and the biases of
// device/cuda/relative.hpp.
#include <galvatron/device/cuda/flash_bias.hpp>
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/relative.hpp>

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
