// Ranks that are threads of this process, several on one GPU.
#pragma once

#include <cstddef>
#include <vector>

#include <galvatron/comm/local_gpu/cuda_stream.hpp>
#include <galvatron/comm/local_gpu/world.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/rank/cuda_rank.hpp>

namespace galvatron::train {

/// A rank's world when all ranks are on one GPU.
using OneGpuWorld = comm::local_gpu::World<comm::local_gpu::CudaStream>;

namespace detail {

/// Calls body(world, platform) on a thread for each of `ranks` ranks on GPU `ordinal`; throws what failed first.
template <class Body>
void on_one_gpu(int ranks, int ordinal, const comm::thread::Options& options, const Body& body) {
  device::cuda::use_device(ordinal);
  std::vector<comm::local_gpu::CudaStream::Fence> fences(static_cast<std::size_t>(ranks));
  comm::thread::run(
      ranks,
      [&](comm::thread::World& control) {
        device::cuda::use_device(ordinal);
        device::cuda::Stream compute;
        comm::local_gpu::CudaStream computing(compute);
        OneGpuWorld world(control, fences, computing);
        body(world, CudaPlatform{ordinal, &compute});
      },
      options);
}

}  // namespace detail

}  // namespace galvatron::train
