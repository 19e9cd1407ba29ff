// Moving the optimizer's state between the memories of ranks when the plan changes while they train.
//
// Every rank keeps a copy of what it has under the plan before, tells the others what that is, and fetches what it
// needs under the plan behind it and has not:
//
//   all ranks   pieces of my copy: (layer, parameter, state, slice, byte)      -- gathered by all
//   rank 1      wants rows 0-95 of 3.qkv_weight; has rows 0-63                 -- asks a rank that has the others
//   rank 2      sends rows 64-95 from its copy                                 -- nobody sends what is not asked for
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <galvatron/checkpoint/slice.hpp>
#include <galvatron/checkpoint/state_images.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>

namespace galvatron::train {

/// All that a rank keeps of the optimizer's state, copied, with its pieces.
class KeptState {
 public:
  /// A piece of the copy of a rank; travels as bytes.
  struct Piece {
    int layer = 0;
    ParameterName parameter{};
    StateKind state{};
    TensorSlice slice;
    std::int64_t begin = 0;  ///< byte of the copy's data
    int rank = 0;            ///< that has it
  };

  /// Takes the memory of the copy, and the copy.
  /// @param stage  as of Snapshot
  template <class D, class Stage>
  KeptState(D& device, Stage& stage, int rank) : snapshot_(stage, Copied::everything) {
    snapshot_.take(device, stage);
    std::int64_t at = 0;
    stage.visit([&](const runtime::StoreView& store) {
      for_each_copied_slice(
          store, Copied::everything, [&](const ParameterTensor& tensor, std::int64_t, const TensorSlice& slice) {
            for (const StateKind state : {StateKind::master, StateKind::first_moment, StateKind::second_moment}) {
              pieces_.push_back({store.layer, tensor.name, state, slice, at, rank});
              at += slice.count() * 4;
            }
          });
    });
  }
  /// As a rank's file, to be read by StateImages::add().
  [[nodiscard]] std::span<const std::byte> file() const { return snapshot_.bytes(); }
  [[nodiscard]] const std::vector<Piece>& pieces() const { return pieces_; }
  [[nodiscard]] const std::byte* data() const { return snapshot_.data(); }

 private:
  Snapshot snapshot_;
  std::vector<Piece> pieces_;
};

namespace detail {

/// Writes down what a stage reads when it is restored, and gives it zeros.
class WantedState : public StateReader<WantedState> {
 public:
  /// @param shapes  knows those of all parameters, and outlives this
  explicit WantedState(const StateImages& shapes) : shapes_(shapes) {}
  [[nodiscard]] const std::vector<std::pair<StateKey, TensorSlice>>& slices() const { return slices_; }

  [[nodiscard]] bool has(int layer) const { return shapes_.has(layer); }
  [[nodiscard]] TensorShape shape(int layer, ParameterName parameter) const { return shapes_.shape(layer, parameter); }
  void read(int layer, ParameterName parameter, StateKind state, const TensorSlice& slice, float* out) const {
    slices_.emplace_back(StateKey{layer, parameter, state}, slice);
    std::fill_n(out, slice.count(), 0.0F);
  }

