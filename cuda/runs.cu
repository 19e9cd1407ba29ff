// The kernels of device/cuda/runs.hpp.
#include <galvatron/device/cuda/launch.cuh>
#include <galvatron/device/cuda/runs.hpp>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(A, C)                                            \
  template void Stream::launch(const Geometry&, const MoveRuns<A, C, false>&); \
  template void Stream::launch(const Geometry&, const MoveRuns<A, C, true>&);
GALVATRON_INSTANTIATE(float, float)
GALVATRON_INSTANTIATE(float, bfloat16)
GALVATRON_INSTANTIATE(bfloat16, float)
GALVATRON_INSTANTIATE(bfloat16, bfloat16)

}  // namespace galvatron::device::cuda
