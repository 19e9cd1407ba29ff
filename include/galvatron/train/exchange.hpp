// Moving activations (or their gradients) from one layout to another, inside a stage or between two: an Exchange one
// value, a Border all that cross it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

/// What one rank sends and receives when a micro-batch's activations change from one layout to another. Made once;
/// every use only fills in addresses.
class Exchange {
 public:
  Exchange() = default;
  /// @param rank           this rank of the world; in `from`, in `to` or in both
  /// @param element_bytes  bytes of an element; a token has `hidden` of them
  /// @param lane           of the blocks; the same on both sides
  Exchange(const ActivationLayout& from, const ActivationLayout& to, int rank, std::int64_t hidden,
           std::int64_t element_bytes, int lane)
      : lane_(lane) {
    const std::int64_t token = hidden * element_bytes;
    // Sender and receiver go through the pieces in the same order.
    const auto each_piece = [&](const auto& f) {
      for (int i = 0; i < from.pieces(); ++i)
        for (int j = 0; j < to.pieces(); ++j) f(i, j);
    };
    if (from.holds(rank))
      for (int peer = to.first_rank; peer < to.first_rank + to.ranks(); ++peer)
        each_piece(
            [&](int i, int j) { add(sends_, peer, transfer(from, to, rank, peer, i, j), from, rank, i, token); });
    if (to.holds(rank))
      for (int peer = from.first_rank; peer < from.first_rank + from.ranks(); ++peer)
        each_piece(
            [&](int i, int j) { add(receives_, peer, transfer(from, to, peer, rank, i, j), to, rank, j, token); });
    scratch_.reserve(sends_.size() > receives_.size() ? sends_.size() : receives_.size());
  }

  /// Offers this rank's parts of `local`, which stays as it is until wait_sent().
  template <class T>
  void post(comm::World& world, View<T> local) {
    if (!sends_.empty()) world.post(at(sends_, local));
  }
  /// Takes this rank's parts into `local`.
  template <class T>
  void receive(comm::World& world, View<T> local) {
    if (!receives_.empty()) world.receive(at(receives_, local));
  }
  /// Returns when all that was posted has been taken.
  void wait_sent(comm::World& world) {
    if (!sends_.empty()) world.wait_sent(lane_);
  }

 private:
  struct Part {
    comm::Piece piece;
    std::int64_t offset;  ///< bytes from the start of the local tensor
  };
  // `part` lies in piece `piece` of what `rank` holds; pieces lie one after the other.
  void add(std::vector<Part>& parts, int peer, const Region& part, const ActivationLayout& layout, int rank, int piece,
           std::int64_t token) const {
    if (part.empty()) return;
    const Region local = layout.region(rank, piece);
    const std::int64_t samples = local.batch_end - local.batch_begin;
    const std::int64_t offset = (piece * local.tokens() + (part.sequence_begin - local.sequence_begin) * samples +
                                 part.batch_begin - local.batch_begin) *
                                token;
    parts.push_back({{.peer = peer,
                      .rows = part.sequence_end - part.sequence_begin,
                      .row_bytes = (part.batch_end - part.batch_begin) * token,
                      .stride_bytes = samples * token,
                      .lane = lane_},
                     offset});
  }
  template <class T>
  std::span<const comm::Piece> at(const std::vector<Part>& parts, View<T> local) {
    scratch_.clear();
    for (const Part& part : parts) {
      scratch_.push_back(part.piece);
      if (local.data != nullptr) scratch_.back().data = reinterpret_cast<std::byte*>(local.data) + part.offset;
    }
    return scratch_;
  }

  int lane_ = 0;
  std::vector<Part> sends_;
  std::vector<Part> receives_;
  std::vector<comm::Piece> scratch_;
};

/// The parts of a bundle on a rank: (tokens, samples, width) each.
template <class T>
using ActivationBundle = std::array<View<T>, most_parts>;

/// The bundle of values that crosses from one layer to the next (model/graph.hpp), inside a chunk or between two.
class Border {
 public:
  Border() = default;
  /// @param from, to  layouts of the model's sequence  @param bundle  that crosses. The others as for Exchange
  Border(ActivationLayout from, ActivationLayout to, const Bundle& bundle, int rank, std::int64_t element_bytes,
         int lane) {
    const std::int64_t sequence = from.sequence;
    for (std::size_t i = 0; i < bundle.size(); ++i) {
      if (!bundle[i].tokens.any()) continue;
      from.sequence = to.sequence = bundle[i].tokens.of(sequence);
      parts_[i] = Exchange(from, to, rank, bundle[i].width, element_bytes, lane);
    }
  }

  /// As the members of Exchange.
  template <class T>
  void post(comm::World& world, const ActivationBundle<T>& local) {
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].post(world, local[i]);
  }
  template <class T>
  void receive(comm::World& world, const ActivationBundle<T>& local) {
    for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i].receive(world, local[i]);
  }
  void wait_sent(comm::World& world) {
    for (Exchange& part : parts_) part.wait_sent(world);
  }

 private:
  std::array<Exchange, most_parts> parts_;
};

}  // namespace galvatron::train
