// Signals wait while oneDNN's products compute.
#pragma once

#include <array>
#include <csignal>

#include <dnnl.h>
#include <omp.h>

namespace galvatron::device::host {

/// As long as it lives, the calling thread handles no signals but those of its own faults: other threads of the process
/// handle them, or they wait. The OpenMP threads that execute the caller's parallel regions handle none from the first
/// object on.
///
/// oneDNN before 3.12 computes fp32 products of AVX2 and AVX-512 with the stack pointer at a buffer of the heap
/// (uxlfoundation/oneDNN issue 4845). A handler that is called meanwhile, and what the kernel saves for it, overwrite
/// the heap before that buffer.
class HeldSignals {
 public:
  static constexpr bool needed = DNNL_VERSION_MAJOR < 3 || (DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR < 12);

  HeldSignals() {
    if constexpr (needed) {
      hold_in_team();
      ::pthread_sigmask(SIG_BLOCK, &all(), &before_);
    }
  }
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;
  ~HeldSignals() {
    if constexpr (needed) ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  static const sigset_t& all() {
    static const sigset_t out = [] {
      sigset_t set;
      ::sigfillset(&set);
      for (const int fault : std::array{SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
        ::sigdelset(&set, fault);
      return set;
    }();
    return out;
  }
  // The threads of a team stay as long as regions of several threads have as many; new ones are as the one that starts
  // them, which holds its signals in oneDNN's regions, but not in others.
  static void hold_in_team() {
    thread_local int held = 1;
    const int threads = ::omp_get_max_threads();
    if (threads == 1 || threads == held) return;
#pragma omp parallel
    if (::omp_get_thread_num() != 0) ::pthread_sigmask(SIG_BLOCK, &all(), nullptr);
    held = threads;
  }

  sigset_t before_{};
};

}  // namespace galvatron::device::host
