// What the rank threads of one run share: the first failure, the meetings of the groups, the channels between pairs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/host.hpp>
#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/wait.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// Bytes up to which a member's data travels through the meeting's own memory, which saves the second round. Beyond
/// this, reading everybody's data costs more than the round (measured with 4 and 8 ranks on 2 cores).
inline constexpr std::int64_t small_bytes = 8192;

/// A meeting of the members of a group: a barrier with a memory of what each member came for.
///
/// The barrier counts arrivals for ever: round r is complete when n * r have arrived. A failure sets the top bit of the
/// same word, and nobody arrives after that; so whether a round was completed before the failure is decided once, and
/// all members agree on it. That is what makes it safe to touch each other's memory between two meetings:
///
///   member 0  publish --arrive--> |      | touch memory of 1 and 2, finished --arrive--> |      | its memory is free
///   member 1  publish ----arrive> |opened| touch memory of 0 and 2, finished -arrive---> |closed|
///   member 2  publish -arrive---> |      | touch memory of 0 and 1, finished ----arrive> |      |
///
/// If the closing round fails, a member still waits until all that were let in have finished, which wait for nobody.
struct Meeting {
  struct alignas(64) Member {
    Collective calls[2];                     // of even and of odd calls
    std::atomic<std::uint64_t> rounds{0};    // entered so far, for the message of a timeout
    std::atomic<std::uint64_t> finished{0};  // calls after which this member touches no other's memory
    alignas(64) std::byte small[2][small_bytes];
  };

  explicit Meeting(std::size_t size) : members(std::make_unique<Member[]>(size)) {}

  static constexpr std::uint64_t poison = std::uint64_t{1} << 63;

  /// One more arrival, unless the meeting is poisoned. Rings if the round is complete.
  void arrive(std::uint64_t target) {
    std::uint64_t seen = arrivals.load(std::memory_order_relaxed);
    while ((seen & poison) == 0)
      if (arrivals.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel, std::memory_order_relaxed)) {
        if (seen + 1 == target) bell.ring();
        return;
      }
  }
  [[nodiscard]] bool complete(std::uint64_t target) const {
    return (arrivals.load(std::memory_order_acquire) & ~poison) >= target;
  }
  [[nodiscard]] bool poisoned() const { return (arrivals.load(std::memory_order_acquire) & poison) != 0; }
  void spoil() {
    arrivals.fetch_or(poison, std::memory_order_acq_rel);
    bell.ring();
  }

  const std::unique_ptr<Member[]> members;  ///< one per rank, in group order
  alignas(64) std::atomic<std::uint64_t> arrivals{0};
  Doorbell bell;
};

/// Settings of a run of rank threads.
struct Options {
  /// How long a rank waits for another one before it gives up with PeerFailure.
  std::chrono::nanoseconds timeout = std::chrono::minutes(10);
  /// Cores that the ranks share, which decides how they wait; 0: the cores that this process may use.
  int cores = 0;
};

