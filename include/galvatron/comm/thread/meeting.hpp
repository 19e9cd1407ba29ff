// A meeting of the members of a group: a barrier with a memory of what each member came for.
//
// The barrier counts arrivals for ever: round r is complete when n * r have arrived. A failure sets the top bit of the
// same word, and nobody arrives after that; so whether a round was completed before the failure is decided once, and
// all members agree on it. That is what makes it safe to touch each other's memory between two meetings:
//
//   member 0  publish --arrive--> |        | touch memory of 1 and 2, finished --arrive--> |       | its memory is free
//   member 1  publish ----arrive> | opened | touch memory of 0 and 2, finished -arrive---> | closed|
//   member 2  publish -arrive---> |        | touch memory of 0 and 1, finished ----arrive> |       |
//
// If the closing round fails, a member still waits until all that were let in have finished, which they do without
// waiting for anybody.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <galvatron/comm/call.hpp>
#include <galvatron/comm/thread/wait.hpp>

namespace galvatron::comm::thread {

/// Bytes up to which a member's data travels through the meeting's own memory, which saves the second round. Beyond
/// this, reading everybody's data costs more than the round (measured with 4 and 8 ranks on 2 cores).
inline constexpr std::int64_t small_bytes = 8192;

/// State that the members of one group share; owned by the job.
struct Meeting {
  struct alignas(64) Member {
    Call calls[2];                           // of even and of odd calls
    std::atomic<std::uint64_t> rounds{0};    // entered so far, for the message of a timeout
    std::atomic<std::uint64_t> finished{0};  // calls after which this member touches no other's memory
    alignas(64) std::byte small[2][small_bytes];
  };

  explicit Meeting(std::vector<int> world_ranks)
      : ranks(std::move(world_ranks)), members(std::make_unique<Member[]>(ranks.size())) {}

  static constexpr std::uint64_t poison = std::uint64_t{1} << 63;

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }

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

  const std::vector<int> ranks;             ///< world ranks, in group order
  const std::unique_ptr<Member[]> members;  ///< one per rank
  alignas(64) std::atomic<std::uint64_t> arrivals{0};
  Doorbell bell;
};

}  // namespace galvatron::comm::thread
