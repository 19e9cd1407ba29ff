// What NCCL's status codes mean here, and who looks after a rank's communicators while the rank computes, or waits for
// a GPU that waits for a dead peer.
//
// A thread asks NCCL and the control plane for failures and looks at the clock. When something is wrong it aborts all
// communicators of the rank: kernels that wait for peers end, so do waits for those, and the next call throws.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <source_location>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/stream.hpp>

// Before 2.24 rank threads read memory that only another's GPU can; before 2.22 communicators were aborted one by one.
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 24, 0)
#error "galvatron: comm::nccl needs NCCL 2.24 or newer"
#endif

namespace galvatron::comm::nccl {

using Clock = std::chrono::steady_clock;

/// One line: NCCL's words, the last error that it logged, and the place of the call.
inline std::string text_of(ncclResult_t status, ncclComm_t comm, const std::source_location& where) {
  std::string text = std::string("NCCL: ") + ncclGetErrorString(status);
  if (const char* const last = ncclGetLastError(comm); last != nullptr && *last != '\0')
    text += ": " + galvatron::detail::one_line(last);
  return device::cuda::with_place(text, where);
}

/// True for what is no failure: done, or under way.
inline bool is_fine(ncclResult_t status) { return status == ncclSuccess || status == ncclInProgress; }

/// True for failures that may be another rank's.
inline bool is_remote(ncclResult_t status) { return status == ncclRemoteError || status == ncclSystemError; }

/// Throws what a call has to throw that was not fine: PeerFailure or DeviceFailure.
inline void check(ncclResult_t status, std::source_location where = std::source_location::current()) {
  if (is_fine(status)) return;
  if (is_remote(status)) throw PeerFailure(text_of(status, nullptr, where), where);
  throw DeviceFailure(text_of(status, nullptr, where), where);
}

/// What has become of the calls that a communicator was given.
inline ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t status = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &status);
  return is_fine(asked) ? status : asked;
}

class Watch {
 public:
  /// For the current GPU of the calling thread.
  /// @param control  knows what failed on other ranks, and warns them; outlives the watch
  /// @param timeout  how long a collective may take
  Watch(World& control, std::chrono::nanoseconds timeout)
      : control_(control), timeout_(timeout), thread_([this, device = current_device()](const std::stop_token& stop) {
          cudaSetDevice(device);
          run(stop);
        }) {}

  /// Calls `chore()` now and then, from another thread; empty: nothing more, and it is not being called.
  void set_chore(std::function<void()> chore) {
    const std::scoped_lock lock(chore_mutex_);
    chore_ = std::move(chore);
  }

  [[nodiscard]] std::chrono::nanoseconds timeout() const { return timeout_; }
  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }

  /// Guards the communicators: nobody aborts one that somebody uses.
  std::mutex& mutex() { return mutex_; }

  // All of these hold the mutex.
  void add(ncclComm_t* comm) { comms_.push_back(comm); }
  void remove(ncclComm_t* comm) { std::erase(comms_, comm); }
  /// Throws what was found out.
  void check() const {
    if (failed()) throw PeerFailure(failure_);
  }
  /// Notes a failure and aborts all communicators.
  void fail(const std::string& text) {
    if (!failed()) {
      failure_ = text;
      failed_.store(true, std::memory_order_release);
    }
    end_all(ncclCommAbort);
  }
  /// The same for what this rank may be the first to know. The others are told before anything is aborted, because that
  /// may take until they have aborted theirs.
  void fail_and_warn(const std::string& text) {
    if (failed()) return fail(failure_);
    if (const auto told = control_.failure()) return fail(*told);
    control_.warn(text);
    fail(text);
  }
  /// The same for a status of NCCL, and throws: with what is known of the peer, if it is one that failed.
  [[noreturn]] void fail(ncclResult_t status, ncclComm_t comm, std::unique_lock<std::mutex>& lock,
                         std::source_location where = std::source_location::current()) {
    const std::string text = text_of(status, comm, where);
    if (!is_remote(status)) {
      fail_and_warn("rank " + std::to_string(control_.rank()) + " failed: " + text);
      throw DeviceFailure(text, where);
    }
    lock.unlock();
    std::optional<std::string> told;
    for (int i = 0; i < 20 && !(told = control_.failure()); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    lock.lock();
    fail(told ? *told : "rank " + std::to_string(control_.rank()) + " lost a peer: " + text);
    throw PeerFailure(failure_, where);
  }
  /// What was given to the stream has to end in time; `what` names it.
  void started(const device::cuda::Stream& stream, std::string what) {
    forget_done();
    device::cuda::Event done = spare_.empty() ? device::cuda::Event() : std::move(spare_.back());
    if (!spare_.empty()) spare_.pop_back();
    done.record(stream);
    started_.push_back({std::move(done), Clock::now(), std::move(what)});
  }

  /// Ends all communicators, when no stream is at work any more, and does no more chores. All come to their end before
  /// one is destroyed: processes of a node keep each other's connections until then, and destroy them in any order.
  void close() noexcept {
    set_chore({});
    const std::scoped_lock lock(mutex_);
    bool fine = !failed();
    for (ncclComm_t* comm : comms_)
      if (fine && *comm != nullptr) fine = is_fine(ncclCommFinalize(*comm));
    const auto limit = Clock::now() + std::chrono::seconds(10);
    for (ncclComm_t* comm : comms_)
      while (fine && *comm != nullptr && state_of(*comm) != ncclSuccess) {
        fine = is_fine(state_of(*comm)) && Clock::now() < limit;
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    end_all(fine ? ncclCommDestroy : ncclCommAbort);
  }

 private:
  struct Started {
    device::cuda::Event done;
    Clock::time_point since;
    std::string what;
  };

  static int current_device() {
    int device = 0;
    cudaGetDevice(&device);
    return device;
  }
  // In one group: all are told to stop before NCCL waits for any of them, and it waits for all at once.
  void end_all(ncclResult_t (*end)(ncclComm_t)) {
    ncclGroupStart();
    for (ncclComm_t* comm : comms_)
      if (*comm != nullptr) end(std::exchange(*comm, nullptr));
    ncclGroupEnd();
  }
  void run(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      wake_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
      if (!failed()) look(lock);
    }
  }
  void look(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    const std::optional<std::string> told = control_.failure();
    try {
      const std::scoped_lock chore_lock(chore_mutex_);
      if (chore_) chore_();
    } catch (const std::exception&) {  // who asks next is told
    }
    lock.lock();
    if (told) return fail(*told);
    for (ncclComm_t* comm : comms_) {
      const ncclResult_t status = *comm == nullptr ? ncclSuccess : state_of(*comm);
      if (!is_fine(status))
        return fail("rank " + std::to_string(control_.rank()) +
                    " lost a peer: " + text_of(status, *comm, std::source_location::current()));
    }
    forget_done();  // of the others the first is the oldest
    if (started_.empty() || Clock::now() - started_.front().since < timeout_) return;
    fail_and_warn(gave_up(control_.rank(), timeout_, "the " + started_.front().what + " did not end"));
  }
  void forget_done() {
    for (; !started_.empty() && started_.front().done.passed(); started_.pop_front())
      spare_.push_back(std::move(started_.front().done));
  }

  World& control_;
  std::chrono::nanoseconds timeout_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::vector<ncclComm_t*> comms_;
  std::deque<Started> started_;
  std::vector<device::cuda::Event> spare_;
  std::mutex chore_mutex_;
  std::function<void()> chore_;
  std::atomic<bool> failed_{false};
  std::string failure_;
  std::jthread thread_;  // the last: it uses all of these
};

}  // namespace galvatron::comm::nccl
