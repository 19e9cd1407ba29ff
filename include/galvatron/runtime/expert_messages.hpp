// The messages of tokens on their way to experts and back: rows of views, from and to ranks of the group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/runtime/context.hpp>

namespace galvatron::runtime {

/// Messages that a rank sends and gets at the same time.
class ExpertMessages {
 public:
  /// @param sent_bytes  to other ranks, counted here where it is not null
  ExpertMessages(comm::World& world, const comm::Group& experts, std::int64_t* sent_bytes)
      : world_(world), experts_(experts), sent_bytes_(sent_bytes) {}

  /// `count` rows of `width` elements from row `first` on, to or from a rank of the group.
  template <class U>
  void send(std::int64_t peer, View<U> rows, std::int64_t width, std::int64_t first, std::int64_t count) {
    out_.push_back(piece(peer, rows, width, first, count));
  }
  template <class U>
  void receive(std::int64_t peer, View<U> rows, std::int64_t width, std::int64_t first, std::int64_t count) {
    in_.push_back(piece(peer, rows, width, first, count));
  }
  /// Returns when all have arrived. A rank sends to the next one first, then to the one behind it, and so on, so that
  /// all receive all the time.
  void deliver() {
    const int ranks = world_.size();
    std::ranges::stable_sort(
        out_, {}, [&](const comm::Piece& piece) { return (piece.peer - world_.rank() - 1 + ranks) % ranks; });
    if (sent_bytes_ != nullptr)
      for (const comm::Piece& piece : out_)
        if (piece.peer != world_.rank()) *sent_bytes_ += piece.rows * piece.row_bytes;
    world_.post(out_);
    world_.receive(in_);
    world_.wait_sent(lane);
  }

 private:
  static constexpr int lane = 0;

  template <class U>
  comm::Piece piece(std::int64_t peer, View<U> rows, std::int64_t width, std::int64_t first, std::int64_t count) const {
    return comm::Piece::flat(experts_.ranks()[static_cast<std::size_t>(peer)],
                             reinterpret_cast<std::byte*>(rows.data + first * width),
                             count * width * static_cast<std::int64_t>(sizeof(U)), lane);
  }

  comm::World& world_;
  const comm::Group& experts_;
  std::int64_t* sent_bytes_;
  std::vector<comm::Piece> out_;
  std::vector<comm::Piece> in_;
};

template <class D>
ExpertMessages expert_messages(const Context<D>& context) {
  return {context.world, context.experts, context.dispatch.sent_bytes};
}

/// On a device that only counts, what a rank sends to the members of a group, as equal parts of `elements`.
template <class U>
void count_exchange(comm::Group& group, std::int64_t elements) {
  const std::int64_t all = round_up(elements, static_cast<std::int64_t>(group.size()));
  group.all_to_all(View<const U>(nullptr, all), View<U>(nullptr, all));
}

}  // namespace galvatron::runtime
