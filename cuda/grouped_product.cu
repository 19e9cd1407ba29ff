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

#define GALVATRON_INSTANTIATE_FOR_WARP_GROUPS(C, kind) \
  template void Stream::launch(const Geometry&, const GroupedProduct<bfloat16, C, op::Kind::kind, WarpGroupUnits>&);
GALVATRON_INSTANTIATE_FOR_WARP_GROUPS(bfloat16, gemm_nt)
GALVATRON_INSTANTIATE_FOR_WARP_GROUPS(bfloat16, gemm_nn)
GALVATRON_INSTANTIATE_FOR_WARP_GROUPS(float, gemm_tn)

bool has_kernels_of_warp_groups() { return GALVATRON_WARP_GROUPS; }

}  // namespace galvatron::device::cuda
