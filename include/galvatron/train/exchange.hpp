// Exchange: moving activations (or their gradients) from one layout to another, inside a stage or between two.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/train/placed_pieces.hpp>

namespace galvatron::train {

/// The parts of a bundle on a rank: (tokens, samples, width) each.
template <class T>
using ActivationBundle = std::array<View<T>, most_parts>;

/// What one rank sends and receives when a micro-batch's bundle (model/graph.hpp) changes from one layout to another.
/// Made once; every use only fills in addresses.
class Exchange {
 public:
  Exchange() = default;
  /// @param from, to       layouts of the model's sequence
  /// @param rank           this rank of the world; in `from`, in `to` or in both
  /// @param element_bytes  bytes of an element; a token of a part has `width` of them
  /// @param lane           of the blocks; the same on both sides
  Exchange(ActivationLayout from, ActivationLayout to, const Bundle& bundle, int rank, std::int64_t element_bytes,
           int lane)
      : lane_(lane) {
    const std::int64_t sequence = from.sequence;
    for (std::size_t i = 0; i < bundle.size(); ++i) {
      if (!bundle[i].tokens.any()) continue;
      from.sequence = to.sequence = bundle[i].tokens.of(sequence);
      add(parts_[i], from, to, rank, bundle[i].width * element_bytes);
      scratch_.reserve(std::max(parts_[i].sends.size(), parts_[i].receives.size()));
    }
  }

  /// Offers this rank's pieces of `local`, which stays as it is until wait_sent().
  template <class T>
  void post(comm::World& world, const ActivationBundle<T>& local) {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (!parts_[i].sends.empty()) world.post(pieces_at(parts_[i].sends, local[i], scratch_));
  }
  /// Takes this rank's pieces into `local`.
  template <class T>
  void receive(comm::World& world, const ActivationBundle<T>& local) {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      if (!parts_[i].receives.empty()) world.receive(pieces_at(parts_[i].receives, local[i], scratch_));
  }
  /// Returns when all that was posted has been taken.
  void wait_sent(comm::World& world) {
    if (std::ranges::any_of(parts_, [](const Part& part) { return !part.sends.empty(); })) world.wait_sent(lane_);
  }

 private:
  struct Part {
    std::vector<PlacedPiece> sends, receives;
  };

  void add(Part& part, const ActivationLayout& from, const ActivationLayout& to, int rank,
           std::int64_t token_bytes) const {
    // Sender and receiver go through the pieces in the same order.
    const auto each_piece = [&](const ActivationLayout& peers, const auto& f) {
      for (int peer = peers.first_rank; peer < peers.first_rank + peers.ranks(); ++peer)
        for (int i = 0; i < from.pieces(); ++i)
          for (int j = 0; j < to.pieces(); ++j) f(peer, i, j);
    };
    if (from.holds(rank))
      each_piece(to, [&](int peer, int i, int j) {
        add(part.sends, peer, transfer(from, to, rank, peer, i, j), from, rank, i, token_bytes);
      });
    if (to.holds(rank))
      each_piece(from, [&](int peer, int i, int j) {
        add(part.receives, peer, transfer(from, to, peer, rank, i, j), to, rank, j, token_bytes);
      });
  }
  // `moved` lies in piece `piece` of what `rank` holds; pieces lie one after the other.
  void add(std::vector<PlacedPiece>& pieces, int peer, const Region& moved, const ActivationLayout& layout, int rank,
           int piece, std::int64_t token) const {
    if (moved.empty()) return;
    const Region local = layout.region(rank, piece);
    const std::int64_t before = piece == 0 ? 0 : layout.region(rank, 0).tokens();
    pieces.push_back(placed_piece(moved, local, before, peer, token, lane_));
  }

  int lane_ = 0;
  std::array<Part, most_parts> parts_;
  std::vector<comm::Piece> scratch_;
};

}  // namespace galvatron::train
