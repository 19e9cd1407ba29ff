// What a rank has on this machine's cores: its memory, its device, and the cores that its thread runs on.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <utility>
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

/// Whether other programs share the cores of this process. It looks at windows of 0.3 s at least, of all runs of the
/// process: a run of a few steps goes by what the one before it saw.
class SharedCores {
 public:
  /// Others' share of the cores, 0 to 1, above which they share them.
  static constexpr double least = 0.1;

  explicit SharedCores(CoreWatch watch = CoreWatch()) : watch_(std::move(watch)) {}
  /// First called by a thread that may use all cores of the process.
  static SharedCores& of_process() {
    static SharedCores out;
    return out;
  }
  /// Of any thread.
  [[nodiscard]] bool look() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock && watch_.seconds() > 0.3) {
      shared_ = watch_.others().value_or(0) > least;
      watch_.restart();
    }
    return shared_;
  }

 private:
  std::mutex mutex_;
  CoreWatch watch_;
  std::atomic<bool> shared_ = false;
};

/// Ties the calling thread, and the threads that it starts from now on, to its rank's cores, for as long as the object
/// lives: rank r of one thread to core r modulo the number of cores, so that neighbours (tensor-parallel groups,
/// pipeline stages) have different cores; a rank of t threads to t cores of its own. Left to itself the scheduler of
/// the kernel often keeps three of four ranks on one of two cores for many milliseconds, which makes every
/// synchronised step half as long again. Does nothing when the ranks leave cores free.
///
/// While other programs share the cores, ranks are not tied: tied ones wait for a core that others use, and in each
/// synchronised step all wait for them, while another core has nothing to do.
class PinnedRank {
 public:
  /// @param cores  nothing: tied whatever others do, as where ranks are processes that do not know each other's times
  PinnedRank(int rank, int ranks, int threads, SharedCores* cores = nullptr) : threads_(threads), cores_(cores) {
    if (ranks * threads < usable_cores() || ::sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    std::vector<int> usable;
    for (int i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &before_)) usable.push_back(i);
    const int count = static_cast<int>(usable.size());
    if (count < 2 || usable_cores() < count) return;
    CPU_ZERO(&own_);
    for (int i = 0; i < threads; ++i) CPU_SET(usable[static_cast<std::size_t>((rank * threads + i) % count)], &own_);
    can_tie_ = true;
    if (cores_ == nullptr || !cores_->look()) tied_ = tie(own_);
  }
  PinnedRank(const PinnedRank&) = delete;
  PinnedRank& operator=(const PinnedRank&) = delete;
  ~PinnedRank() { release_calling_thread(); }
  [[nodiscard]] bool pinned() const { return tied_; }
  /// Between two steps, on the rank's thread: ties it, or does no longer.
  void look() {
    if (!can_tie_ || cores_ == nullptr) return;
    const bool shared = cores_->look();
    if (shared == tied_) tied_ = tie(shared ? before_ : own_) && !shared;
  }
  /// Lets the calling thread, which the pinned one started for work beside the rank's, run on any core again.
  void release_calling_thread() const {
    if (can_tie_) ::pthread_setaffinity_np(::pthread_self(), sizeof before_, &before_);
  }

 private:
  // The calling thread and its team; whether that went well.
  [[nodiscard]] bool tie(const cpu_set_t& cores) const {
    bool tied = true;
#pragma omp parallel num_threads(threads_) if (threads_ > 1) reduction(&& : tied)
    tied = ::pthread_setaffinity_np(::pthread_self(), sizeof cores, &cores) == 0;
    return tied;
  }

  int threads_;
  SharedCores* cores_;
  bool can_tie_ = false;
  bool tied_ = false;
  cpu_set_t before_{};
  cpu_set_t own_{};
};

/// How ranks are made on this machine's cores.
struct HostPlatform {
  using Rank = HostRank;
  int threads = 1;            ///< of a rank
  PinnedRank* pin = nullptr;  ///< ties the calling thread to the rank's cores

  /// Throws DeviceFailure for a precision that this CPU does not have.
  static void require(Precision precision) {
    if (!device::Host::supports(precision))
      throw DeviceFailure(std::string("this CPU has no ") + name_of(precision) +
                          " arithmetic: plan with --precision fp32");
  }
  /// On the rank's thread, before anything else of it.
  void enter() const { omp_set_num_threads(threads); }
  /// On the rank's thread, after a step.
  void between_steps() const { pin->look(); }
  /// On a thread that works beside it.
  void enter_beside() const { pin->release_calling_thread(); }
  /// What every rank's device takes of its memory.
  [[nodiscard]] Bytes library_workspace() const { return {device::Host::library_workspace_bytes(threads)}; }
  /// What its operations are timed with.
  [[nodiscard]] detail::Stopwatch stopwatch() const { return {threads == 1}; }
  [[nodiscard]] Rank make(const cost::StageMemory& planned) const { return {planned, threads}; }
};

}  // namespace galvatron::train
