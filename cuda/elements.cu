// The kernels of device/cuda/optimizer.hpp, pointwise.hpp and rounding.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/optimizer.hpp>
#include <galvatron/device/cuda/pointwise.hpp>
#include <galvatron/device/cuda/rounding.hpp>

namespace galvatron::device::cuda {

template void Stream::launch(const Geometry&, const WithTotal<SumSquares>&);
template void Stream::launch(const Geometry&, const ForEach<ClipScale>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<float, float>>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<float, bfloat16>>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<bfloat16, float>>&);
template void Stream::launch(const Geometry&, const ForElements<StepAdamW<bfloat16, bfloat16>>&);

template void Stream::launch(const Geometry&, const GreatestMagnitudes&);
template void Stream::launch(const Geometry&, const RoundElements<float8_e4m3>&);
template void Stream::launch(const Geometry&, const RoundElements<float8_e5m2>&);
template void Stream::launch(const Geometry&, const RoundTransposed<float8_e4m3>&);
template void Stream::launch(const Geometry&, const RoundTransposed<float8_e5m2>&);

#define GALVATRON_INSTANTIATE_RUNS(A, C)                                                \
  template void Stream::launch(const Geometry&, const ForEach<MoveRuns<A, C, false>>&); \
  template void Stream::launch(const Geometry&, const ForEach<MoveRuns<A, C, true>>&);
GALVATRON_INSTANTIATE_RUNS(float, float)
GALVATRON_INSTANTIATE_RUNS(float, bfloat16)
GALVATRON_INSTANTIATE_RUNS(bfloat16, float)
GALVATRON_INSTANTIATE_RUNS(bfloat16, bfloat16)

#define GALVATRON_INSTANTIATE_POINTWISE(T)                                                                           \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Sum, T, T, T>>&);                     \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Product, T, T, T>>&);                 \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Gelu, T, T, T>>&);                    \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::QuickGelu, T, T, T>>&);               \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::ExactGelu, T, T, T>>&);               \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Relu, T, T, T>>&);                    \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::SquaredRelu, T, T, T>>&);             \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Backward<kernels::Gelu>, T, T, T>>&); \
  template void Stream::launch(const Geometry&,                                                                      \
                               const ForElements<Map<kernels::Backward<kernels::QuickGelu>, T, T, T>>&);             \
  template void Stream::launch(const Geometry&,                                                                      \
                               const ForElements<Map<kernels::Backward<kernels::ExactGelu>, T, T, T>>&);             \
  template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Backward<kernels::Relu>, T, T, T>>&); \
  template void Stream::launch(const Geometry&,                                                                      \
                               const ForElements<Map<kernels::Backward<kernels::SquaredRelu>, T, T, T>>&);           \
  template void Stream::launch(const Geometry&, const ForElements<Gate<T, kernels::Gated<kernels::Silu>, false>>&);  \
  template void Stream::launch(const Geometry&, const ForElements<Gate<T, kernels::Gated<kernels::Silu>, true>>&);   \
  template void Stream::launch(const Geometry&, const ForElements<Gate<T, kernels::Gated<kernels::Gelu>, false>>&);  \
  template void Stream::launch(const Geometry&, const ForElements<Gate<T, kernels::Gated<kernels::Gelu>, true>>&);   \
  template void Stream::launch(const Geometry&, const Rotary<T>&);
GALVATRON_INSTANTIATE_POINTWISE(float)
GALVATRON_INSTANTIATE_POINTWISE(bfloat16)
template void Stream::launch(const Geometry&, const ForElements<Map<kernels::Sum, bfloat16, float, float>>&);

}  // namespace galvatron::device::cuda
