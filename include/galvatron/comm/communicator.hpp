// The Communicator concept: groups of ranks and what they say to each other.
//
// A Group is one rank's handle on an ordered set of ranks (a tensor-parallel, a data-parallel or the whole group). All
// members call the same operations in the same order. Reductions add in rank order, so results are bit-equal from run
// to run and the same on every member. A failure on any rank ends every rank's call with PeerFailure.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include <galvatron/core/view.hpp>

namespace galvatron::comm {

enum class ReduceOp : std::uint8_t { sum, max };

/// A strided block of memory to or from one peer: `rows` runs of `row_bytes`, `stride_bytes` apart.
/// `peer` is a rank of the world. A block to oneself is a copy. Blocks travel in lanes: a receiver takes them from the
/// lane that it names, whatever lies in the others.
struct Piece {
  int peer = 0;
  std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t row_bytes = 0;
  std::int64_t stride_bytes = 0;
  int lane = 0;
};

template <class G>
concept Group = requires(G& g, View<float> f, View<const float> cf, View<double> d, typename G::Pending& pending) {
  { g.rank() } -> std::convertible_to<int>;  ///< this rank's index in the group
  { g.size() } -> std::convertible_to<int>;
  /// In place; float, bfloat16 (summed in float, rounded once), double, int32.
  g.all_reduce(f, ReduceOp::sum);
  g.all_reduce(d, ReduceOp::sum);
  /// all (size * n) = the members' shards (n) in rank order; shard may be its own place in `all`.
  g.all_gather(cf, f);
  /// shard (n) = sum over members of all[rank * n, rank * n + n); shard may be its own place in `all`, whose other
  /// elements are left unspecified.
  g.reduce_scatter(f, f);
  /// from (size * n), to (size * n): block i of `to` is block rank of member i's `from`. The two do not overlap.
  g.all_to_all(cf, f);
  g.broadcast(f, /*root=*/0);
  /// One step around the ring of the members, while the caller computes: `from` (n) goes to the next member, and `to`
  /// (n) comes from the one before. Both are left alone until finish_shifts(), which ends all that were started. Shifts
  /// arrive in the order in which they were started.
  g.start_shift(cf, f);
  g.finish_shifts();
  g.barrier();
  /// The same, begun now and complete when finished: in between nobody touches the data. All members start the same
  /// ones in the same order, and finish them in the same order among their calls of this group; what is not finished
  /// when the world ends is void. To finish nothing, a Pending{}, does nothing.
  { g.start_all_reduce(f, ReduceOp::sum) } -> std::same_as<typename G::Pending>;
  { g.start_all_gather(cf, f) } -> std::same_as<typename G::Pending>;
  { g.start_reduce_scatter(f, f) } -> std::same_as<typename G::Pending>;
  g.finish(pending);
};

template <class W>
concept World = requires(W& w, std::span<const int> ranks, std::span<const Piece> pieces) {
  typename W::Group;
  { w.rank() } -> std::convertible_to<int>;
  { w.size() } -> std::convertible_to<int>;
  /// The group of these world ranks, in this order; the calling rank is one of them. Groups of the same ranks are the
  /// same group. Not collective. Handles stay valid as long as the world.
  { w.group(ranks) } -> std::same_as<typename W::Group&>;
  { w.everybody() } -> std::same_as<typename W::Group&>;
  /// The same ranks in a world for memory of the program, where w is for memory of a device; else w itself.
  typename W::Control;
  { w.control() } -> std::same_as<typename W::Control&>;
  /// Offers blocks to their peers and returns; the memory must stay as it is until wait_sent(). Blocks of one lane
  /// between one pair of ranks arrive in the order in which they were posted.
  w.post(pieces);
  /// Takes blocks from their peers, in order; returns when all have arrived. Sizes must match what was posted.
  w.receive(pieces);
  /// Returns when every block posted by this rank has been taken: all of them, or those of one lane.
  w.wait_sent();
  w.wait_sent(/*lane=*/0);
};

/// Throws PeerFailure if a rank is known to have failed. Where calls only give a device its work, a failure ends that
/// work, and what was computed since means nothing. Worlds whose calls wait have thrown by themselves (`check` does not
/// exist).
template <class W>
void check_peers(W& world) {
  if constexpr (requires { world.check(); }) world.check();
}

}  // namespace galvatron::comm
