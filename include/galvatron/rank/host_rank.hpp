// What a rank has on this machine's cores: its memory, its device, and the cores that its thread runs on.
#pragma once

#include <string>
#include <vector>

#include <omp.h>
#include <pthread.h>
#include <sched.h>

#include <galvatron/cluster/host.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/cost/memory.hpp>
#include <galvatron/device/arena.hpp>
#include <galvatron/device/host/host.hpp>
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

/// Ties the calling thread, and the threads that it starts from now on, to its rank's cores, for as long as the object
/// lives: rank r of one thread to core r modulo the number of cores, so that neighbours (tensor-parallel groups,
/// pipeline stages) have different cores; a rank of t threads to t cores of its own. Left to itself the scheduler of
/// the kernel often keeps three of four ranks on one of two cores for many milliseconds, which makes every
/// synchronised step half as long again. Does nothing when the ranks leave cores free.
class PinnedRank {
 public:
  PinnedRank(int rank, int ranks, int threads) {
    if (ranks * threads < usable_cores() || ::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    std::vector<int> cores;
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &before_)) cores.push_back(i);
    const int count = static_cast<int>(cores.size());
    if (count < 2 || usable_cores() < count) return;
    cpu_set_t own;
    CPU_ZERO(&own);
    for (int i = 0; i < threads; ++i) CPU_SET(cores[static_cast<std::size_t>((rank * threads + i) % count)], &own);
    pinned_ = ::pthread_setaffinity_np(::pthread_self(), sizeof own, &own) == 0;
  }
  PinnedRank(const PinnedRank&) = delete;
  PinnedRank& operator=(const PinnedRank&) = delete;
  ~PinnedRank() { release_calling_thread(); }
  [[nodiscard]] bool pinned() const { return pinned_; }
  /// Lets the calling thread, which the pinned one started for work beside the rank's, run on any core again.
  void release_calling_thread() const {
    if (pinned_) ::pthread_setaffinity_np(::pthread_self(), sizeof before_, &before_);
  }

 private:
  bool pinned_ = false;
  cpu_set_t before_{};
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
