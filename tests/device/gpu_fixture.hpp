// What the tests of a GPU share: the way out where there is none, a machine with its workspace, tensors, a comparison.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/machine.hpp>

namespace galvatron::test {

/// Ends the program as skipped on a machine without a GPU.
inline int first_gpu() {
  device::cuda::prepare_process();
  if (const Result<int> count = device::cuda::device_count(); !count) {
    std::printf("skipped: %s\n", count.error().message.c_str());
    std::fflush(stdout);
    std::exit(77);
  }
  return device::cuda::use_device(0);
}

/// How many GPUs there are; ends the program as skipped where there are fewer than two.
inline int several_gpus() {
  device::cuda::prepare_process();
  const Result<int> count = device::cuda::device_count();
  if (!count || *count < 2) {
    std::printf("skipped: fewer than 2 CUDA devices\n");
    std::fflush(stdout);
    std::exit(77);
  }
  return *count;
}

/// A machine on the first GPU that owns its workspace.
class TestMachine {
 public:
  explicit TestMachine(bool deterministic = true)
      : ordinal_(first_gpu()),
        memory_({device::cuda::Machine::library_workspace_bytes()}),
        machine_(ordinal_, stream_, {memory_.data(), memory_.size().count}, deterministic) {}
  device::cuda::Machine* operator->() { return &machine_; }
  device::cuda::Machine& operator*() { return machine_; }

 private:
  int ordinal_;
  device::cuda::DeviceMemory memory_;
  device::cuda::Stream stream_;
  device::cuda::Machine machine_;
};

/// A tensor on the GPU.
template <class T>
class GpuTensor {
 public:
  explicit GpuTensor(const std::vector<T>& values, std::int64_t skipped = 0)
      : count_(static_cast<std::int64_t>(values.size())),
        skipped_(skipped),
        memory_({(count_ + skipped) * static_cast<std::int64_t>(sizeof(T)) + 1}) {
    device::cuda::check(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    device::cuda::check(cudaDeviceSynchronize());
  }
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_.data()) + skipped_; }
  [[nodiscard]] View<T> view() const { return {data(), count_}; }
  /// After everything that was launched.
  [[nodiscard]] std::vector<T> get() const {
    std::vector<T> values(static_cast<std::size_t>(count_));
    device::cuda::check(cudaDeviceSynchronize());
    device::cuda::check(cudaMemcpy(values.data(), data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::int64_t count_;
  std::int64_t skipped_;
  device::cuda::DeviceMemory memory_;
};

}  // namespace galvatron::test
