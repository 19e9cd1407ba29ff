// What a rank has on a GPU: its memory and its device.
#pragma once

#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/device/cuda/algorithm_cache.hpp>
#include <galvatron/device/cuda/devices.hpp>
#include <galvatron/device/cuda/machine.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/rank/stopwatch.hpp>

namespace galvatron::train {

/// What is left of a GPU's memory for the code of kernels, which CUDA's libraries load when they are first used, and
/// for graphs of whole steps. An allowance, not a measurement.
inline constexpr Bytes code_allowance{std::int64_t{512} << 20};

/// The arena of a rank in the GPU's memory, and a device that computes in it, in the stream given.
class CudaRank {
 public:
  using Device = device::Cuda;

  /// @param planned  of which the library's part belongs to the device  @param deterministic  see cuda::Machine
  CudaRank(const cost::StageMemory& planned, int ordinal, device::cuda::Stream& stream, bool deterministic)
      : algorithms_(device::cuda::AlgorithmCache::folder(), device::cuda::describe_device(ordinal).name,
                    cublasLtGetVersion()),
        arena_(planned.total()),
        memory_(planned, arena_),
        machine_(ordinal, stream, memory_.library.take<std::byte>(memory_.library.capacity()), deterministic),
        device_(machine_) {
    machine_.products().read(algorithms_);
  }

  RankMemory& memory() { return memory_; }
  Device& device() { return device_; }
  /// Between the two, new products that add to their results add more than once, and the fastest algorithms of all new
  /// ones are kept for this run and others.
  void begin_search() { machine_.products().search(true); }
  void end_search() {
    machine_.products().search(false);
    if (auto saved = algorithms_.save(); !saved)
      remarks_.push_back("the algorithms of products are not kept: " + saved.error().message);
  }
  [[nodiscard]] bool has_gelu_in_product() const { return machine_.has_gelu_in_product(); }
  /// Seconds of the GPU for so many op(), behind one that does not count.
  template <class Op>
  double seconds(int calls, const Op& op) {
    return timer_.seconds(machine_.stream(), op, [&] {
      for (int i = 0; i < calls; ++i) op();
    });
  }
  /// What the GPU's libraries refused, and was done in another way: a line each.
  [[nodiscard]] std::vector<std::string> remarks() const {
    std::vector<std::string> out = remarks_;
    for (const std::string& why : machine_.attention_refusals()) out.push_back(why);
    if (const std::string& why = device_.graph_replay().refusal(); !why.empty())
      out.push_back("steps are launched operation by operation, not as a CUDA graph: " + why);
    return out;
  }

 private:
  device::cuda::AlgorithmCache algorithms_;
  std::vector<std::string> remarks_;
  device::cuda::DeviceMemory arena_;
  RankMemory memory_;
  device::cuda::Machine machine_;
  device::cuda::StreamTimer timer_;
  Device device_;
};

/// How ranks are made on a GPU; see HostPlatform.
struct CudaPlatform {
  using Rank = CudaRank;
  int ordinal = 0;
  device::cuda::Stream* stream = nullptr;  ///< in which the rank computes; of that GPU
  bool deterministic = true;               ///< see cuda::Machine
  int threads = 1;                         ///< of a rank, for what the program computes itself

  /// Throws DeviceFailure for a precision that the GPU does not have, or when there is none.
  static void require(Precision precision, int ordinal = 0) {
    if (precision != Precision::fp8) return;
    if (const auto gpus = device::cuda::device_count(); !gpus) throw DeviceFailure(gpus.error().message);
    const auto gpu = device::cuda::describe_device(ordinal);
    if (!device::cuda::has_8bit_products(gpu)) throw device::cuda::no_8bit_products(gpu.name);
  }
  void enter() const { device::cuda::use_device(ordinal); }
  void between_steps() const {}
  void enter_beside() const { device::cuda::use_device(ordinal); }
  [[nodiscard]] static Bytes library_workspace() { return {device::cuda::Machine::library_workspace_bytes()}; }
  [[nodiscard]] static detail::Stopwatch stopwatch() { return {false}; }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, ordinal, *stream, deterministic}; }
};

/// Calls body(world, platform): a body of on_own_gpu(), on_own_gpus() and on_one_gpu() (rank/gpu_world.hpp).
template <class Body>
auto with_platform(const Body& body, bool deterministic = true, int threads = 1) {
  return [&body, deterministic, threads](auto& world, int ordinal, device::cuda::Stream& compute) {
    body(world, CudaPlatform{ordinal, &compute, deterministic, threads});
  };
}

}  // namespace galvatron::train