/// The shared state of the ranks of a run. They may have a world for memory of the program and one for that of a
/// device, which share nothing but failures.
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
        endpoints_(std::make_unique<Endpoint[]>(static_cast<std::size_t>(ranks))) {}

  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] Endpoint& endpoint(int rank) { return endpoints_[static_cast<std::size_t>(rank)]; }

  /// The queue of one lane from one rank to another; stays where it is.
  Channel& channel(bool on_device, int from, int to, int lane) {
    const std::scoped_lock lock(mutex_);
    return channels_[{on_device ? 1 : 0, from, to, lane}];
  }
  /// The meeting of these ranks; the same for the same ranks in the same order.
  Meeting& meeting(bool on_device, std::span<const int> ranks) {
    const std::scoped_lock lock(mutex_);
    auto& meeting = meetings_[{on_device, std::vector<int>(ranks.begin(), ranks.end())}];
    if (meeting == nullptr) {
      meeting = std::make_unique<Meeting>(ranks.size());
      if (failed()) meeting->spoil();
    }
    return *meeting;
  }

  [[nodiscard]] bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Notes that a rank has failed and ends all waits. Later failures are its consequences and are not kept.
  void fail(int rank, std::exception_ptr failure) {
    const std::scoped_lock lock(mutex_);
    if (failure_ != nullptr || (failed() && rank != failed_rank_)) return;
    failure_ = std::move(failure);
    if (!failed()) spread(rank, [&] { return "rank " + std::to_string(rank) + " failed: " + message_of(failure_); });
  }
  /// Ends all waits because a rank will fail, which is to say `text`.
  void warn(int rank, const std::string& text) noexcept {
    const std::scoped_lock lock(mutex_);
    if (!failed()) spread(rank, [&] { return text; });
  }
  /// "rank 2 failed: disk full"; nothing if none has.
  [[nodiscard]] std::optional<std::string> failure() const {
    const std::scoped_lock lock(mutex_);
    return failed() ? std::optional(message_) : std::nullopt;
  }
  /// Throws what the first rank that failed has thrown, the same object.
  void rethrow_first() const {
    if (failed()) throw_failure(failed_rank_);
  }
  /// Throws what this rank has to throw once the job has failed: its own failure or the news of another's.
  [[noreturn]] void throw_failure(int rank) const {
    const std::scoped_lock lock(mutex_);
    if (failed_rank_ == rank && failure_ != nullptr) std::rethrow_exception(failure_);
    throw PeerFailure(message_);
  }

  /// Notes that a rank's body has returned, so that nobody waits for it any more.
  void end(int rank) {
    endpoint(rank).ended.store(true, std::memory_order_release);
    some_ended_.store(true, std::memory_order_release);
    const std::scoped_lock lock(mutex_);
    for (auto& [key, meeting] : meetings_) meeting->bell.ring();
    ring_endpoints();
  }
  [[nodiscard]] bool ended(int rank) const {
    return endpoints_[static_cast<std::size_t>(rank)].ended.load(std::memory_order_acquire);
  }

  /// Waits until `ready()` or `failed()`. If the timeout passes, or one of those waited for has ended, this rank fails,
  /// and so do all others.
  /// @param late  late(only_ended): the ranks waited for; it asks ended() before it looks what they have done
  /// @param what  what(): what they did not do
  template <class Ready, class Failed, class Late, class What>
  void wait(int rank, Doorbell& bell, Ready&& ready, Failed&& failed, Late&& late, What&& what) {
    const auto in_vain = [&] { return some_ended_.load(std::memory_order_acquire) && !late(true).empty(); };
    const bool in_time = wait_until(bell, policy_, options_.timeout, [&] { return ready() || failed() || in_vain(); });
    if (ready() || failed()) return;
    const std::string who_did_not = rank_list(late(in_time)) + " did not " + what();
    fail(rank, std::make_exception_ptr(PeerFailure(in_time ? waits_in_vain(rank, who_did_not)
                                                           : gave_up(rank, options_.timeout, who_did_not))));
  }

 private:
  template <class Text>
  void spread(int rank, Text&& text) {
    failed_rank_ = rank;
    try {
      message_ = text();
    } catch (const std::bad_alloc&) {  // may be the failure itself
      message_ = "a rank failed";
    }
    failed_.store(true, std::memory_order_release);
    for (auto& [key, meeting] : meetings_) meeting->spoil();
    ring_endpoints();
  }
  void ring_endpoints() {
    for (int r = 0; r < size_; ++r) {
      endpoint(r).inbox.ring();
      endpoint(r).sent.ring();
    }
  }

  int size_;
  Options options_;
  WaitPolicy policy_;
  std::atomic<bool> some_ended_{false};
  std::atomic<bool> failed_{false};
  std::unique_ptr<Endpoint[]> endpoints_;
  mutable std::mutex mutex_;  // of all that follows
  int failed_rank_ = -1;
  std::exception_ptr failure_;
  std::string message_;
  std::map<std::pair<bool, std::vector<int>>, std::unique_ptr<Meeting>> meetings_;
  std::map<std::array<int, 4>, Channel> channels_;  // by device or not, sender, receiver and lane
};

}  // namespace galvatron::comm::thread
