// The forward kernels of device/cuda/flash_attention.hpp, and of merging results.
#include <galvatron/device/cuda/attention.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

GALVATRON_INSTANTIATE_HEAD_WIDTHS(FlashForward)
template void Stream::launch(const Geometry&, const MergeAttention<float>&);
template void Stream::launch(const Geometry&, const MergeAttention<bfloat16>&);

}  // namespace galvatron::device::cuda
