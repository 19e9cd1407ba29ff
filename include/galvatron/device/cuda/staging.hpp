// How data of the program go to a GPU without the program waiting for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::device::cuda {

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
