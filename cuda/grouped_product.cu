// The kernels of device/cuda/grouped_product.hpp.
#include <galvatron/device/cuda/grouped_product.hpp>
#include <galvatron/device/cuda/launch.cuh>

namespace galvatron::device::cuda {

#define GALVATRON_INSTANTIATE(A, C)                                                              \
  template void Stream::launch(const Geometry&, const GroupedProduct<A, C, op::Kind::gemm_nt>&); \
  template void Stream::launch(const Geometry&, const GroupedProduct<A, C, op::Kind::gemm_nn>&); \
  template void Stream::launch(const Geometry&, const GroupedProduct<A, C, op::Kind::gemm_tn>&);
GALVATRON_INSTANTIATE(float, float)
GALVATRON_INSTANTIATE(bfloat16, bfloat16)
GALVATRON_INSTANTIATE(bfloat16, float)

}  // namespace galvatron::device::cuda
