// The kernels of device/cuda/pointwise.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/pointwise.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                                                 \
  template void Stream::launch(const Geometry&, const ForElements<detail::Combine<T, kernels::Sum>>&);           \
  template void Stream::launch(const Geometry&, const ForElements<detail::Combine<T, kernels::Product>>&);       \
  template void Stream::launch(const Geometry&, const ForElements<detail::Accumulate<T>>&);                      \
  template void Stream::launch(const Geometry&, const ForElements<detail::Activate<T, kernels::Gelu>>&);         \
  template void Stream::launch(const Geometry&, const ForElements<detail::Activate<T, kernels::Relu>>&);         \
  template void Stream::launch(const Geometry&, const ForElements<detail::ActivateBackward<T, kernels::Gelu>>&); \
  template void Stream::launch(const Geometry&, const ForElements<detail::ActivateBackward<T, kernels::Relu>>&); \
  template void Stream::launch(const Geometry&, const ForElements<detail::Gate<T>>&);                            \
  template void Stream::launch(const Geometry&, const ForElements<detail::GateBackward<T>>&);                    \
  template void Stream::launch(const Geometry&, const detail::Rotary<T>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)

}  // namespace galvatron::device::cuda
