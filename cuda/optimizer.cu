// The kernels of device/cuda/optimizer.hpp and total.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/optimizer.hpp>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const detail::SumSquares&);
template void Stream::launch(const Geometry&, const detail::AddTotal&);
template void Stream::launch(const Geometry&, const detail::ClipScale&);
template void Stream::launch(const Geometry&, const ForElements<detail::StepAdamW<float, float>>&);
template void Stream::launch(const Geometry&, const ForElements<detail::StepAdamW<float, bfloat16>>&);
template void Stream::launch(const Geometry&, const ForElements<detail::StepAdamW<bfloat16, float>>&);
template void Stream::launch(const Geometry&, const ForElements<detail::StepAdamW<bfloat16, bfloat16>>&);

}  // namespace galvatron::device::cuda
