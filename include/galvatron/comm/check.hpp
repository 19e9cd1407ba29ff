// What every communicator asks of its callers' arguments, where a Failure (internal) has the numbers that are wrong;
// and the words of a rank that stops waiting.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <galvatron/core/error.hpp>

namespace galvatron::comm {

/// Texts and whole numbers, one after the other.
template <class... Parts>
std::string text(const Parts&... parts) {
  const auto text_of = [](const auto& part) {
    if constexpr (std::is_integral_v<std::remove_cvref_t<decltype(part)>>)
      return std::to_string(part);
    else
      return std::string(part);
  };
  return (std::string() + ... + text_of(parts));
}

/// "rank 3", "ranks 0, 2 and 3"
inline std::string rank_list(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0) text += i + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(ranks[i]);
  }
  return text;
}

/// The ranks in ascending order, each once.
inline std::vector<int> each_once(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  ranks.erase(std::ranges::unique(ranks).begin(), ranks.end());
  return ranks;
}

/// The whole of all_gather or reduce_scatter is one shard for each member.
/// @param rank  the caller, of the world  @param members  of the group  @param shard, all  elements
inline void check_whole(const char* what, int rank, int members, std::int64_t shard, std::int64_t all) {
  if (all != shard * members)
    throw Failure(ErrorKind::internal, text(what, " on rank ", rank, ": the whole has ", all, " elements, but ",
                                            members, " members with a shard of ", shard, " make ", shard * members));
}

/// What all_to_all sends and receives are as many elements, an equal block for each member.
inline void check_blocks(int rank, int members, std::int64_t from, std::int64_t to) {
  if (from != to || from % members != 0)
    throw Failure(ErrorKind::internal, text("all_to_all on rank ", rank, ": ", from, " elements to send and ", to,
                                            " to receive are not equal blocks for ", members, " members"));
}

/// A shift gives and takes as many elements.
inline void check_shift(std::int64_t from, std::int64_t to) {
  if (from != to) throw Failure(ErrorKind::internal, text("a shift of ", from, " elements into ", to));
}

/// The root of a broadcast is a member.
inline void check_root(int root, int members) {
  if (root < 0 || root >= members)
    throw Failure(ErrorKind::internal,
                  text("broadcast from member ", root, " of a group of ", members, "; members are numbered from 0"));
}

/// A group is made of ranks of the world, each once, the caller among them.
inline void check_members(std::span<const int> ranks, int rank, int world) {
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= world)
      throw Failure(ErrorKind::internal, text("a group names rank ", ranks[i], " of a world of ", world, " ranks"));
    if (std::ranges::find(ranks.first(i), ranks[i]) != ranks.first(i).end())
      throw Failure(ErrorKind::internal, "a group names rank " + std::to_string(ranks[i]) + " twice");
  }
  if (std::ranges::find(ranks, rank) == ranks.end())
    throw Failure(ErrorKind::internal,
                  text("rank ", rank, " asks for a group of ", rank_list(ranks), ", to which it does not belong"));
}

/// A run has ranks.
inline void check_rank_count(int ranks) {
  if (ranks < 1) throw Failure(ErrorKind::usage, "a run needs at least 1 rank, not " + std::to_string(ranks));
}

/// "rank 0 gave up after 0.7 s: rank 1 did not send a block"
inline std::string gave_up(int rank, std::chrono::nanoseconds timeout, const std::string& who_did_not) {
  std::string seconds = std::to_string(std::chrono::duration<double>(timeout).count());
  seconds.erase(std::max(seconds.find_last_not_of('0') + 1, seconds.find('.') + 2));
  return "rank " + std::to_string(rank) + " gave up after " + seconds + " s: " + who_did_not;
}
/// "rank 0 waits in vain: rank 1 did not send a block before the end"
inline std::string waits_in_vain(int rank, const std::string& who_did_not) {
  return "rank " + std::to_string(rank) + " waits in vain: " + who_did_not + " before the end";
}

}  // namespace galvatron::comm
