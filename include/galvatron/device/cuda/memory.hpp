// Memory of a GPU, and memory of the program that the GPU copies from by itself.
#pragma once

#include <cstddef>
#include <string>

#include <cuda_runtime_api.h>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/cuda/check.hpp>
#include <galvatron/device/owner.hpp>

namespace galvatron::device::cuda {

/// Memory of a fixed size that CUDA's function `release` gives back.
template <auto release>
class FixedMemory {
 public:
  FixedMemory() = default;
  [[nodiscard]] Bytes size() const { return bytes_; }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(memory_.get()); }

 protected:
  explicit FixedMemory(Bytes bytes) : bytes_(bytes) {}
  /// Asks allocate(address, bytes) of CUDA for it; false when that refuses.
  [[nodiscard]] bool take(const auto& allocate) {
    const cudaError_t status = allocate(memory_.out(), static_cast<std::size_t>(bytes_.count));
    if (status != cudaErrorMemoryAllocation) return check(status), true;
    cudaGetLastError();  // a later launch must not report it
    return false;
  }

 private:
  Owner<void*, release> memory_;
  Bytes bytes_{};
};

/// device::Mapping on the current GPU: memory of a fixed size, zero at first; empty when `counts_only`. Throws
/// DeviceFailure when the GPU refuses it.
class DeviceMemory : public FixedMemory<cudaFree> {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(Bytes bytes, bool counts_only = false) : FixedMemory(bytes) {
    if (counts_only || bytes.count == 0) return;
    if (!take([](void** to, std::size_t size) { return cudaMalloc(to, size); })) {
      std::size_t free = 0;
      std::size_t total = 0;
      check(cudaMemGetInfo(&free, &total));
      throw DeviceFailure("the GPU refused " + std::to_string(bytes.count) + " bytes for a rank's arena (" +
                          std::to_string(free) + " of its " + std::to_string(total) +
                          " bytes are free): use more GPUs, a smaller budget or a smaller model");
    }
    check(cudaMemset(data(), 0, static_cast<std::size_t>(bytes.count)));
    check(cudaDeviceSynchronize());  // streams do not wait for it
  }

  /// The region [first, first + bytes).
  [[nodiscard]] Region region(const char* name, std::int64_t first, Bytes bytes) const {
    return {name, data() == nullptr ? nullptr : data() + first, bytes.count};
  }
};

/// Page-locked memory of the program, not initialised. Throws DeviceFailure when the machine refuses it.
class PinnedMemory : public FixedMemory<cudaFreeHost> {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(Bytes bytes) : FixedMemory(bytes) {
    if (bytes.count > 0 && !take([](void** to, std::size_t size) { return cudaMallocHost(to, size); }))
      throw DeviceFailure("this machine refused " + std::to_string(bytes.count) +
                          " bytes of page-locked memory for copies to the GPU: raise its limits (ulimit -l)");
  }
};

}  // namespace galvatron::device::cuda
