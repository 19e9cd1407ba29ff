// The kernels of device/cuda/rounding.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/rounding.hpp>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const detail::GreatestMagnitudes&);
template void Stream::launch(const Geometry&, const detail::RoundElements<float8_e4m3>&);
template void Stream::launch(const Geometry&, const detail::RoundElements<float8_e5m2>&);
template void Stream::launch(const Geometry&, const detail::RoundTransposed<float8_e4m3>&);
template void Stream::launch(const Geometry&, const detail::RoundTransposed<float8_e5m2>&);

}  // namespace galvatron::device::cuda
