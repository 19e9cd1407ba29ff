// Memory of a GPU, and memory of the program that the GPU copies from by itself.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include <cuda_runtime_api.h>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/cuda/check.hpp>

namespace galvatron::device::cuda {

/// device::Mapping on the current GPU: memory of a fixed size, zero at first; empty when `counts_only`. Throws
/// DeviceFailure when the GPU refuses it.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(Bytes bytes, bool counts_only = false) : bytes_(bytes.count) {
    if (counts_only || bytes_ == 0) return;
    const auto size = static_cast<std::size_t>(bytes_);
    void* memory = nullptr;
    if (const cudaError_t status = cudaMalloc(&memory, size); status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // a later launch must not report it
      std::size_t free = 0;
      std::size_t total = 0;
      check(cudaMemGetInfo(&free, &total));
      throw DeviceFailure("the GPU refused " + std::to_string(bytes_) + " bytes for a rank's arena (" +
                          std::to_string(free) + " of its " + std::to_string(total) +
                          " bytes are free): use more GPUs, a smaller budget or a smaller model");
    } else {
      check(status);
    }
    base_ = static_cast<std::byte*>(memory);
    check(cudaMemset(base_, 0, size));
    check(cudaDeviceSynchronize());  // streams do not wait for it
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory() {
    if (base_ != nullptr) cudaFree(base_);
  }

  /// The region [first, first + bytes).
  [[nodiscard]] Region region(const char* name, std::int64_t first, Bytes bytes) const {
    return {name, base_ == nullptr ? nullptr : base_ + first, bytes.count};
  }
  [[nodiscard]] Bytes size() const { return {bytes_}; }
  [[nodiscard]] std::byte* data() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Page-locked memory of the program, not initialised. Throws DeviceFailure when the machine refuses it.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(Bytes bytes) : bytes_(bytes.count) {
    if (bytes_ == 0) return;
    void* memory = nullptr;
    if (const cudaError_t status = cudaMallocHost(&memory, static_cast<std::size_t>(bytes_));
        status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw DeviceFailure("this machine refused " + std::to_string(bytes_) +
                          " bytes of page-locked memory for copies to the GPU: raise its limits (ulimit -l)");
    } else {
      check(status);
    }
    base_ = static_cast<std::byte*>(memory);
  }
  PinnedMemory(PinnedMemory&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~PinnedMemory() {
    if (base_ != nullptr) cudaFreeHost(base_);
  }

  [[nodiscard]] Bytes size() const { return {bytes_}; }
  [[nodiscard]] std::byte* data() const { return base_; }

 private:
  std::byte* base_ = nullptr;
  std::int64_t bytes_ = 0;
};

}  // namespace galvatron::device::cuda
