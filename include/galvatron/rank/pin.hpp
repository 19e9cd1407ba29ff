// Which cores a rank thread runs on.
#pragma once

#include <vector>

#include <galvatron/cluster/host.hpp>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace galvatron::train {

/// Ties the calling thread, and the threads that it starts from now on, to its rank's cores, for as long as the object
/// lives: rank r of one thread to core r modulo the number of cores, so that neighbours (tensor-parallel groups,
/// pipeline stages) have different cores; a rank of t threads to t cores of its own. Left to itself the scheduler of
/// the kernel often keeps three of four ranks on one of two cores for many milliseconds, which makes every
/// synchronised step half as long again. Does nothing when the ranks leave cores free, or where the system has no such
/// call.
class PinnedRank {
 public:
  PinnedRank(int rank, int ranks, int threads) {
#if defined(__linux__)
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
#else
    static_cast<void>(rank + ranks + threads);
#endif
  }
  PinnedRank(const PinnedRank&) = delete;
  PinnedRank& operator=(const PinnedRank&) = delete;
  ~PinnedRank() {
#if defined(__linux__)
    if (pinned_) ::pthread_setaffinity_np(::pthread_self(), sizeof before_, &before_);
#endif
  }
  [[nodiscard]] bool pinned() const { return pinned_; }
  /// Lets the calling thread, which the pinned one started for work beside the rank's, run on any core again.
  void release_calling_thread() const {
#if defined(__linux__)
    if (pinned_) ::pthread_setaffinity_np(::pthread_self(), sizeof before_, &before_);
#endif
  }

 private:
  bool pinned_ = false;
#if defined(__linux__)
  cpu_set_t before_{};
#endif
};

}  // namespace galvatron::train
