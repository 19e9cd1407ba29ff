// A thread pool for loops of independent iterations, which may contain such loops themselves.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace galvatron {

/// A thread that calls each() runs iterations of its own loop; idle threads take iterations of any open loop, the
/// newest loop first, so that nested loops cannot deadlock.
class Team {
 public:
  /// @param threads  the calling thread included; at most 256, fewer if the system refuses to start them
  explicit Team(int threads) {
    try {
      for (int i = 1; i < std::min(threads, 256); ++i) workers_.emplace_back([this] { worker_main(); });
    } catch (const std::system_error&) {
      return;
    }
  }
  ~Team() {
    ended_ = true;
    notify();
  }

  [[nodiscard]] bool alone() const { return workers_.empty(); }
  /// True if some thread is idle; otherwise small loops are not worth sharing.
  [[nodiscard]] bool has_idle() const { return idle_.load(std::memory_order_relaxed) > 0; }
  /// How often a thread joined the loop of another.
  [[nodiscard]] std::size_t joins() const { return joins_.load(); }

  /// Calls `body(i)` for i = 0..count-1 on this thread and all idle ones; rethrows what an iteration throws.
  template <class F>
  void each(std::size_t count, const F& body) {
    if (alone() || count < 2) {
      for (std::size_t i = 0; i < count; ++i) body(i);
      return;
    }
    Loop loop{count, &body, [](const void* context, std::size_t i) { (*static_cast<const F*>(context))(i); }};
    {
      const std::scoped_lock lock(mutex_);
      loops_.push_back(&loop);
    }
    notify();
    loop.run();
    while (true) {
      const unsigned seen = changes_.load();
      {
        const std::scoped_lock lock(mutex_);
        std::erase(loops_, &loop);  // no other thread joins
        if (loop.joined == 0) break;
      }
      if (!run_newest()) wait_for_change(seen);
    }
    if (loop.failure) std::rethrow_exception(loop.failure);
  }

 private:
  struct Loop {
    std::size_t count;
    const void* context;
    void (*call)(const void*, std::size_t);
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr failure{};
    int joined = 0;  // other threads in it; guarded by the team's mutex

    void run() {
      try {
        for (std::size_t i = next++; i < count; i = next++) call(context, i);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
        next = count;
      }
    }
  };

  void notify() {
    ++changes_;
    changes_.notify_all();
  }
  // Spins first, since loops follow each other faster than a thread sleeps and wakes; yields the core meanwhile.
  void wait_for_change(unsigned seen) {
    ++idle_;
    for (int i = 0; i < spins && changes_.load() == seen; ++i)
      if (i % 64 == 63) std::this_thread::yield();
    if (changes_.load() == seen) changes_.wait(seen);
    --idle_;
  }
  // Runs iterations of the newest loop that has any left; false if there is none.
  bool run_newest() {
    Loop* loop = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      for (std::size_t i = loops_.size(); i-- > 0 && loop == nullptr;)
        if (loops_[i]->next.load() < loops_[i]->count) loop = loops_[i];
      if (loop == nullptr) return false;
      ++loop->joined;
    }
    ++joins_;
    loop->run();
    {
      const std::scoped_lock lock(mutex_);
      --loop->joined;
    }
    notify();
    return true;
  }
  void worker_main() {
    while (!ended_) {
      const unsigned seen = changes_.load();
      if (!run_newest() && !ended_) wait_for_change(seen);
    }
  }

  static constexpr int spins = 30'000;  // about a tenth of a millisecond

  std::mutex mutex_;
  std::vector<Loop*> loops_;  // open: other threads may join
  std::atomic<unsigned> changes_{0};
  std::atomic<int> idle_{0};
  std::atomic<std::size_t> joins_{0};
  std::atomic<bool> ended_{false};
  std::vector<std::jthread> workers_;  // last, so that they are joined before other members go
};

}  // namespace galvatron
