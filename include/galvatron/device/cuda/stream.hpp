// A CUDA stream, in which kernels and copies follow each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/check.hpp>
#include <galvatron/device/cuda/geometry.hpp>

namespace galvatron::device::cuda {

/// Owns a non-blocking stream of the device that was current when it was made. Throws DeviceFailure.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }

  [[nodiscard]] cudaStream_t get() const { return stream_; }
  /// Returns when all that was launched is done.
  void wait() { check(cudaStreamSynchronize(stream_)); }

  /// Runs a kernel (block.hpp). Defined in launch.cuh; cuda/*.cu instantiate it for every kernel of the library.
  template <class Kernel>
  void launch(const Geometry& geometry, const Kernel& kernel);

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace galvatron::device::cuda
