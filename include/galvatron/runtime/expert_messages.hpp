// The messages of tokens on their way to experts and back: rows of views, from and to ranks of the group.
#pragma once

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
  ExpertMessages(comm::World& world, const comm::Group& experts) : world_(world), experts_(experts) {}

  /// `count` rows of `width` elements from row `first` on, to or from a rank of the group.
  template <class U>
  void send(std::int64_t peer, View<U> rows, std::int64_t width, std::int64_t first, std::int64_t count) {
    out_.push_back(piece(peer, rows, width, first, count));
  }
  template <class U>
  void receive(std::int64_t peer, View<U> rows, std::int64_t width, std::int64_t first, std::int64_t count) {
    in_.push_back(piece(peer, rows, width, first, count));
  }
  /// Returns when all have arrived.
  void deliver() {
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
  std::vector<comm::Piece> out_;
  std::vector<comm::Piece> in_;
};

/// On a device that only counts, what a rank sends to the members of a group, as equal parts of `elements`.
template <class U>
void count_exchange(comm::Group& group, std::int64_t elements) {
  const std::int64_t all = round_up(elements, static_cast<std::int64_t>(group.size()));
  group.all_to_all(View<const U>(nullptr, all), View<U>(nullptr, all));
}

}  // namespace galvatron::runtime
