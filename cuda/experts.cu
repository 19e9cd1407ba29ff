// The kernels of device/cuda/choices.hpp, experts.hpp and router.hpp.
#include <galvatron/device/cuda/choices.hpp>
#include <galvatron/device/cuda/experts.hpp>
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/router.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(T)                                                                                    \
  template void Stream::launch(const Geometry&, const RouterRows<Route<T>>&);                                       \
  template void Stream::launch(const Geometry&, const RouterRows<RouteBackward<T>>&);                               \
  template void Stream::launch(const Geometry&, const ForRows<GatherRows<T>>&);                                     \
  template void Stream::launch(const Geometry&, const ForRows<CombineRows<T>>&);                                    \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::Gated<kernels::Silu>>&); \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::Gated<kernels::Gelu>>&); \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::Gelu>&);                 \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::QuickGelu>&);            \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::ExactGelu>&);            \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::Relu>&);                 \
  template void Stream::launch(const Geometry&, const ExpertActivationBackward<T, kernels::SquaredRelu>&);          \
  template void Stream::launch(const Geometry&, const ForRows<GateRows<T>>&);                                       \
  template void Stream::launch(const Geometry&, const ForRows<JitterRows<T>>&);                                     \
  template void Stream::launch(const Geometry&, const GateRowsBackward<T>&);                                        \
  template void Stream::launch(const Geometry&, const ForEach<BalanceBias<T>>&);
GALVATRON_INSTANTIATE(float)
GALVATRON_INSTANTIATE(bfloat16)
template void Stream::launch(const Geometry&, const ForRows<GatherRows<std::int32_t>>&);
template void Stream::launch(const Geometry&, const ForRows<ChooseNodes>&);
template void Stream::launch(const Geometry&, const SumRouterLosses&);
template void Stream::launch(const Geometry&, const CountRuns<PutCounts>&);
template void Stream::launch(const Geometry&, const CountRuns<PutOffsets>&);
template void Stream::launch(const Geometry&, const PlaceChoices&);
template void Stream::launch(const Geometry&, const DropChoices&);

}  // namespace galvatron::device::cuda
