// A stream of a GPU as ranks on one GPU use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::comm::local_gpu {

/// Models Stream. Throws DeviceFailure.
class CudaStream {
 public:
  class Fence {
   public:
    void wait() { event_.wait(); }

   private:
    friend class CudaStream;
    device::cuda::Event event_;
  };

  /// @param stream  outlives this
  explicit CudaStream(device::cuda::Stream& stream) : stream_(stream) {}

  template <class Kernel>
  void launch(const device::cuda::Geometry& geometry, const Kernel& kernel) {
    stream_.launch(geometry, kernel);
  }
  void copy(const std::byte* from, std::byte* to, std::int64_t bytes) {
    device::cuda::check(
        cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice, stream_.get()));
  }
  void record(Fence& fence) { fence.event_.record(stream_); }
  void wait_for(const Fence& fence) { fence.event_.hold(stream_); }
  void wait() { stream_.wait(); }

 private:
  device::cuda::Stream& stream_;
};

}  // namespace galvatron::comm::local_gpu
