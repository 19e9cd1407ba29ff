// BackgroundThread: work that goes on beside training, one piece after the other.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include <galvatron/core/error.hpp>

namespace galvatron::train {

/// Runs the tasks that it is given in their order. After an error it runs no more, and the error stays.
class BackgroundThread {
 public:
  /// A task looks at the token now and then, and ends early when a stop is requested.
  using Task = std::function<Result<void>(const std::stop_token&)>;

  /// Throws DeviceFailure if the system refuses a thread.
  /// @param at_start  called once on the thread
  explicit BackgroundThread(std::function<void()> at_start = {}) {
    try {
      thread_ = std::jthread([this, start = std::move(at_start)](const std::stop_token& stop) {
        if (start) start();
        run(stop);
      });
    } catch (const std::system_error& e) {
      throw DeviceFailure("cannot start the thread that writes checkpoints: " + e.code().message() +
                          "; allow more processes (ulimit -u) and memory (ulimit -v), or train with fewer ranks");
    }
  }
  BackgroundThread(const BackgroundThread&) = delete;
  BackgroundThread& operator=(const BackgroundThread&) = delete;
  ~BackgroundThread() = default;  // requests a stop and joins

  void post(Task task) {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }
  /// Ends the thread: the task at hand is asked to stop, and runs no more once this returns.
  void end() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }
  /// Returns when all tasks are done or one has failed, or after that time. True for the former.
  bool wait_for(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, longest, [&] { return is_idle(); });
  }
  /// The first error of a task.
  [[nodiscard]] std::optional<Error> error() {
    const std::scoped_lock lock(mutex_);
    return error_;
  }

 private:
  [[nodiscard]] bool is_idle() const { return error_ || (tasks_.empty() && !busy_); }

  static Result<void> result_of(const Task& task, const std::stop_token& stop) {
    try {
      return task(stop);
    } catch (const Failure& failure) {
      return tl::unexpected<Error>(Error{failure.kind(), failure.what()});
    } catch (const std::exception& failure) {
      return tl::unexpected<Error>(Error{ErrorKind::machine, failure.what()});
    }
  }
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !tasks_.empty() && !error_; })) {
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      busy_ = true;
      lock.unlock();
      auto done = result_of(task, stop);
      lock.lock();
      busy_ = false;
      if (!done) error_ = std::move(done.error());
      changed_.notify_all();
      if (stop.stop_requested()) return;
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  std::optional<Error> error_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace galvatron::train
