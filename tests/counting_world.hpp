// One rank of a world that does not exist: it counts what would be said, and says nothing.
//
// Layer code that runs on device::Counting uses it as its Communicator, for a world of any size and as any of its
// ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/op/work.hpp>

namespace galvatron::comm::counting {

/// Counts the collectives of one group, when they are started. Data are never touched and may be null. A group of one
/// rank has nothing to say and counts nothing.
class Group final : public comm::Group {
 public:
  Group(std::span<const int> ranks, int world_rank, std::vector<op::Work>* log)
      : comm::Group(ranks, world_rank), log_(log) {
    if (size() > 1) stride_ = std::max(1, std::abs(ranks[1] - ranks[0]));
  }

 private:
  void do_finish_shifts() override {}
  void do_run(const Collective& called) override {
    switch (called.kind) {
      case CallKind::all_reduce:  // bytes per rank
        return count(op::Kind::all_reduce, called.to, size());
      case CallKind::all_gather:  // the bytes gathered
        return count(op::Kind::all_gather, called.to, size());
      case CallKind::reduce_scatter:  // the bytes per rank before
        return count(op::Kind::reduce_scatter, called.from, size());
      case CallKind::all_to_all:  // the bytes per rank before or after, of the rank that has most
        return count(op::Kind::all_to_all, {.count = called.most_exchanged()}, size());
      case CallKind::broadcast:  // the bytes sent to each
        return count(op::Kind::broadcast, called.to, size());
      case CallKind::shift:  // a message to a rank of the group, or from one
        return count(op::Kind::send, called.from.count < called.to.count ? called.to : called.from, 1, size());
      case CallKind::barrier:
        break;
    }
  }
  Pending do_start(const Collective& called) override {
    run(called);
    return {};
  }

  void count(op::Kind kind, const Elements& data, int n, int k = 0) {
    if (size() == 1) return;
    op::Work work;
    work.kind = kind;
    work.m = data.bytes();
    work.n = n;
    work.k = k;
    work.stride = stride_;
    log_->push_back(work);
  }

  int stride_ = 1;  // the groups of a plan have equal gaps
  std::vector<op::Work>* log_;
};

/// Counts what one rank says. Never waits.
class World final : public comm::World {
 public:
  /// Appends to `log`, which outlives the world.
  World(int rank, int size, std::vector<op::Work>* log) : comm::World(rank, size), log_(log) {
    if (rank < 0 || rank >= size)
      throw Failure(ErrorKind::internal, text_of("rank ", rank, " of a world of ", size, " ranks"));
  }

  Group& group(std::span<const int> ranks) override { return groups_.find(*this, ranks, ranks, rank(), log_); }

 private:
  /// Counts one message to each peer: all bytes for it in this call. Blocks to oneself are not messages.
  void do_post(std::span<const Piece> pieces) override {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const int peer = pieces[i].peer;
      const auto same = [&](const Piece& piece) { return piece.peer == peer; };
      if (peer == rank() || std::ranges::any_of(pieces.first(i), same)) continue;
      op::Work work;
      work.kind = op::Kind::send;
      work.n = 1;
      for (const Piece& piece : pieces.subspan(i))
        if (same(piece)) work.m += piece.bytes();
      log_->push_back(work);
    }
  }
  void do_receive(std::span<const Piece>) override {}
  void do_wait_sent(int) override {}

  std::vector<op::Work>* log_;
  Groups<Group> groups_;
};

}  // namespace galvatron::comm::counting
