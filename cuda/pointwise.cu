// The kernels of device/cuda/pointwise.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/pointwise.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                                                     \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Sum, T, T, T>>&);                     \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Product, T, T, T>>&);                 \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Forward<kernels::Gelu>, T, T, T>>&);  \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Forward<kernels::Relu>, T, T, T>>&);  \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Backward<kernels::Gelu>, T, T, T>>&); \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Backward<kernels::Relu>, T, T, T>>&); \
  template void Stream::launch(const Geometry&, const ForElements<Gate<T, false>>&);                                 \
  template void Stream::launch(const Geometry&, const ForElements<Gate<T, true>>&);                                  \
  template void Stream::launch(const Geometry&, const ForEach<BiasElements<T, T>>&);                                 \
  template void Stream::launch(const Geometry&, const Rotary<T>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Sum, bfloat16, float, float>>&);
template void Stream::launch(const Geometry&, const ForEach<BiasElements<bfloat16, float>>&);

}  // namespace galvatron::device::cuda
