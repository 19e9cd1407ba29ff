// Relayout: moving a value from one set of ranks to another, each with a layout of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

/// A value on ranks of the world: `layout` numbers them from 0 and is not in zigzag. Its first token is token `first`
/// of the sequence that both sides of a move have in common.
struct PlacedValue {
  std::span<const int> ranks;
  ActivationLayout layout;
  std::int64_t first = 0;

  /// The number of a rank of the world; -1: it has nothing of the value.
  [[nodiscard]] int local(int rank) const {
    const auto found = std::ranges::find(ranks, rank);
    return found == ranks.end() ? -1 : static_cast<int>(found - ranks.begin());
  }
  [[nodiscard]] int world(int local) const { return ranks[static_cast<std::size_t>(local)]; }
  /// What a rank holds, in the common sequence.
  [[nodiscard]] Region region(int local) const {
    Region out = layout.region(local);
    out.sequence_begin += first;
    out.sequence_end += first;
    return out;
  }
};

/// What one rank sends and receives when a value moves. Of replicas that hold what a rank wants, that rank itself sends
/// if it is one of them, and else the replicas take turns. Made once; every use only fills in addresses.
class Relayout {
 public:
  Relayout() = default;
  /// @param token_bytes  bytes of a token  @param rank  of the world  @param lane  the same on both sides
  Relayout(const PlacedValue& from, const PlacedValue& to, std::int64_t token_bytes, int rank, int lane) : lane_(lane) {
    // Sender and receiver go through the pieces in the same order.
    for (int receiver = 0; receiver < to.layout.ranks(); ++receiver)
      for (int sender = 0; sender < from.layout.ranks(); ++sender) {
        const bool sends = from.world(sender) == rank;
        const bool receives = to.world(receiver) == rank;
        if ((!sends && !receives) || !serves(from, to, sender, receiver)) continue;
        const Region moved = intersection(from.region(sender), to.region(receiver));
        if (moved.empty()) continue;
        if (sends) sends_.push_back(piece(moved, from.region(sender), to.world(receiver), token_bytes));
        if (receives) receives_.push_back(piece(moved, to.region(receiver), from.world(sender), token_bytes));
      }
    scratch_.reserve(std::max(sends_.size(), receives_.size()));
  }

  /// Offers this rank's pieces of `local`, which stays as it is until they have been taken.
  template <class T>
  void post(comm::World& world, View<T> local) {
    if (!sends_.empty()) world.post(at(sends_, local));
  }
  /// Takes this rank's pieces into `local`.
  template <class T>
  void receive(comm::World& world, View<T> local) {
    if (!receives_.empty()) world.receive(at(receives_, local));
  }

 private:
  struct PlacedPiece {
    comm::Piece piece;
    std::int64_t offset;  ///< bytes from the start of the local tensor
  };

  static bool serves(const PlacedValue& from, const PlacedValue& to, int sender, int receiver) {
    if (from.layout.replicas == 1) return true;
    const ActivationLayout::Place own = from.layout.place(sender);
    if (const int same = from.local(to.world(receiver)); same >= 0)
      if (const ActivationLayout::Place place = from.layout.place(same);
          place.part == own.part && place.data == own.data)
        return same == sender;
    return own.replica == receiver % from.layout.replicas;
  }
  [[nodiscard]] PlacedPiece piece(const Region& moved, const Region& local, int peer, std::int64_t token) const {
    const std::int64_t samples = local.batch_end - local.batch_begin;
    return {{.peer = peer,
             .rows = moved.sequence_end - moved.sequence_begin,
             .row_bytes = (moved.batch_end - moved.batch_begin) * token,
             .stride_bytes = samples * token,
             .lane = lane_},
            ((moved.sequence_begin - local.sequence_begin) * samples + moved.batch_begin - local.batch_begin) * token};
  }
  template <class T>
  std::span<const comm::Piece> at(const std::vector<PlacedPiece>& pieces, View<T> local) {
    scratch_.clear();
    for (const PlacedPiece& placed : pieces) {
      scratch_.push_back(placed.piece);
      if (local.data != nullptr) scratch_.back().data = reinterpret_cast<std::byte*>(local.data) + placed.offset;
    }
    return scratch_;
  }

  int lane_ = 0;
  std::vector<PlacedPiece> sends_, receives_;
  std::vector<comm::Piece> scratch_;
};

}  // namespace galvatron::train
