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

/// Instructions of warp groups, which sm_90a alone has: elsewhere no kernel with them is launched.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GALVATRON_SM90A(...) asm volatile(__VA_ARGS__)
#else
#define GALVATRON_SM90A(...) __trap()
#endif

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
  __device__ __forceinline__ void fence_copies() const {
    GALVATRON_SM90A("fence.proxy.async.shared::cta;\n" :: : "memory");
  }
  template <bool a_along, bool b_along>
  __device__ __forceinline__ void multiply_group(float (&c)[32][4], const bfloat16* a, const bfloat16* b, int k) const {
    multiply_256<!a_along, !b_along>(c, operand<a_along>(a, k), operand<b_along>(b, k));
  }
  __device__ __forceinline__ void begin_products() const {
    GALVATRON_SM90A("wgmma.fence.sync.aligned;\n" :: : "memory");
  }
  __device__ __forceinline__ void commit_products() const {
    GALVATRON_SM90A("wgmma.commit_group.sync.aligned;\n" :: : "memory");
  }
  template <int left>
  __device__ __forceinline__ void await_products() const {
    GALVATRON_SM90A("wgmma.wait_group.sync.aligned %0;\n" ::"n"(left) : "memory");
  }
  __device__ __forceinline__ void commit_copies() const { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
  template <int left>
  __device__ __forceinline__ void await_copies() const {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(left) : "memory");
  }

 private:
  /// The descriptor of an operand in swizzled rows, from element k of the sum on (PTX ISA, "Matrix descriptor"): its
  /// address, the bytes between panels, those between eight rows, and 1 for rows of 128 bytes; lengths in units of 16.
  template <bool along>
  static __device__ __forceinline__ std::uint64_t operand(const bfloat16* at, int k) {
    constexpr std::uint64_t row = 128, panel = 64 * row;
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(at)) +
                         static_cast<std::uint32_t>(k) * (along ? 2U : static_cast<std::uint32_t>(row));
    return std::uint64_t{address & 0x3ffffU} / 16 | (along ? 1 : panel / 16) << 16 | 8 * row / 16 << 32 |
           std::uint64_t{1} << 62;
  }
  template <int a_across, int b_across>
  static __device__ __forceinline__ void multiply_256(float (&c)[32][4], std::uint64_t a, std::uint64_t b) {
#define GALVATRON_4(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define GALVATRON_16(j) GALVATRON_4(j), GALVATRON_4(j + 1), GALVATRON_4(j + 2), GALVATRON_4(j + 3)
    GALVATRON_SM90A(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,"
        "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
        "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"
        "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
        "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, 1, 1, 1, %130, "
        "%131;\n" : GALVATRON_16(0),
        GALVATRON_16(4), GALVATRON_16(8), GALVATRON_16(12), GALVATRON_16(16), GALVATRON_16(20), GALVATRON_16(24),
        GALVATRON_16(28) : "l"(a), "l"(b), "n"(a_across), "n"(b_across));
#undef GALVATRON_16
#undef GALVATRON_4
  }
};
#undef GALVATRON_SM90A

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
