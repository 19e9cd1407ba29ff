// Independent pieces of work on several threads. A piece may itself have pieces: threads with nothing to do take them.
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

/// Threads that share work. One that calls `each` works on its pieces itself; the others help where something is left,
/// the newest work first, so that pieces within pieces are not waited for.
class Team {
 public:
  /// @param threads  the caller included; fewer where the machine gives no more, at most 256
  explicit Team(int threads) {
    try {
      for (int i = 1; i < std::min(threads, 256); ++i) helpers_.emplace_back([this] { help_until_end(); });
    } catch (const std::system_error&) {
      return;
    }
  }
  ~Team() {
    ended_ = true;
    announce();
  }

  [[nodiscard]] bool alone() const { return helpers_.empty(); }
  /// Whether a thread has nothing to do: small pieces are not worth announcing otherwise.
  [[nodiscard]] bool has_time() const { return idle_.load(std::memory_order_relaxed) > 0; }
  /// How often a thread helped with the work of another.
  [[nodiscard]] std::size_t helped() const { return helped_.load(); }

  /// Calls `piece(i)` for i = 0..count-1 on all threads that have time, this one included; rethrows what a piece
  /// throws.
  template <class F>
  void each(std::size_t count, const F& piece) {
    if (alone() || count < 2) {
      for (std::size_t i = 0; i < count; ++i) piece(i);
      return;
    }
    Job job{count, &piece, [](const void* context, std::size_t i) { (*static_cast<const F*>(context))(i); }};
    {
      const std::scoped_lock lock(mutex_);
      jobs_.push_back(&job);
    }
    announce();
    job.work();
    while (true) {
      const unsigned seen = news_.load();
      {
        const std::scoped_lock lock(mutex_);
        std::erase(jobs_, &job);  // nobody else begins
        if (job.helpers == 0) break;
      }
      if (!help()) wait_for_news(seen);
    }
    if (job.failure) std::rethrow_exception(job.failure);
  }

 private:
  struct Job {
    std::size_t count;
    const void* context;
    void (*call)(const void*, std::size_t);
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr failure{};
    int helpers = 0;  // guarded by the team's mutex

    void work() {
      try {
        for (std::size_t i = next++; i < count; i = next++) call(context, i);
      } catch (...) {
        if (!failed.exchange(true)) failure = std::current_exception();
        next = count;
      }
    }
  };

  void announce() {
    ++news_;
    news_.notify_all();
  }
  // Work comes in quick succession: going to sleep and being woken take longer than most waits. Others may have the
  // core meanwhile.
  void wait_for_news(unsigned seen) {
    ++idle_;
    for (int i = 0; i < looks && news_.load() == seen; ++i)
      if (i % 64 == 63) std::this_thread::yield();
    if (news_.load() == seen) news_.wait(seen);
    --idle_;
  }
  // Helps with the newest job that has pieces left; false when there is none.
  bool help() {
    Job* job = nullptr;
    {
      const std::scoped_lock lock(mutex_);
      for (std::size_t i = jobs_.size(); i-- > 0 && job == nullptr;)
        if (jobs_[i]->next.load() < jobs_[i]->count) job = jobs_[i];
      if (job == nullptr) return false;
      ++job->helpers;
    }
    ++helped_;
    job->work();
    {
      const std::scoped_lock lock(mutex_);
      --job->helpers;
    }
    announce();
    return true;
  }
  void help_until_end() {
    while (!ended_) {
      const unsigned seen = news_.load();
      if (!help() && !ended_) wait_for_news(seen);
    }
  }

  static constexpr int looks = 30'000;  // about a tenth of a millisecond

  std::mutex mutex_;
  std::vector<Job*> jobs_;  // with pieces that nobody has begun, perhaps
  std::atomic<unsigned> news_{0};
  std::atomic<int> idle_{0};
  std::atomic<std::size_t> helped_{0};
  std::atomic<bool> ended_{false};
  std::vector<std::jthread> helpers_;  // last: they end before the rest does
};

}  // namespace galvatron
