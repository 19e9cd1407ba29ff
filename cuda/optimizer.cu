// The kernels of device/cuda/optimizer.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/optimizer.hpp>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const SumSquares&);
template void Stream::launch(const Geometry&, const AddTotal&);
template void Stream::launch(const Geometry&, const ClipScale&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<float, float>>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<float, bfloat16>>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<bfloat16, float>>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<bfloat16, bfloat16>>&);

}  // namespace galvatron::device::cuda
