// How kernels run on a GPU; for CUDA compilers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <galvatron/device/cuda/stream.hpp>

/// Compiles a kernel of flash attention for both types and all widths of heads.
#define GALVATRON_INSTANTIATE_HEAD_WIDTHS(Kernel)                              \
  template void Stream::launch(const Geometry&, const Kernel<float, 32>&);     \
  template void Stream::launch(const Geometry&, const Kernel<float, 64>&);     \
  template void Stream::launch(const Geometry&, const Kernel<float, 128>&);    \
  template void Stream::launch(const Geometry&, const Kernel<float, 256>&);    \
  template void Stream::launch(const Geometry&, const Kernel<bfloat16, 32>&);  \
  template void Stream::launch(const Geometry&, const Kernel<bfloat16, 64>&);  \
  template void Stream::launch(const Geometry&, const Kernel<bfloat16, 128>&); \
  template void Stream::launch(const Geometry&, const Kernel<bfloat16, 256>&);

namespace galvatron::device::cuda {

extern __shared__ uint4 shared_memory[];  // 16-byte aligned

/// Models Block.
class CudaBlock {
 public:
  __device__ __forceinline__ std::int64_t index() const { return blockIdx.x; }
  __device__ __forceinline__ std::int64_t blocks() const { return gridDim.x; }
  __device__ __forceinline__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ __forceinline__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ __forceinline__ std::byte* shared() const { return reinterpret_cast<std::byte*>(shared_memory); }
  template <class V>
  __device__ __forceinline__ V* slots() const {
    __shared__ double values[warp_threads];
    return reinterpret_cast<V*>(values);
  }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ void sync_warp() const { __syncwarp(); }
  template <class V>
  __device__ __forceinline__ V shuffle_xor(V value, int mask) const {
    return __shfl_xor_sync(0xffffffffU, value, mask);
  }
  template <class V>
  __device__ __forceinline__ V shuffle(V value, int lane) const {
    return __shfl_sync(0xffffffffU, value, lane);
  }
  __device__ __forceinline__ bool is_last(std::uint32_t* ticket, int of) const {
    const auto last = static_cast<unsigned>(of - 1);  // becomes 0
    unsigned before = 0;
    asm volatile("atom.acq_rel.gpu.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(ticket), "r"(last) : "memory");
    return before == last;
  }
  __device__ __forceinline__ std::int32_t claim(std::int32_t* number, std::int32_t value) const {
    return atomicCAS(number, 0, value);
  }
  __device__ __forceinline__ std::int32_t raise(std::int32_t* number, std::int32_t value) const {
    return atomicMax(number, value);
  }
  __device__ __forceinline__ std::uint64_t nanoseconds() const {
    unsigned long long out = 0;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(out)::"memory");
    return out;
  }
  __device__ __forceinline__ void multiply(float (&c)[4], const std::uint32_t (&a)[4],
                                           const std::uint32_t (&b)[2]) const {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  __device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], const bfloat16* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  __device__ __forceinline__ void load_transposed(std::uint32_t (&to)[4], const bfloat16* row) const {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  __device__ __forceinline__ void copy_async(void* to, const void* from, int bytes) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(
                     static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void commit_copies() const { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
  template <int left>
  __device__ __forceinline__ void await_copies() const {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(left) : "memory");
  }
};

template <class Kernel>
inline constexpr int least_blocks = 0;
template <class Kernel>
  requires requires { Kernel::least_blocks; }
inline constexpr int least_blocks<Kernel> = Kernel::least_blocks;

/// Kernel::most_threads is the largest block that it is launched with; Kernel::least_blocks, if it has that, are blocks
/// that a multiprocessor must have room for at once: 1 gives threads the registers that they ask for.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::most_threads, least_blocks<Kernel>)
    run(const __grid_constant__ Kernel kernel) {
  CudaBlock block;
  kernel(block);
}

template <class Kernel>
void Stream::launch(const Geometry& geometry, const Kernel& kernel) {
  constexpr std::int64_t without_asking = (48 << 10) - warp_threads * sizeof(double);  // bytes, beside slots()
  if (geometry.shared_bytes > without_asking)
    check(cudaFuncSetAttribute(run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(geometry.shared_bytes)));
  run<Kernel><<<static_cast<unsigned>(geometry.blocks), static_cast<unsigned>(geometry.threads),
                static_cast<std::size_t>(geometry.shared_bytes), stream_.get()>>>(kernel);
  check(cudaGetLastError());
}

}  // namespace galvatron::device::cuda
