// One rank of a world that does not exist: it counts what would be said, and says nothing.
//
// Layer code that runs on device::dry uses it as its Communicator, for a world of any size and as any of its ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/cost/work.hpp>

namespace galvatron::comm::dry {

/// Counts the collectives of one group; models comm::Group. Data are never touched and may be null. A group of one rank
/// has nothing to say and counts nothing.
class Group {
 public:
  Group(std::span<const int> ranks, int world_rank, std::vector<cost::Work>* log)
      : ranks_(ranks.begin(), ranks.end()),
        rank_(static_cast<int>(std::find(ranks.begin(), ranks.end(), world_rank) - ranks.begin())),
        log_(log) {
    if (ranks_.size() > 1) stride_ = std::max(1, std::abs(ranks_[1] - ranks_[0]));
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] std::span<const int> ranks() const { return ranks_; }

  /// Counts bytes per rank.
  template <class T>
  void all_reduce(View<T> data, ReduceOp = ReduceOp::sum) {
    count(cost::WorkKind::all_reduce, data);
  }
  /// Counts the bytes gathered.
  template <class T>
  void all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    check_whole("all_gather", world_rank(), size(), shard.count, all.count);
    count(cost::WorkKind::all_gather, all);
  }
  /// Counts the bytes per rank before.
  template <class T>
  void reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    check_whole("reduce_scatter", world_rank(), size(), shard.count, all.count);
    count(cost::WorkKind::reduce_scatter, all);
  }
  /// Counts the bytes per rank before.
  template <class T>
  void all_to_all(std::type_identity_t<View<const T>> from, View<T> to) {
    check_blocks(world_rank(), size(), from.count, to.count);
    count(cost::WorkKind::all_to_all, to);
  }
  /// Counts a message to a rank of the group.
  template <class T>
  void start_shift(std::type_identity_t<View<const T>> from, View<T>) {
    if (size() == 1) return;
    cost::Work work;
    work.kind = cost::WorkKind::send;
    work.m = from.count * static_cast<std::int64_t>(sizeof(T));
    work.n = 1;
    work.k = size();
    work.stride = stride_;
    log_->push_back(work);
  }
  void finish_shifts() {}
  /// Counts the bytes sent to each.
  template <class T>
  void broadcast(View<T> data, int root) {
    check_root(root, size());
    count(cost::WorkKind::broadcast, data);
  }
  void barrier() {}

  /// Counted when they are started.
  struct Pending {};
  template <class T>
  Pending start_all_reduce(View<T> data, ReduceOp op = ReduceOp::sum) {
    all_reduce(data, op);
    return {};
  }
  template <class T>
  Pending start_all_gather(std::type_identity_t<View<const T>> shard, View<T> all) {
    all_gather<T>(shard, all);
    return {};
  }
  template <class T>
  Pending start_reduce_scatter(std::type_identity_t<View<T>> all, View<T> shard) {
    reduce_scatter<T>(all, shard);
    return {};
  }
  void finish(Pending&) {}

 private:
  template <class T>
  void count(cost::WorkKind kind, View<T> data) {
    if (size() == 1) return;
    cost::Work work;
    work.kind = kind;
    work.m = data.count * static_cast<std::int64_t>(sizeof(T));
    work.n = size();
    work.stride = stride_;
    log_->push_back(work);
  }
  [[nodiscard]] int world_rank() const { return ranks_[static_cast<std::size_t>(rank_)]; }

  std::vector<int> ranks_;
  int rank_;
  int stride_ = 1;  // the groups of a plan have equal gaps
  std::vector<cost::Work>* log_;
};

/// Counts what one rank says; models comm::World. Never waits.
class World {
 public:
  using Group = galvatron::comm::dry::Group;

  /// Appends to `log`, which outlives the world.
  World(int rank, int size, std::vector<cost::Work>* log) : rank_(rank), size_(size), log_(log) {
    if (rank < 0 || rank >= size)
      throw Failure(ErrorKind::internal,
                    "rank " + std::to_string(rank) + " of a world of " + std::to_string(size) + " ranks");
    everybody_.resize(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) everybody_[static_cast<std::size_t>(i)] = i;
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// The group of these world ranks. Errors: a Failure if this rank is not one of them or one does not exist.
  Group& group(std::span<const int> ranks) {
    for (auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    check_members(ranks, rank_, size_);
    return *groups_.emplace_back(std::make_unique<Group>(ranks, rank_, log_));
  }
  /// The group of all ranks.
  Group& everybody() { return group(everybody_); }
  using Control = World;
  Control& control() { return *this; }

  /// Counts one message to each peer: all bytes for it in this call. Blocks to oneself are not messages.
  void post(std::span<const Piece> pieces) {
    const auto bytes = [](const Piece& piece) { return piece.rows * piece.row_bytes; };
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const int peer = pieces[i].peer;
      const auto same = [&](const Piece& piece) { return piece.peer == peer; };
      if (peer == rank_ || std::ranges::any_of(pieces.first(i), same)) continue;
      cost::Work work;
      work.kind = cost::WorkKind::send;
      work.n = 1;
      for (const Piece& piece : pieces.subspan(i))
        if (same(piece)) work.m += bytes(piece);
      log_->push_back(work);
    }
  }
  void receive(std::span<const Piece>) {}
  void wait_sent() {}
  void wait_sent(int) {}

 private:
  int rank_;
  int size_;
  std::vector<cost::Work>* log_;
  std::vector<int> everybody_;
  std::vector<std::unique_ptr<Group>> groups_;
};

static_assert(comm::World<World>);
static_assert(comm::Group<Group>);

}  // namespace galvatron::comm::dry
