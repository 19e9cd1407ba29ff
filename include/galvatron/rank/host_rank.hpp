// What a rank has on this machine's cores: its memory and its device.
#pragma once

#include <string>
#include <vector>

#include <omp.h>

#include <galvatron/core/error.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
#include <galvatron/rank/pin.hpp>
#include <galvatron/rank/rank_memory.hpp>
#include <galvatron/rank/stopwatch.hpp>

namespace galvatron::train {

/// The arena of a rank, and a device that computes with `threads` cores in it.
class HostRank {
 public:
  using Device = device::Host;

  /// @param planned  of which the library's part belongs to the device
  HostRank(const cost::StageMemory& planned, int threads)
      : mapping_(planned.total(), false),
        memory_(planned, mapping_),
        device_(threads, memory_.library.take<std::byte>(memory_.library.capacity())) {}

  RankMemory& memory() { return memory_; }
  Device& device() { return device_; }
  [[nodiscard]] static std::vector<std::string> remarks() { return {}; }

 private:
  device::Mapping mapping_;
  RankMemory memory_;
  Device device_;
};

/// How ranks are made on this machine's cores.
struct HostPlatform {
  using Rank = HostRank;
  int threads = 1;                  ///< of a rank
  const PinnedRank* pin = nullptr;  ///< ties the calling thread to the rank's cores

  /// Throws DeviceFailure for a precision that this CPU does not have.
  static void require(Precision precision) {
    if (!device::Host::supports(precision))
      throw DeviceFailure(std::string("this CPU has no ") + name_of(precision) +
                          " arithmetic: plan with --precision fp32");
  }
  /// On the rank's thread, before anything else of it.
  void enter() const { omp_set_num_threads(threads); }
  /// On a thread that works beside it.
  void enter_beside() const { pin->release_calling_thread(); }
  /// What every rank's device takes of its memory.
  [[nodiscard]] Bytes library_workspace() const { return {device::Host::library_workspace_bytes(threads)}; }
  /// What its operations are timed with.
  [[nodiscard]] detail::Stopwatch stopwatch() const { return {threads == 1}; }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, threads}; }
};

}  // namespace galvatron::train
