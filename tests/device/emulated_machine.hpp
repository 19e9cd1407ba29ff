// A GPU that is this machine's CPU: device::cuda::Gpu with all of its kernels, run by the emulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/cuda/gpu.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/host/gemm.hpp>
#include <galvatron/device/kernels/number.hpp>
#include <galvatron/device/product.hpp>

#include "emulator.hpp"
#include "product_of_codes.hpp"
#include "products_with_epilogues.hpp"
#include "recorded_work.hpp"

namespace galvatron::test {

/// The machine that cuda::Gpu drives: kernels in the emulator, matrix products by oneDNN, no attention of its own.
/// Memory of the device is memory of the program; what a machine leaves undefined begins as NaN.
class EmulatedMachine {
 public:
  /// `seed`: of the order in which threads run.
  explicit EmulatedMachine(std::uint64_t seed = 1)
      : emulator_(seed), memory_({all_bytes}), products_({memory_.data() + workspace_bytes, library_bytes}) {
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(all_bytes));
  }

  template <class Kernel>
  void launch(const device::cuda::Geometry& geometry, const Kernel& kernel) {
    recorder_.give([=, this] { emulator_.launch(geometry, kernel); });
  }
  void zero(void* to, std::int64_t bytes) {
    recorder_.give([=] { std::memset(to, 0, static_cast<std::size_t>(bytes)); });
  }
  void copy(const void* from, void* to, std::int64_t bytes) {
    recorder_.give([=] { std::memmove(to, from, static_cast<std::size_t>(bytes)); });
  }
  [[nodiscard]] bool has_warp_groups() const { return true; }
  void wait() {}
  void fetch(const void* from, void* to, std::int64_t bytes) { copy(from, to, bytes); }
  template <class Writer>
  void upload(void* to, std::int64_t bytes, Writer&& writer) {
    const HostMemory staged({bytes});
    writer(staged.data());
    copy(staged.data(), to, bytes);
  }
  /// Kernels launched so far.
  [[nodiscard]] int launches() const { return emulator_.launches(); }
  View<std::byte> workspace() { return {memory_.data(), workspace_bytes}; }

  using HostMemory = test::HostMemory;
  struct Recording {
    WorkRecorder::Work work;
    void wait() const {}
  };
  WorkRecorder& recorder() { return recorder_; }
  void begin_recording() { recorder_.begin(); }
  Recording end_recording() { return {recorder_.end()}; }
  void drop_recording() { recorder_.drop(); }
  void run(Recording& recording) {
    for (const auto& work : recording.work) work();
  }

  /// A product over no elements is the bias, or zero.
  void multiply(const device::Product& p, const void* a, const void* b, const void* bias, void* c,
                const float* unscale = nullptr) {
    recorder_.give([=, this] {
      if (p.operands == Precision::fp8)
        multiply_codes(p, a, b, bias, c, unscale);
      else if (p.k > 0)
        products_.multiply(p, a, b, bias, c);
      else if (!p.accumulate)
        fill(p, p.bias ? bias : nullptr, c);
    });
  }
  bool try_multiply(const device::Product& p, device::Epilogue epilogue, const void* a, const void* b, const void* bias,
                    void* u, void* c) {
    if (!has_epilogues(p)) return false;
    recorder_.give([=, this] { test::multiply(products_, p, epilogue, a, b, bias, u, c); });
    return true;
  }

  bool attention(const auto&...) { return false; }

 private:
  static constexpr std::int64_t workspace_bytes = device::cuda::Gpu<EmulatedMachine>::workspace_bytes;
  static constexpr std::int64_t library_bytes = std::int64_t{4} << 20;
  static constexpr std::int64_t all_bytes = workspace_bytes + library_bytes;

  static float element(Precision precision, const void* all, std::int64_t i) {
    using device::kernels::get;
    return precision == Precision::fp32 ? get(static_cast<const float*>(all)[i])
                                        : get(static_cast<const bfloat16*>(all)[i]);
  }
  static void fill(const device::Product& p, const void* bias, void* c) {
    for (std::int64_t i = 0; i < p.m * p.n; ++i) {
      const float value = bias == nullptr ? 0.0F : element(p.operands, bias, i % p.n);
      if (p.result == Precision::fp32)
        static_cast<float*>(c)[i] = value;
      else
        device::kernels::put(static_cast<bfloat16*>(c)[i], value);
    }
  }

  Emulator emulator_;
  WorkRecorder recorder_;
  HostMemory memory_;
  device::host::Products products_;
};

static_assert(device::Device<device::cuda::Gpu<EmulatedMachine>>);

}  // namespace galvatron::test
