// Where the data of rank threads lie, and their blocks from one to another: what worlds and groups do with the channels
// of a job.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/elements.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/reduce.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// Copies and adds in the memory of the program, which is as it was left; a device works later than it is told to, and
/// overrides all.
///
///   rank 0   offer, meet --> expect 1, work, offer, meet --> expect 1
///   rank 1   offer, meet --> expect 0, work, offer, meet --> expect 0
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  [[nodiscard]] virtual bool on_device() const { return false; }
  /// What this rank was told to do so far is what others may expect().
  virtual void offer() {}
  /// What this rank is told to do from now on comes behind what `rank` has offered last.
  virtual void expect(int rank) { static_cast<void>(rank); }
  /// For the way out of a failure: returns when what `rank` has offered is done.
  virtual void wait(int rank) noexcept { static_cast<void>(rank); }

  /// See copy_piece().
  virtual void copy(const Piece& from, const Piece& to) { copy_piece(from, to); }
  /// See comm::reduce().
  virtual void reduce(ElementType type, std::span<std::byte* const> sources, std::span<std::byte* const> destinations,
                      std::int64_t n, ReduceOp op) {
    comm::reduce(type, sources, destinations, n, op);
  }
};

/// Lane of what groups shift; those of World::post() are not negative.
inline constexpr int shift_lane = -2;

/// Blocks that one rank sends and receives; see World::post(), receive(), wait_sent() and withdraw().
class Blocks {
 public:
  Blocks(Job& job, Memory& memory, int rank) : job_(job), memory_(memory), rank_(rank) {}

  void post(std::span<const Piece> pieces) {
    if (job_.failed()) job_.throw_failure(rank_);
    memory_.offer();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      target_of(piece).channel->push(piece);
      if (i + 1 == pieces.size() || pieces[i + 1].peer != piece.peer) job_.endpoint(piece.peer).inbox.ring();
    }
  }

  void receive(const Piece& piece) {
    Channel& channel = job_.channel(memory_.on_device(), piece.peer, rank_, piece.lane);
    if (piece.peer == rank_ && !channel.ready()) throw_not_posted(rank_);
    const auto ready = [&] { return channel.ready(); };
    const auto failed = [&] { return job_.failed(); };
    const auto late = [&](bool only_ended) {
      return std::vector<int>((!only_ended || job_.ended(piece.peer)) && !ready() ? 1 : 0, piece.peer);
    };
    job_.wait(rank_, job_.endpoint(rank_).inbox, ready, failed, late,
              [&] { return text("send a block of ", piece.bytes(), " bytes"); });
    if (failed()) job_.throw_failure(rank_);
    const auto copy = [&](const Piece& from, const Piece& to) {
      check_sent(rank_, to, from.bytes());
      memory_.expect(to.peer);
      memory_.copy(from, to);
      memory_.offer();
    };
    if (!channel.take(piece, copy)) {
      if (failed()) job_.throw_failure(rank_);
      throw PeerFailure(text("rank ", piece.peer, " took back a block that rank ", rank_, " waited for"));
    }
    if (channel.drained()) job_.endpoint(piece.peer).sent.ring();
  }

  void wait_sent(int lane) {
    const auto waits_for = [&](const Target& target) { return target.concerns(lane) && !target.channel->drained(); };
    const auto all_taken = [&] { return std::ranges::none_of(targets_, waits_for); };
    for (const Target& target : targets_)
      if (target.peer == rank_ && waits_for(target)) throw_not_received(rank_);
    const auto late = [&](bool only_ended) {
      std::vector<int> peers;
      for (const Target& target : targets_)
        if ((!only_ended || job_.ended(target.peer)) && waits_for(target)) peers.push_back(target.peer);
      return each_once(std::move(peers));
    };
    const auto what = [&] {
      std::int64_t blocks = 0;
      for (const Target& target : targets_)
        if (target.concerns(lane)) blocks += target.channel->waiting();
      return text("take ", blocks, " blocks");
    };
    job_.wait(rank_, job_.endpoint(rank_).sent, all_taken, [&] { return job_.failed(); }, late, what);
    if (!all_taken()) {
      withdraw();
      job_.throw_failure(rank_);
    }
    for (const Target& target : targets_)
      if (target.concerns(lane)) memory_.expect(target.peer);
  }

  void withdraw() noexcept {
    for (const Target& target : targets_) target.channel->withdraw();
  }

 private:
  // Where blocks were posted.
  struct Target {
    int peer;
    int lane;
    Channel* channel;
    [[nodiscard]] bool concerns(int which) const { return which == lane || (which == every_lane && lane >= 0); }
  };

  // Allocates on first use of a lane to a peer only.
  Target& target_of(const Piece& piece) {
    for (Target& target : targets_)
      if (target.peer == piece.peer && target.lane == piece.lane) return target;
    Channel& channel = job_.channel(memory_.on_device(), rank_, piece.peer, piece.lane);
    return targets_.emplace_back(Target{piece.peer, piece.lane, &channel});
  }

  Job& job_;
  Memory& memory_;
  int rank_;
  std::vector<Target> targets_;
};

}  // namespace galvatron::comm::thread