 private:
  const StateImages& shapes_;
  mutable std::vector<std::pair<StateKey, TensorSlice>> slices_;
};

}  // namespace detail

/// Collective: puts the state of a stage, which has taken its memory, together from what all ranks have kept.
/// @param control  the world for memory of the program
/// @param model    a ModelSpec or a MultiTaskModel, with the layers of both plans
/// @param frozen   the parameters that are not trained, which nobody keeps
/// @return  bytes that this rank got of others
template <class Model, class Stage>
std::int64_t move_states(comm::World& control, const KeptState& kept, const Model& model, Stage& stage,
                         const runtime::ParameterSource& frozen = {}) {
  using Piece = KeptState::Piece;
  comm::Group& everybody = control.everybody();
  const int ranks = control.size();
  const int self = control.rank();

  // What everybody has.
  std::vector<std::int64_t> ends(static_cast<std::size_t>(ranks));
  const auto own = static_cast<std::int64_t>(kept.pieces().size());
  everybody.all_gather(View<const std::int64_t>(&own, 1), View<std::int64_t>(ends.data(), ranks));
  for (int i = 1; i < ranks; ++i) ends[static_cast<std::size_t>(i)] += ends[static_cast<std::size_t>(i - 1)];
  std::vector<Piece> all(static_cast<std::size_t>(ends.back()));
  everybody.all_gather(View<const Piece>(kept.pieces().data(), own), View<Piece>(all.data(), ends.back()), ends);
  // Of equal pieces each rank prefers its own, and then those of the ranks behind it, so that not all ask the same one.
  const auto distance = [&](const Piece& piece) { return (piece.rank - self + ranks) % ranks; };
  std::ranges::stable_sort(all, {}, distance);
  std::map<StateKey, std::vector<Piece>> found;
  for (const Piece& piece : all) found[{piece.layer, piece.parameter, piece.state}].push_back(piece);

  // What this rank asks the others for: strided parts of their copies, which come one behind the other.
  struct Request {
    std::int64_t begin = 0;
    std::int64_t rows = 0;
    std::int64_t row_bytes = 0;
    std::int64_t stride_bytes = 0;
  };
  struct Arrival {
    StateKey key;
    TensorSlice slice;
    std::int64_t begin = 0;  // of the bytes that come from this peer
  };
  std::vector<std::vector<Request>> asked(static_cast<std::size_t>(ranks));
  std::vector<std::vector<Arrival>> arrivals(static_cast<std::size_t>(ranks));
  std::vector<std::int64_t> bytes(static_cast<std::size_t>(ranks));
  StateImages images(model);
  for (const Piece& piece : kept.pieces())
    images.add({piece.layer, piece.parameter, piece.state}, piece.slice, kept.data() + piece.begin);
  const detail::WantedState wanted_state(images);
  restore(stage, wanted_state, [](int, const ParameterTensor&, std::int64_t, View<float> values) {
    std::fill(values.begin(), values.end(), 0.0F);
  });
  for (const auto& [key, slice] : wanted_state.slices())
    cover(slice, found[key], [&](const Piece& piece, const TensorSlice& part) {
      if (piece.rank == self) return;
      const auto peer = static_cast<std::size_t>(piece.rank);
      const std::int64_t first = (part.row - piece.slice.row) * piece.slice.columns + part.column - piece.slice.column;
      asked[peer].push_back({piece.begin + first * 4, part.rows, part.columns * 4, piece.slice.columns * 4});
      arrivals[peer].push_back({key, part, bytes[peer]});
      bytes[peer] += part.count() * 4;
    });

  // The requests, and then what was asked for.
  std::vector<std::int64_t> counts, wanted(static_cast<std::size_t>(ranks));
  for (const auto& to : asked) counts.push_back(std::ssize(to));
  everybody.all_to_all(View<const std::int64_t>(counts.data(), ranks), View<std::int64_t>(wanted.data(), ranks));
  std::vector<std::vector<Request>> given(static_cast<std::size_t>(ranks));
  std::vector<std::vector<std::byte>> fetched(static_cast<std::size_t>(ranks));
  const comm::SendGuard guard(control);
  const auto flat = [](int peer, auto& values) {
    return comm::Piece::flat(peer, reinterpret_cast<std::byte*>(values.data()),
                             std::ssize(values) * static_cast<std::int64_t>(sizeof values[0]));
  };
  std::vector<comm::Piece> sends, receives;
  for (int peer = 0; peer < ranks; ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    given[i].resize(static_cast<std::size_t>(wanted[i]));
    fetched[i].resize(static_cast<std::size_t>(bytes[i]));
    if (!asked[i].empty()) sends.push_back(flat(peer, asked[i]));
    if (!given[i].empty()) receives.push_back(flat(peer, given[i]));
  }
  control.post(sends);
  control.receive(receives);
  control.wait_sent();
  sends.clear();
  receives.clear();
  for (int peer = 0; peer < ranks; ++peer) {
    const auto i = static_cast<std::size_t>(peer);
    for (const Request& request : given[i])
      sends.push_back({.peer = peer,
                       .data = const_cast<std::byte*>(kept.data()) + request.begin,
                       .rows = request.rows,
                       .row_bytes = request.row_bytes,
                       .stride_bytes = request.stride_bytes});
    for (const Arrival& arrival : arrivals[i]) {
      std::byte* const to = fetched[i].data() + arrival.begin;
      receives.push_back(comm::Piece::flat(peer, to, arrival.slice.count() * 4));
      images.add(arrival.key, arrival.slice, to);
    }
  }
  control.post(sends);
  control.receive(receives);
  control.wait_sent();
  restore(stage, images, frozen);
  return std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
}

}  // namespace galvatron::train
