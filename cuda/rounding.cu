// The kernels of device/cuda/rounding.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/rounding.hpp>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const GreatestMagnitudes&);
template void Stream::launch(const Geometry&, const RoundElements<float8_e4m3>&);
template void Stream::launch(const Geometry&, const RoundElements<float8_e5m2>&);
template void Stream::launch(const Geometry&, const RoundTransposed<float8_e4m3>&);
template void Stream::launch(const Geometry&, const RoundTransposed<float8_e5m2>&);

}  // namespace galvatron::device::cuda
