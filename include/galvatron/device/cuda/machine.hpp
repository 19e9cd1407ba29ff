// One GPU for one rank: a stream of it, its libraries and their workspaces. It models the machine of gpu.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include <cuda_runtime_api.h>

#include <galvatron/device/cuda/cudnn_attention.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/gemm.hpp>
#include <galvatron/device/cuda/gpu.hpp>
#include <galvatron/device/cuda/pointwise.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/device/device.hpp>
#include <galvatron/device/product.hpp>

namespace galvatron::device::cuda {

/// Belongs to one thread of the program at a time, whose current GPU is the machine's. Allocates objects of the
/// libraries and page-locked memory only: temporary memory comes from the workspace given. Throws DeviceFailure.
class Machine {
 public:
  static constexpr std::int64_t kernel_workspace_bytes = std::int64_t{16} << 20;   ///< of Gpu
  static constexpr std::int64_t product_workspace_bytes = std::int64_t{32} << 20;  ///< of cuBLASLt
  static constexpr std::int64_t boundary = 256;                                    ///< of every workspace

  /// The bytes that a GPU wants as its workspace. cuDNN's backward attention, which keeps S x S bfloat16s of a head,
  /// has the rest: enough for 16 heads of 4,096 tokens at a time, whose blocks keep all multiprocessors busy.
  static constexpr std::int64_t library_workspace_bytes() { return std::int64_t{640} << 20; }

  /// Makes GPU `ordinal`, of which the stream is, the calling thread's. The workspace, memory of that GPU of at least
  /// library_workspace_bytes() on a 64-byte boundary, is the machine's own as long as it lives. Where not
  /// `deterministic`, gradients of attention may differ by their rounding from one time to the next.
  Machine(int ordinal, Stream& stream, View<std::byte> library_workspace, bool deterministic = true)
      : major_(describe_device(use_device(ordinal)).major),
        workspace_(on_boundary(library_workspace)),
        stream_(stream),
        products_(stream_, workspace_.slice(kernel_workspace_bytes, product_workspace_bytes)),
        attention_(stream_, after(kernel_workspace_bytes + product_workspace_bytes), major_, deterministic) {}
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  /// Waits for all that was launched.
  ~Machine() { cudaStreamSynchronize(stream_.get()); }

  [[nodiscard]] Stream& stream() { return stream_; }
  [[nodiscard]] View<std::byte> workspace() const { return workspace_.slice(0, kernel_workspace_bytes); }
  /// The products of the libraries, for the search of their algorithms.
  [[nodiscard]] Products& products() { return products_; }
  /// True when GELU may be a part of bfloat16 products, which before Hopper are slower (karpathy/llm.c, pull request
  /// 338).
  [[nodiscard]] bool has_gelu_in_product() const { return major_ >= 9; }
  /// True on Hopper, where the library was compiled for it.
  [[nodiscard]] bool has_warp_groups() const { return major_ == 9 && has_kernels_of_warp_groups(); }
  /// Why shapes of attention went to our own kernel: one line each.
  [[nodiscard]] const std::set<std::string>& attention_refusals() const { return attention_.refusals(); }

  void launch(const Geometry& geometry, const auto& kernel) { stream_.launch(geometry, kernel); }
  void zero(void* to, std::int64_t bytes) {
    check(cudaMemsetAsync(to, 0, static_cast<std::size_t>(bytes), stream_.get()));
  }
  void copy(const void* from, void* to, std::int64_t bytes) { stream_.copy(from, to, bytes); }
  void wait() { stream_.wait(); }
  void fetch(const void* from, void* to, std::int64_t bytes) {
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost, stream_.get()));
    stream_.wait();
  }
  void upload(void* to, std::int64_t bytes, const auto& writer) { staging_.upload(stream_, to, bytes, writer); }

  using Recording = cuda::Recording;
  using HostMemory = PinnedMemory;
  void begin_recording() { Recording::begin(stream_); }
  Recording end_recording() { return Recording(stream_); }
  void drop_recording() { Recording::drop(stream_); }
  void run(Recording& recording) { recording.run(stream_); }

  /// See Product, and Products for `unscale`.
  void multiply(const Product& p, const void* a, const void* b, const void* bias, void* c,
                const float* unscale = nullptr) {
    if (p.k == 0 && p.accumulate) return;
    if (p.k == 0) return begin(p, bias, c);
    if (!p.bias) return products_.multiply(p, a, b, c, unscale);
    const bool on_boundary = reinterpret_cast<std::uintptr_t>(bias) % 16 == 0;
    if (on_boundary && adds_bias(p) && products_.try_multiply(p, Epilogue::none, a, b, bias, nullptr, c, unscale))
      return;
    begin(p, bias, c);
    Product more = p;
    more.bias = false;
    more.accumulate = true;
    products_.multiply(more, a, b, c, unscale);
  }
  /// See Epilogue; u and c (m, n). False when cuBLASLt is not asked or has no algorithm.
  bool try_multiply(const Product& p, Epilogue epilogue, const void* a, const void* b, const void* bias, void* u,
                    void* c) {
    return has_gelu_in_product() && takes_epilogue(p, reinterpret_cast<std::uintptr_t>(u)) &&
           products_.try_multiply(p, epilogue, a, b, bias, u, c);
  }

  /// See Attention.
  bool attention(const auto&... a) { return attention_.compute(a...); }

 private:
  // c = the bias, or zero, in every row.
  void begin(const Product& p, const void* bias, void* c) {
    if (!p.bias) return zero(c, p.m * p.n * element_bytes(p.result));
    const Runs rows{.rows = p.m, .width = p.n, .to = {.row = p.n}};
    if (p.operands == Precision::fp32)
      move_runs<false>(stream_, rows, static_cast<const float*>(bias), static_cast<float*>(c));
    else if (p.result == Precision::fp32)
      move_runs<false>(stream_, rows, static_cast<const bfloat16*>(bias), static_cast<float*>(c));
    else
      move_runs<false>(stream_, rows, static_cast<const bfloat16*>(bias), static_cast<bfloat16*>(c));
  }

  static View<std::byte> on_boundary(View<std::byte> all) {
    if (all.count < library_workspace_bytes())
      throw DeviceFailure("a GPU's libraries need a workspace of " + std::to_string(library_workspace_bytes()) +
                          " bytes, not " + std::to_string(all.count));
    const auto address = reinterpret_cast<std::uintptr_t>(all.data);
    const auto skipped = static_cast<std::int64_t>((boundary - address % boundary) % boundary);
    return all.slice(skipped, all.count - skipped);
  }
  [[nodiscard]] View<std::byte> after(std::int64_t bytes) const {
    return workspace_.slice(bytes, workspace_.count - bytes);
  }

  int major_;  ///< of the compute capability; epilogues of products are from 9 on
  View<std::byte> workspace_;
  Stream& stream_;
  Products products_;
  Attention attention_;
  Staging staging_;
};

}  // namespace galvatron::device::cuda

namespace galvatron::device {

/// The Device that computes on NVIDIA GPUs.
using Cuda = cuda::Gpu<cuda::Machine>;

static_assert(cuda::Machine::kernel_workspace_bytes >= Cuda::workspace_bytes);
static_assert(Device<Cuda>);

}  // namespace galvatron::device
