// How a rank waits: a little while awake, then asleep in the kernel, and never longer than the timeout.
//
// A Doorbell is what sleepers listen to. Whoever changes a state that somebody may wait for changes it first and rings
// then; a waiter notes the bell, looks at the state, and sleeps only if the bell has not rung since.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <ctime>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace galvatron::comm::thread {

using Clock = std::chrono::steady_clock;

/// What a waiting rank does before it sleeps. With more ranks than cores a yield hands the core to a rank that is late,
/// and a pause would only keep it from running. Barriers on 2 cores, in microseconds (sleeping at once / after up to 16
/// yields): 4 ranks 27 / 2.5, 8 ranks 29 / 6.2; 2 ranks with pauses 0.07. A longer wait makes no difference there, and
/// takes the core from other programs. Beside a busy program YieldBackoff keeps ranks from yielding to it.
struct WaitPolicy {
  int pauses = 0;  ///< looks at the state with a pause of the processor between them
  int yields = 0;  ///< looks at the state with a yield to other threads between them

  /// The policy for so many rank threads on so many cores.
  static constexpr WaitPolicy of(int ranks, int cores) {
    return ranks <= cores ? WaitPolicy{200, 32} : WaitPolicy{0, 16};
  }
};

/// Whether yielding pays for a thread. Beside a busy program a scheduler may let a thread that yields wait for a whole
/// time slice, so that ranks that exceed the cores stand still most of the time: 4 ranks with 60 us of work between
/// barriers took 3.4 ms a round on 2 cores beside two compilers (Linux 6.18), asleep at once 0.4 ms. After such a yield
/// a thread does without for a while: 2 waits at first, four times as many after the next, half after 16 quick ones.
class YieldBackoff {
 public:
  static constexpr std::chrono::milliseconds slow{2};
  static constexpr int least = 2;
  static constexpr int most = 1024;

  /// Before a wait: whether it may yield.
  bool may_yield() {
    if (skip_ == 0) return true;
    --skip_;
    return false;
  }

  /// After a yield: how long it took. False: no more of them in this wait.
  bool note(Clock::duration taken) {
    if (taken < slow) {
      if (++quick_ % 16 == 0) next_ = std::max(next_ / 2, least);
      return true;
    }
    quick_ = 0;
    skip_ = next_;
    next_ = std::min(next_ * 4, most);
    return false;
  }

 private:
  int skip_ = 0;        // waits that are left without yields
  int next_ = least;    // of them after the next slow yield
  unsigned quick_ = 0;  // yields since the last slow one
};

/// Tells the processor that this thread only looks at a word.
inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// A word that sleepers listen to. It may lie in memory that processes share.
class alignas(64) Doorbell {
 public:
  explicit Doorbell(bool between_processes = false) : between_processes_(between_processes) {}

  /// To be called before the state is looked at.
  [[nodiscard]] std::uint32_t listen() const { return word_.load(std::memory_order_seq_cst); }

  /// Wakes all that sleep; to be called after the state has changed.
  void ring() {
    word_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    ::syscall(SYS_futex, &word_, FUTEX_WAKE | scope(), 1 << 30, nullptr, nullptr, 0);
  }

  /// Returns when the bell has rung since listen(), at the deadline, or for no reason.
  void sleep(std::uint32_t heard, Clock::time_point deadline) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now()).count();
    if (left <= 0) return;
    std::timespec limit{};
    limit.tv_sec = static_cast<std::time_t>(left / 1'000'000'000);
    limit.tv_nsec = static_cast<long>(left % 1'000'000'000);
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    ::syscall(SYS_futex, &word_, FUTEX_WAIT | scope(), heard, &limit, nullptr, 0);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  [[nodiscard]] int scope() const { return between_processes_ ? 0 : FUTEX_PRIVATE_FLAG; }

  std::atomic<std::uint32_t> word_{0};
  std::atomic<std::uint32_t> sleepers_{0};
  bool between_processes_;
  static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(std::uint32_t), "galvatron: a futex is a 32-bit word");
};

/// Looks at the state as often as the policy says, without sleeping. True: `ready()`.
template <class Ready>
bool wait_awake(const WaitPolicy& policy, Ready&& ready) {
  if (ready()) return true;
  for (int i = 0; i < policy.pauses; ++i) {
    pause();
    if (ready()) return true;
  }
  if (policy.yields == 0) return false;
  static thread_local YieldBackoff backoff;
  bool yields = backoff.may_yield();
  for (int i = 0; yields && i < policy.yields; ++i) {
    const Clock::time_point start = Clock::now();
    std::this_thread::yield();
    yields = backoff.note(Clock::now() - start);
    if (ready()) return true;
  }
  return false;
}

/// Waits until `ready()`, which may throw to give up. False: `timeout` has passed without it.
template <class Ready>
bool wait_until(Doorbell& bell, const WaitPolicy& policy, std::chrono::nanoseconds timeout, Ready&& ready) {
  if (wait_awake(policy, ready)) return true;
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    const std::uint32_t heard = bell.listen();
    if (ready()) return true;
    if (Clock::now() >= deadline) return false;
    bell.sleep(heard, deadline);
  }
}

}  // namespace galvatron::comm::thread
