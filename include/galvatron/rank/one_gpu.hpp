// Ranks that are threads of this process, several on one GPU.
#pragma once

#include <galvatron/comm/local_gpu/local_gpu.hpp>
#include <galvatron/comm/thread/thread.hpp>
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
  comm::local_gpu::Shared<comm::local_gpu::CudaStream> shared;
  comm::thread::run(
      ranks,
      [&](comm::thread::World& control) {
        device::cuda::use_device(ordinal);
        device::cuda::Stream compute;
        device::cuda::Stream messages;
        comm::local_gpu::CudaStream computing(compute);
        comm::local_gpu::CudaStream sending(messages);
        OneGpuWorld world(control, shared, computing, sending);
        body(world, CudaPlatform{ordinal, &compute});
      },
      options);
}

}  // namespace detail

}  // namespace galvatron::train
