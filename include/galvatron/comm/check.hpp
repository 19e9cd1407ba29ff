// What every communicator asks of its callers' arguments; who disagrees gets a Failure (internal) with the numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <galvatron/comm/elements.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm {

/// "rank 3", "ranks 0, 2 and 3"
inline std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// The whole of all_gather or reduce_scatter is one shard for each member.
/// @param rank  the caller, of the world  @param members  of the group  @param shard, all  elements
inline void check_whole(const char* what, int rank, int members, std::int64_t shard, std::int64_t all) {
  if (all != shard * members)
    throw Failure(ErrorKind::internal, std::string(what) + " on rank " + std::to_string(rank) + ": the whole has " +
                                           std::to_string(all) + " elements, but " + std::to_string(members) +
                                           " members with a shard of " + std::to_string(shard) + " make " +
                                           std::to_string(shard * members));
}

/// What all_to_all sends and receives are as many elements, an equal block for each member.
inline void check_blocks(int rank, int members, std::int64_t from, std::int64_t to) {
  if (from != to || from % members != 0)
    throw Failure(ErrorKind::internal, "all_to_all on rank " + std::to_string(rank) + ": " + std::to_string(from) +
                                           " elements to send and " + std::to_string(to) +
                                           " to receive are not equal blocks for " + std::to_string(members) +
                                           " members");
}

/// A shift gives and takes as many elements.
inline void check_shift(std::int64_t from, std::int64_t to) {
  if (from != to)
    throw Failure(ErrorKind::internal, "a shift of " + std::to_string(from) + " elements into " + std::to_string(to));
}

/// The root of a broadcast is a member.
inline void check_root(int root, int members) {
  if (root < 0 || root >= members)
    throw Failure(ErrorKind::internal, "broadcast from member " + std::to_string(root) + " of a group of " +
                                           std::to_string(members) + "; members are numbered from 0");
}

/// A group is made of ranks of the world, each once, the caller among them.
inline void check_members(std::span<const int> ranks, int rank, int world) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world)
      throw Failure(ErrorKind::internal, "a group names rank " + std::to_string(ranks[i]) + " of a world of " +
                                             std::to_string(world) + " ranks");
    if (std::ranges::find(ranks.first(i), ranks[i]) != ranks.first(i).end())
      throw Failure(ErrorKind::internal, "a group names rank " + std::to_string(ranks[i]) + " twice");
  }
  if (std::ranges::find(ranks, rank) == ranks.end())
    throw Failure(ErrorKind::internal, "rank " + std::to_string(rank) + " asks for a group of " + rank_list(ranks) +
                                           ", to which it does not belong");
}

/// Blocks have sizes, and peers in the world.
inline void check_pieces(std::span<const Piece> pieces, int world) {
  for (const Piece& piece : pieces)
    if (piece.peer < 0 || piece.peer >= world || piece.lane < 0 || piece.rows < 0 || piece.row_bytes < 0)
      throw Failure(ErrorKind::internal, "a block of " + std::to_string(piece.rows) + " rows of " +
                                             std::to_string(piece.row_bytes) + " bytes for rank " +
                                             std::to_string(piece.peer) + " in a world of " + std::to_string(world) +
                                             " ranks");
}

}  // namespace galvatron::comm
