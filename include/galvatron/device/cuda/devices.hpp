// The GPUs of this machine, memory of a GPU, and how data of the program go there without the program waiting.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <string>

#include <cuda_runtime_api.h>

#include <galvatron/device/arena.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::device::cuda {

/// To be called before anything of CUDA is, by the only thread. A rank's streams wait for other ranks, each for others:
/// they must not share the few queues that CUDA gives a process by default. Does nothing where the user has decided.
inline void prepare_process() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0); }

/// What cudaGetDeviceCount's answer means: the number of GPUs, at least 1, or why there is none (ErrorKind::machine).
inline Result<int> devices_found(cudaError_t status, int count) {
  if (status == cudaSuccess && count > 0) return count;
  std::string why = std::string(cudaGetErrorString(status)) + "; check nvidia-smi";
  if (status == cudaSuccess || status == cudaErrorNoDevice)
    why = "the driver sees no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES";
  if (status == cudaErrorInsufficientDriver)
    why = "there is no NVIDIA driver, or one too old for this program's CUDA; install a newer driver";
  if (status == cudaErrorStubLibrary)
    why =
        "the driver's library is the stub that programs are built with; take CUDA's `stubs` folder out of "
        "LD_LIBRARY_PATH";
  return tl::unexpected<Error>(Error{ErrorKind::machine, "no CUDA device: " + why + ", or compute with --device host"});
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

/// device::Mapping on the current GPU: zero at first, empty when `counts_only`. Throws DeviceFailure.
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

  [[nodiscard]] Region region(const char* name, std::int64_t first, Bytes bytes) const {
    return {name, data() == nullptr ? nullptr : data() + first, bytes.count};
  }
};

/// Page-locked memory of the program, not initialised. Throws DeviceFailure.
class PinnedMemory : public FixedMemory<cudaFreeHost> {
 public:
  PinnedMemory() = default;
  explicit PinnedMemory(Bytes bytes) : FixedMemory(bytes) {
    if (bytes.count > 0 && !take([](void** to, std::size_t size) { return cudaMallocHost(to, size); }))
      throw DeviceFailure("this machine refused " + std::to_string(bytes.count) +
                          " bytes of page-locked memory for copies to the GPU: raise its limits (ulimit -l)");
  }
};

/// Page-locked memory in two halves that take turns: while one is filled, the stream reads the other.
class Staging {
 public:
  /// Larger pieces take pageable memory of their own, and the program waits for their copy.
  static constexpr std::int64_t largest = std::int64_t{64} << 20;

  /// writer(std::byte*) fills `bytes` of memory on a 64-byte boundary, which the stream then copies to the device.
  void upload(const Stream& stream, void* to, std::int64_t bytes, auto&& writer) {
    if (bytes > largest) {
      const auto own = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes + tensor_alignment));
      const auto address = reinterpret_cast<std::uintptr_t>(own.get());
      std::byte* from = own.get() + (tensor_alignment - address % tensor_alignment) % tensor_alignment;
      writer(from);
      copy(stream, from, to, bytes);
      check(cudaStreamSynchronize(stream.get()));
      return;
    }
    const std::int64_t size = aligned_bytes(bytes);
    if (used_ + size > halves_[now_].memory.size().count) take_turns(stream, size);
    std::byte* from = halves_[now_].memory.data() + used_;
    writer(from);
    copy(stream, from, to, bytes);
    used_ += size;
  }

 private:
  struct Half {
    PinnedMemory memory;
    Event read;  ///< stands behind the last copy
  };

  static void copy(const Stream& stream, const std::byte* from, void* to, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream.get()));
  }
  void take_turns(const Stream& stream, std::int64_t size) {
    halves_[now_].read.record(stream);
    now_ = 1 - now_;
    used_ = 0;
    Half& half = halves_[now_];
    half.read.wait();
    if (half.memory.size().count >= size) return;
    half.memory = PinnedMemory();
    half.memory = PinnedMemory({round_up(2 * size, std::int64_t{1} << 20)});
  }

  std::array<Half, 2> halves_;
  std::size_t now_ = 0;
  std::int64_t used_ = 0;  ///< bytes of that half
};

}  // namespace galvatron::device::cuda
