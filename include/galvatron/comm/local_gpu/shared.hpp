// What ranks on one GPU share beside the control plane: the fences by which their streams wait for each other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <galvatron/comm/local_gpu/stream.hpp>

namespace galvatron::comm::local_gpu {

/// Made before the ranks and outlives them. Errors: what the device throws when it has no more fences.
template <Stream S>
class Shared {
 public:
  using Fence = typename S::Fence;

  /// What a member of a group tells the others.
  struct Member {
    Fence ready;                             ///< its buffers are as its caller left them
    Fence done;                              ///< its part of a collective
    std::atomic<std::uint64_t> launched{0};  ///< collectives of which the device has been given its part
  };
  /// Blocks of one rank to another in one lane.
  struct Link {
    Fence ready;  ///< what is posted last
    Fence taken;  ///< what is taken last
  };

  /// The members of the group of these ranks, in its order. They stay where they are.
  Member* members(std::span<const int> ranks) {
    const std::scoped_lock lock(mutex_);
    auto& members = members_[std::vector<int>(ranks.begin(), ranks.end())];
    if (members == nullptr) members = std::make_unique<Member[]>(ranks.size());
    return members.get();
  }
  Link& link(int from, int to, int lane) {
    const std::scoped_lock lock(mutex_);
    return links_[{from, to, lane}];
  }

 private:
  std::mutex mutex_;
  std::map<std::vector<int>, std::unique_ptr<Member[]>> members_;
  std::map<std::array<int, 3>, Link> links_;
};

}  // namespace galvatron::comm::local_gpu
