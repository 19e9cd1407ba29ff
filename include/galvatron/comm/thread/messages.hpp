// Messages between two rank threads: what worlds and groups do with the channels of a job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// Takes the next block of a peer in the piece's lane, by copy(from, to); its bytes are as many as the piece's. Errors:
/// a Failure that names both sizes if they are not; PeerFailure when the peer cannot send it any more.
template <class Copy>
void receive_block(Job& job, int rank, const Piece& piece, Copy&& copy) {
  Channel& channel = job.lanes(piece.peer, rank)[piece.lane];
  job.wait(
      rank, job.endpoint(rank).inbox, [&] { return channel.ready(); }, [&] { return job.failure().failed(); },
      [&] { return job.ended(piece.peer) && !channel.ready(); },
      [&](bool) { return text("rank ", piece.peer, " did not send a block of ", piece.bytes(), " bytes"); });
  if (job.failure().failed()) job.throw_failure(rank);
  const auto offered = channel.front();
  if (offered) check_sent(rank, piece, offered->bytes());
  if (!offered || !channel.take(piece, copy)) {
    if (job.failure().failed()) job.throw_failure(rank);
    throw PeerFailure(text("rank ", piece.peer, " took back a block that rank ", rank, " waited for"));
  }
  if (channel.drained()) job.endpoint(piece.peer).sent.ring();
}

/// Where a rank has posted blocks.
struct Target {
  int peer;
  int lane;
  Channel* channel;

  [[nodiscard]] bool concerns(int which) const { return which == every_lane || which == lane; }
};

/// Returns when every block that `rank` has posted in this lane, or in every_lane, has been taken; false if one cannot
/// be taken any more.
inline bool wait_taken(Job& job, int rank, std::span<const Target> targets, int lane) {
  const auto waits_for = [&](const Target& target) { return target.concerns(lane) && !target.channel->drained(); };
  const auto late = [&](bool only_ended) {
    std::vector<int> peers;
    for (const Target& target : targets)  // looked at first: who has ended takes no more
      if (!(only_ended && !job.ended(target.peer)) && waits_for(target)) peers.push_back(target.peer);
    return each_once(std::move(peers));
  };
  job.wait(
      rank, job.endpoint(rank).sent, [&] { return std::ranges::none_of(targets, waits_for); },
      [&] { return job.failure().failed(); }, [&] { return !late(true).empty(); },
      [&](bool only_ended) {
        std::int64_t blocks = 0;
        for (const Target& target : targets)
          if (target.concerns(lane)) blocks += target.channel->waiting();
        return rank_list(late(only_ended)) + " did not take " + std::to_string(blocks) + " blocks";
      });
  return std::ranges::none_of(targets, waits_for);
}

}  // namespace galvatron::comm::thread
