// Reshard: moves a value from one set of ranks to another, each with a layout of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/plan/placed_value.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/train/placed_pieces.hpp>

namespace galvatron::train {

/// What one rank sends and receives when a value moves (moved_between). Made once; every use only fills in addresses.
class Reshard {
 public:
  Reshard() = default;
  /// @param token_bytes  bytes of a token  @param rank  of the world  @param lane  the same on both sides
  Reshard(const PlacedValue& from, const PlacedValue& to, std::int64_t token_bytes, int rank, int lane) {
    // Sender and receiver go through the pieces in the same order.
    for (int receiver = 0; receiver < to.layout.ranks(); ++receiver)
      for (int sender = 0; sender < from.layout.ranks(); ++sender) {
        const bool sends = from.world(sender) == rank;
        const bool receives = to.world(receiver) == rank;
        if (!sends && !receives) continue;
        const Region moved = moved_between(from, to, sender, receiver);
        if (moved.empty()) continue;
        if (sends) sends_.push_back(placed_piece(moved, from.region(sender), 0, to.world(receiver), token_bytes, lane));
        if (receives)
          receives_.push_back(placed_piece(moved, to.region(receiver), 0, from.world(sender), token_bytes, lane));
      }
    scratch_.reserve(std::max(sends_.size(), receives_.size()));
  }

  /// Offers this rank's pieces of `local`, which stays as it is until they have been taken.
  template <class T>
  void post(comm::World& world, View<T> local) {
    if (!sends_.empty()) world.post(pieces_at(sends_, local, scratch_));
  }
  /// Takes this rank's pieces into `local`.
  template <class T>
  void receive(comm::World& world, View<T> local) {
    if (!receives_.empty()) world.receive(pieces_at(receives_, local, scratch_));
  }

 private:
  std::vector<PlacedPiece> sends_, receives_;
  std::vector<comm::Piece> scratch_;
};

}  // namespace galvatron::train
