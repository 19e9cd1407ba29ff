// A rank on a GPU that is not there: the device's own kernels, run on the CPU thread by thread, in streams that run
// late and in a random order; products by oneDNN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <galvatron/comm/local_gpu/world.hpp>
#include <galvatron/comm/thread/world.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/cuda/gpu.hpp>
#include <galvatron/device/host/gemm.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/rank/rank_memory.hpp>

#include "../comm/fake_gpu.hpp"
#include "../device/emulator.hpp"
#include "../device/product_of_codes.hpp"
#include "../device/products_with_epilogues.hpp"
#include "../device/recorded_work.hpp"

namespace galvatron::test {

/// A stream of a GPU that is not there.
class FakeStream {
 public:
  explicit FakeStream(std::uint64_t seed) : emulator_(seed) {}
  FakeStream(const FakeStream&) = delete;
  FakeStream& operator=(const FakeStream&) = delete;
  virtual ~FakeStream() = default;

  /// Any work, in order with the rest.
  virtual void run(std::function<void()> work) = 0;
  virtual void wait() = 0;
  /// What waits for the work given so far.
  virtual std::function<void()> mark() = 0;
  template <class Kernel>
  void launch(const device::cuda::Geometry& geometry, const Kernel& kernel) {
    run([this, geometry, kernel] { emulator_.launch(geometry, kernel); });
  }

 private:
  Emulator emulator_;
};

/// A stream of FakeGpu.
class LateStream final : public FakeStream {
 public:
  LateStream(FakeGpu::Stream& stream, std::uint64_t seed) : FakeStream(seed), stream_(stream) {}
  void run(std::function<void()> work) override { stream_.run(std::move(work)); }
  void wait() override { stream_.wait(); }
  std::function<void()> mark() override {
    const auto fence = std::make_shared<FakeGpu::Fence>();
    fence->record(stream_);
    return [fence] { fence->wait(); };
  }

 private:
  FakeGpu::Stream& stream_;
};

/// The machine of device/cuda/gpu.hpp.
class FakeMachine {
 public:
  static constexpr std::int64_t product_bytes = std::int64_t{4} << 20;

  FakeMachine(FakeStream& stream, View<std::byte> library)
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
    std::function<void()> done = [] {};
    void wait() const { done(); }
  };
  void begin_recording() { recorder_.begin(); }
  Recording end_recording() { return {.work = recorder_.end()}; }
  void drop_recording() { recorder_.drop(); }
  void run(Recording& recording) {
    for (const auto& work : recording.work) work();
    recording.done = stream_.mark();
  }

 private:
  void run(std::function<void()> work) {
    recorder_.give([this, work] { stream_.run(work); });
  }

  FakeStream& stream_;
  WorkRecorder recorder_;
  View<std::byte> workspace_;
  device::host::Products products_;
};

class FakeGpuRank {
 public:
  using Device = device::cuda::Gpu<FakeMachine>;
  static_assert(device::Device<Device>);

  FakeGpuRank(const cost::StageMemory& planned, FakeStream& stream)
      : stream_(stream),
        mapping_(planned.total(), false),
        memory_(planned, mapping_),
        machine_(stream, memory_.library.take<std::byte>(memory_.library.capacity())),
        device_(machine_) {}
  ~FakeGpuRank() { stream_.wait(); }

  train::RankMemory& memory() { return memory_; }
  Device& device() { return device_; }

 private:
  FakeStream& stream_;
  device::Mapping mapping_;
  train::RankMemory memory_;
  FakeMachine machine_;
  Device device_;
};

/// See train::HostPlatform.
struct FakeGpuPlatform {
  using Rank = FakeGpuRank;
  FakeStream* stream = nullptr;
  int threads = 1;

  void enter() const {}
  void between_steps() const {}
  void enter_beside() const {}
  [[nodiscard]] static Bytes library_workspace() {
    return {Rank::Device::workspace_bytes + FakeMachine::product_bytes};
  }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, *stream}; }
};

using FakeGpuWorld = comm::local_gpu::World<FakeGpu::Stream>;

/// Calls body(world, platform) for every rank, on one GPU.
template <class Body>
void on_fake_gpu(int ranks, std::uint64_t seed, const Body& body) {
  FakeGpu gpu(seed);
  std::vector<FakeGpu::Fence> fences(static_cast<std::size_t>(ranks));
  comm::thread::run(ranks, [&](comm::thread::World& control) {
    FakeGpu::Stream compute(gpu);
    FakeGpuWorld world(control, fences, compute);
    LateStream stream(compute, seed);
    body(world, FakeGpuPlatform{&stream});
  });
}

}  // namespace galvatron::test
