// Reshard: moves a value from one set of ranks to another, each with a layout of its own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/plan/placed_value.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

/// What one rank sends and receives when a value moves (moved_between). Made once; every use only fills in addresses.
class Reshard {
 public:
  Reshard() = default;
  /// @param token_bytes  bytes of a token  @param rank  of the world  @param lane  the same on both sides
  Reshard(const PlacedValue& from, const PlacedValue& to, std::int64_t token_bytes, int rank, int lane) : lane_(lane) {
    // Sender and receiver go through the pieces in the same order.
    for (int receiver = 0; receiver < to.layout.ranks(); ++receiver)
      for (int sender = 0; sender < from.layout.ranks(); ++sender) {
        const bool sends = from.world(sender) == rank;
        const bool receives = to.world(receiver) == rank;
        if (!sends && !receives) continue;
        const Region moved = moved_between(from, to, sender, receiver);
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
