// What the rank threads of one run share: the first failure, the meetings of the groups, the channels between pairs.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/comm/check.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/failure.hpp>
#include <galvatron/comm/thread/meeting.hpp>
#include <galvatron/comm/thread/wait.hpp>

namespace galvatron::comm::thread {

/// Settings of a run of rank threads.
struct Options {
  /// How long a rank waits for another one before it gives up with PeerFailure.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  /// Cores that the ranks share, which decides how they wait; 0: the cores that this process may use.
  int cores = 0;
};

/// The shared state of a world of rank threads.
class Job {
 public:
  struct Endpoint {
    Doorbell inbox;                  // rings when a block is posted to this rank
    Doorbell sent;                   // rings when all blocks of this rank in one lane to one peer have been taken
    std::atomic<bool> ended{false};  // the body has returned
  };

  Job(int ranks, const Options& options)
      : size_(ranks),
        options_(options),
        policy_(WaitPolicy::of(ranks, options.cores > 0 ? options.cores : usable_cores())),
        endpoints_(std::make_unique<Endpoint[]>(static_cast<std::size_t>(ranks))),
        lanes_(std::make_unique<Lanes[]>(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks))) {}

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] const FirstFailure& failure() const { return failure_; }
  [[nodiscard]] Endpoint& endpoint(int rank) { return endpoints_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] Lanes& lanes(int from, int to) {
    return lanes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(to)];
  }

  /// The meeting of these ranks; the same for the same ranks in the same order.
  Meeting& meeting(std::span<const int> ranks) {
    const std::scoped_lock lock(mutex_);
    auto& meeting = meetings_[std::vector<int>(ranks.begin(), ranks.end())];
    if (meeting == nullptr) {
      meeting = std::make_unique<Meeting>(std::vector<int>(ranks.begin(), ranks.end()));
      if (failure_.failed()) meeting->spoil();
    }
    return *meeting;
  }

  /// Notes that a rank has failed and ends all waits. Later failures are its consequences and are not kept.
  void fail(int rank, std::exception_ptr failure) {
    if (!failure_.record(rank, std::move(failure))) return;
    const std::scoped_lock lock(mutex_);
    for (auto& [ranks, meeting] : meetings_) meeting->spoil();
    ring_endpoints();
  }

  /// Notes that a rank's body has returned, so that nobody waits for it any more.
  void end(int rank) {
    endpoint(rank).ended.store(true, std::memory_order_release);
    some_ended_.store(true, std::memory_order_release);
    const std::scoped_lock lock(mutex_);
    for (auto& [ranks, meeting] : meetings_) meeting->bell.ring();
    ring_endpoints();
  }
  [[nodiscard]] bool ended(int rank) const {
    return endpoints_[static_cast<std::size_t>(rank)].ended.load(std::memory_order_acquire);
  }

  /// Waits until `ready()` or `failed()`. If the timeout passes, or if `cannot_come()` because a rank has ended, this
  /// rank fails, and so do all others; `who_is_missing(only_ended)` says who did not do what.
  template <class Ready, class Failed, class CannotCome, class Missing>
  void wait(int rank, Doorbell& bell, Ready&& ready, Failed&& failed, CannotCome&& cannot_come,
            Missing&& who_is_missing) {
    const auto in_vain = [&] { return some_ended_.load(std::memory_order_acquire) && cannot_come(); };
    const bool in_time = wait_until(bell, policy_, options_.timeout, [&] { return ready() || failed() || in_vain(); });
    if (ready() || failed()) return;
    fail(rank, std::make_exception_ptr(PeerFailure(in_time ? waits_in_vain(rank, who_is_missing(true))
                                                           : gave_up(rank, options_.timeout, who_is_missing(false)))));
  }

  /// Throws what this rank has to throw once the job has failed: its own failure or the news of another's.
  [[noreturn]] void throw_failure(int rank) const {
    if (failure_.rank() == rank) std::rethrow_exception(failure_.get());
    failure_.throw_to_peer();
  }

 private:
  void ring_endpoints() {
    for (int r = 0; r < size_; ++r) {
      endpoint(r).inbox.ring();
      endpoint(r).sent.ring();
    }
  }

  int size_;
  Options options_;
  WaitPolicy policy_;
  FirstFailure failure_;
  std::atomic<bool> some_ended_{false};
  std::mutex mutex_;
  std::map<std::vector<int>, std::unique_ptr<Meeting>> meetings_;
  std::unique_ptr<Endpoint[]> endpoints_;
  std::unique_ptr<Lanes[]> lanes_;
};

}  // namespace galvatron::comm::thread
