// Messages between two rank threads: what worlds and groups do with the channels of a job.
#pragma once

#include <string>

#include <galvatron/comm/communicator.hpp>
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
      [&](bool) {
        return "rank " + std::to_string(piece.peer) + " did not send a block of " + std::to_string(bytes_of(piece)) +
               " bytes";
      });
  if (job.failure().failed()) job.throw_failure(rank);
  const auto offered = channel.front();
  if (offered && bytes_of(*offered) != bytes_of(piece))
    throw Failure(ErrorKind::internal, "rank " + std::to_string(rank) + " receives a block of " +
                                           std::to_string(bytes_of(piece)) + " bytes, but rank " +
                                           std::to_string(piece.peer) + " sent one of " +
                                           std::to_string(bytes_of(*offered)) + " bytes");
  if (!offered || !channel.take(piece, copy)) {
    if (job.failure().failed()) job.throw_failure(rank);
    throw PeerFailure("rank " + std::to_string(piece.peer) + " took back a block that rank " + std::to_string(rank) +
                      " waited for");
  }
  if (channel.drained()) job.endpoint(piece.peer).sent.ring();
}

/// Returns when `peer` has taken every block that `rank` offered it in this lane.
inline void wait_taken(Job& job, int rank, int peer, int lane) {
  const Channel& channel = job.lanes(rank, peer)[lane];
  job.wait(
      rank, job.endpoint(rank).sent, [&] { return channel.drained(); }, [&] { return job.failure().failed(); },
      [&] { return job.ended(peer) && !channel.drained(); },
      [&](bool) {
        return "rank " + std::to_string(peer) + " did not take " + std::to_string(channel.waiting()) + " blocks";
      });
  if (!channel.drained()) job.throw_failure(rank);
}

}  // namespace galvatron::comm::thread
