// Pieces of a tensor that a rank sends or receives, made once; every use only fills in addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/strategy/layout.hpp>

namespace galvatron::train {

struct PlacedPiece {
  comm::Piece piece;
  std::int64_t offset;  ///< bytes from the start of the local tensor
};

/// The part `moved` of a region that lies in the local tensor `before` tokens from its start.
/// @param token_bytes  bytes of a token of one sample
inline PlacedPiece placed_piece(const Region& moved, const Region& local, std::int64_t before, int peer,
                                std::int64_t token_bytes, int lane) {
  const std::int64_t samples = local.batch_end - local.batch_begin;
  const std::int64_t first =
      before + (moved.sequence_begin - local.sequence_begin) * samples + moved.batch_begin - local.batch_begin;
  return {{.peer = peer,
           .rows = moved.sequence_end - moved.sequence_begin,
           .row_bytes = (moved.batch_end - moved.batch_begin) * token_bytes,
           .stride_bytes = samples * token_bytes,
           .lane = lane},
          first * token_bytes};
}

/// The pieces at their addresses in `local`, in `scratch`.
template <class T>
std::span<const comm::Piece> pieces_at(const std::vector<PlacedPiece>& pieces, View<T> local,
                                       std::vector<comm::Piece>& scratch) {
  scratch.clear();
  for (const PlacedPiece& placed : pieces) {
    scratch.push_back(placed.piece);
    if (local.data != nullptr) scratch.back().data = reinterpret_cast<std::byte*>(local.data) + placed.offset;
  }
  return scratch;
}

}  // namespace galvatron::train
