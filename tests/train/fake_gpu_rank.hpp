// A rank on a GPU that is not there: the device's own kernels, run on the CPU thread by thread, in streams that run
// late and in a random order; products by oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include <galvatron/comm/local_gpu/world.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/cuda/gpu.hpp>
#include <galvatron/device/host/gemm.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/rank/rank_memory.hpp>

#include "../comm/fake_gpu.hpp"
#include "../device/product_of_codes.hpp"
#include "../device/products_with_epilogues.hpp"
#include "../device/recorded_work.hpp"

namespace galvatron::test {

/// The machine of device/cuda/gpu.hpp.
/// @tparam S  a stream, its fences, and any work: run(std::function<void()>)
template <class S>
class FakeMachine {
 public:
  static constexpr std::int64_t product_bytes = std::int64_t{4} << 20;

  FakeMachine(S& stream, View<std::byte> library)
      : stream_(stream),
        workspace_(library.slice(0, library.count - product_bytes)),
        products_(library.slice(library.count - product_bytes, product_bytes)) {}

  template <class Kernel>
  void launch(const device::cuda::Geometry& geometry, const Kernel& kernel) {
    recorder_.give([=, this] { stream_.launch(geometry, kernel); });
  }
  void zero(void* to, std::int64_t bytes) {
    run([=] { std::memset(to, 0, static_cast<std::size_t>(bytes)); });
  }
  void copy(const void* from, void* to, std::int64_t bytes) {
    run([=] { std::memmove(to, from, static_cast<std::size_t>(bytes)); });
  }
  void multiply(const device::Product& product, const void* a, const void* b, const void* bias, void* c,
                const float* unscale = nullptr) {
    run([=, this] {
      if (product.operands == Precision::fp8)
        multiply_codes(product, a, b, bias, c, unscale);
      else
        products_.multiply(product, a, b, bias, c);
    });
  }
  bool try_multiply(const device::Product& product, device::Epilogue epilogue, const void* a, const void* b,
                    const void* bias, void* u, void* c) {
    if (!has_epilogues(product)) return false;
    run([=, this] { test::multiply(products_, product, epilogue, a, b, bias, u, c); });
    return true;
  }
  bool attention(const auto&...) { return false; }
  [[nodiscard]] bool has_warp_groups() const { return true; }
  void wait() { stream_.wait(); }
  void fetch(const void* from, void* to, std::int64_t bytes) {
    stream_.wait();
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  }
  template <class Writer>
  void upload(void* to, std::int64_t bytes, Writer&& writer) {
    const auto host =
        std::make_shared<std::vector<std::max_align_t>>(static_cast<std::size_t>(bytes) / sizeof(std::max_align_t) + 1);
    writer(reinterpret_cast<std::byte*>(host->data()));
    stream_.run([=] { std::memcpy(to, host->data(), static_cast<std::size_t>(bytes)); });
  }
  [[nodiscard]] View<std::byte> workspace() const { return workspace_; }

  using HostMemory = test::HostMemory;
  struct Recording {
    WorkRecorder::Work work;
    std::unique_ptr<typename S::Fence> done = std::make_unique<typename S::Fence>();
    void wait() const { done->wait(); }
  };
  void begin_recording() { recorder_.begin(); }
  Recording end_recording() { return {.work = recorder_.end()}; }
  void drop_recording() { recorder_.drop(); }
  void run(Recording& recording) {
    for (const auto& work : recording.work) work();
    recording.done->record(stream_);
  }

 private:
  void run(std::function<void()> work) {
    recorder_.give([this, work] { stream_.run(work); });
  }

  S& stream_;
  WorkRecorder recorder_;
  View<std::byte> workspace_;
  device::host::Products products_;
};

template <class S>
class FakeGpuRank {
 public:
  using Device = device::cuda::Gpu<FakeMachine<S>>;
  static_assert(device::Device<Device>);

  FakeGpuRank(const cost::StageMemory& planned, S& stream)
      : stream_(stream),
        mapping_(planned.total(), false),
        memory_(planned, mapping_),
        machine_(stream, memory_.library.take<std::byte>(memory_.library.capacity())),
        device_(machine_) {}
  ~FakeGpuRank() { stream_.wait(); }

  train::RankMemory& memory() { return memory_; }
  Device& device() { return device_; }

 private:
  S& stream_;
  device::Mapping mapping_;
  train::RankMemory memory_;
  FakeMachine<S> machine_;
  Device device_;
};

/// See train::HostPlatform.
template <class S>
struct FakePlatform {
  using Rank = FakeGpuRank<S>;
  S* stream = nullptr;
  int threads = 1;

  void enter() const {}
  void enter_beside() const {}
  [[nodiscard]] static Bytes library_workspace() {
    return {Rank::Device::workspace_bytes + FakeMachine<S>::product_bytes};
  }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, *stream}; }
};

using FakeGpuPlatform = FakePlatform<FakeGpu::Stream>;
using FakeGpuWorld = comm::local_gpu::World<FakeGpu::Stream>;

/// Calls body(world, platform) for every rank, on one GPU.
template <class Body>
void on_fake_gpu(int ranks, std::uint64_t seed, const Body& body) {
  FakeGpu gpu(seed);
  std::vector<FakeGpu::Fence> fences(static_cast<std::size_t>(ranks));
  comm::thread::run(ranks, [&](comm::thread::World& control) {
    FakeGpu::Stream compute(gpu);
    FakeGpuWorld world(control, fences, compute);
    body(world, FakeGpuPlatform{&compute});
  });
}

}  // namespace galvatron::test
