// How data of the program go to a GPU without the program waiting for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/ring.hpp>
#include <galvatron/device/cuda/stream.hpp>

namespace galvatron::device::cuda {

/// Page-locked memory through which pieces go, one behind the other. It grows with the largest piece.
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
    if (size > ring_.capacity()) grow(size);
    const auto wait = [this](Event event) {
      event.wait();
      spare_.push_back(std::move(event));
    };
    std::byte* from = memory_.data() + ring_.place(size, wait);
    writer(from);
    copy(stream, from, to, bytes);
    Event done = spare_event();
    done.record(stream);
    ring_.keep(size, std::move(done));
  }

 private:
  static void copy(const Stream& stream, const std::byte* from, void* to, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice, stream.get()));
  }
  void grow(std::int64_t size) {
    ring_.drain([](const Event& event) { event.wait(); });
    const std::int64_t capacity = round_up(std::max(2 * ring_.capacity(), 4 * size), std::int64_t{1} << 20);
    memory_ = PinnedMemory();
    memory_ = PinnedMemory({capacity});
    ring_ = Ring<Event>(capacity);
  }
  Event spare_event() {
    if (spare_.empty()) return {};
    Event event = std::move(spare_.back());
    spare_.pop_back();
    return event;
  }

  PinnedMemory memory_;
  Ring<Event> ring_{0};
  std::vector<Event> spare_;
};

}  // namespace galvatron::device::cuda
