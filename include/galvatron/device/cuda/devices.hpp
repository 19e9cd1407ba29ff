// The GPUs of this machine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <string>

#include <cuda_runtime_api.h>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/cuda/check.hpp>

namespace galvatron::device::cuda {

/// To be called before anything of CUDA is, by the only thread. A rank's streams wait for other ranks, each for others:
/// they must not share the few queues that CUDA gives a process by default. Does nothing where the user has decided.
inline void prepare_process() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

/// What cudaGetDeviceCount's answer means: the number of GPUs, at least 1, or why there is none (ErrorKind::machine).
inline Result<int> devices_found(cudaError_t status, int count) {
  const auto none = [](const char* cause, const char* remedy) {
    return tl::unexpected<Error>(Error{ErrorKind::machine, std::string("no CUDA device: ") + cause + "; " + remedy +
                                                               ", or compute with --device host"});
  };
  switch (status) {
    case cudaSuccess:
      if (count > 0) return count;
      [[fallthrough]];
    case cudaErrorNoDevice:
      return none("the driver sees no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES");
    case cudaErrorInsufficientDriver:
      return none("there is no NVIDIA driver, or one too old for this program's CUDA", "install a newer driver");
    case cudaErrorStubLibrary:
      return none("the driver's library is the stub that programs are built with",
                  "take CUDA's `stubs` folder out of LD_LIBRARY_PATH");
    default:
      return none(cudaGetErrorString(status), "check nvidia-smi");
  }
}

inline Result<int> device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) cudaGetLastError();  // a later launch must not report it
  return devices_found(status, count);
}

/// Makes a GPU the current one of the calling thread. Throws DeviceFailure when there is no such GPU.
inline int use_device(int ordinal) {
  const Result<int> count = device_count();
  if (!count) throw DeviceFailure(count.error().message);
  if (ordinal < 0 || ordinal >= *count)
    throw DeviceFailure("there is no CUDA device " + std::to_string(ordinal) + ": this machine has " +
                        std::to_string(*count));
  check(cudaSetDevice(ordinal));
  return ordinal;
}

struct DeviceDescription {
  std::string name;
  int major = 0;  ///< compute capability, as in 9.0
  int minor = 0;
  int multiprocessors = 0;
  Bytes memory{};
  double memory_bandwidth = 0;      ///< bytes/s, of clock and bus; 0: the driver does not say
  std::array<char, 16> identity{};  ///< of no other GPU, on any machine
};

/// True when its tensor cores multiply 8-bit floating-point numbers (Ada, Hopper and later).
constexpr bool has_8bit_products(const DeviceDescription& device) { return 10 * device.major + device.minor >= 89; }

/// What a run that wants them on another GPU ends with.
inline DeviceFailure no_8bit_products(const std::string& gpu) {
  return DeviceFailure("the GPU " + gpu + " has no 8-bit products: plan with --precision bf16");
}

/// Throws DeviceFailure.
inline DeviceDescription describe_device(int ordinal) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, ordinal));
  int kilohertz = 0;
  int bus_bits = 0;
  check(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, ordinal));
  check(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, ordinal));
  std::array<char, 16> identity{};
  std::copy(std::begin(properties.uuid.bytes), std::end(properties.uuid.bytes), identity.begin());
  return {.name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .multiprocessors = properties.multiProcessorCount,
          .memory = {static_cast<std::int64_t>(properties.totalGlobalMem)},
          .memory_bandwidth = 2e3 * kilohertz * bus_bits / 8,  // twice a cycle
          .identity = identity};
}

/// What no program has taken yet of a GPU's memory. Throws DeviceFailure.
inline Bytes free_memory(int ordinal) {
  use_device(ordinal);
  std::size_t free = 0;
  std::size_t total = 0;
  check(cudaMemGetInfo(&free, &total));
  return {static_cast<std::int64_t>(free)};
}

}  // namespace galvatron::device::cuda
