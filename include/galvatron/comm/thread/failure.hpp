// Who failed first: the one fact that all ranks share when something goes wrong.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// The text of an exception, in one line as its thrower wrote it.
inline std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// The first failure of a job. Safe to use from all threads.
class FirstFailure {
 public:
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// Notes a failure; only the first one counts. True if this was it.
  bool record(int rank, std::exception_ptr failure) {
    const std::scoped_lock lock(mutex_);
    if (failure_) return false;
    failure_ = std::move(failure);
    rank_ = rank;
    try {
      message_ = "rank " + std::to_string(rank) + " failed: " + message_of(failure_);
    } catch (const std::bad_alloc&) {  // may be the failure itself
      message_ = "a rank failed";
    }
    failed_.store(true, std::memory_order_release);
    return true;
  }

  /// Tells a rank that another one has failed.
  [[noreturn]] void throw_to_peer() const {
    const std::scoped_lock lock(mutex_);
    throw PeerFailure(message_);
  }

  /// "rank 2 failed: disk full"; empty if none has.
  [[nodiscard]] std::string message() const {
    const std::scoped_lock lock(mutex_);
    return message_;
  }
  /// The rank that failed first, or -1.
  [[nodiscard]] int rank() const {
    const std::scoped_lock lock(mutex_);
    return rank_;
  }

  /// The original exception, or null.
  [[nodiscard]] std::exception_ptr get() const {
    const std::scoped_lock lock(mutex_);
    return failure_;
  }

 private:
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  std::exception_ptr failure_;
  std::string message_;
  int rank_ = -1;
};

}  // namespace galvatron::comm::thread
