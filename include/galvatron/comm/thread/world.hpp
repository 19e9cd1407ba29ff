// One rank's handle on a world of rank threads, and the function that starts them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/piece.hpp>
#include <galvatron/comm/thread/channel.hpp>
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/compiled.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// A rank of a world of threads. Every rank uses its own handle, and only from its own thread.
class World : public comm::World {
 public:
  World(Job& job, int rank) : World(job, program_memory(), rank) {}
  ~World() override { withdraw(); }

  Group& group(std::span<const int> ranks) override { return groups_.find(*this, ranks, job_, memory_, *this, ranks); }

  std::optional<std::string> failure() override { return job_.failure(); }
  void warn(const std::string& text) noexcept override { job_.warn(rank(), text); }

  /// A peer that still waits for a block that is taken back gets a PeerFailure.
  void withdraw() noexcept override {
    for (const Target& target : targets_) target.channel->withdraw();
    for (int peer = 0; peer < size(); ++peer) memory_.wait(peer);
  }

 protected:
  /// The same ranks' world for other memory.
  World(World& control, Memory& memory) : World(control.job_, memory, control.rank()) {}

 private:
  World(Job& job, Memory& memory, int rank) : comm::World(rank, job.size()), job_(job), memory_(memory) {}
  static Memory& program_memory() {
    static Memory memory;
    return memory;
  }

  void do_post(std::span<const Piece> pieces) override {
    if (job_.failed()) job_.throw_failure(rank());
    memory_.offer();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      target_of(piece).channel->push(piece);
      if (i + 1 == pieces.size() || pieces[i + 1].peer != piece.peer) job_.endpoint(piece.peer).inbox.ring();
    }
  }

  void do_receive(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) take(piece);
  }
  void take(const Piece& piece) {
    Channel& channel = job_.channel(memory_.on_device(), piece.peer, rank(), piece.lane);
    if (piece.peer == rank() && !channel.ready()) throw_not_posted(rank());
    const auto ready = [&] { return channel.ready(); };
    const auto failed = [&] { return job_.failed(); };
    const auto late = [&](bool only_ended) -> std::vector<int> {
      if ((only_ended && !job_.ended(piece.peer)) || ready()) return {};
      return {piece.peer};
    };
    job_.wait(rank(), job_.endpoint(rank()).inbox, ready, failed, late,
              [&] { return text_of("send a block of ", piece.bytes(), " bytes"); });
    if (failed()) job_.throw_failure(rank());
    const auto copy = [&](const Piece& from, const Piece& to) {
      check_sent(rank(), to, from.bytes());
      memory_.expect(to.peer);
      memory_.copy(from, to);
      memory_.offer();
    };
    if (!channel.take(piece, copy)) {
      if (failed()) job_.throw_failure(rank());
      throw PeerFailure(text_of("rank ", piece.peer, " took back a block that rank ", rank(), " waited for"));
    }
    if (channel.drained()) job_.endpoint(piece.peer).sent.ring();
  }

  void do_wait_sent(int lane) override {
    const auto waits_for = [&](const Target& target) { return target.concerns(lane) && !target.channel->drained(); };
    const auto all_taken = [&] { return std::ranges::none_of(targets_, waits_for); };
    for (const Target& target : targets_)
      if (target.peer == rank() && waits_for(target)) throw_not_received(rank());
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
      return text_of("take ", blocks, " blocks");
    };
    job_.wait(rank(), job_.endpoint(rank()).sent, all_taken, [&] { return job_.failed(); }, late, what);
    if (!all_taken()) {
      withdraw();
      job_.throw_failure(rank());
    }
    for (const Target& target : targets_)
      if (target.concerns(lane)) memory_.expect(target.peer);
  }

  // Where blocks were posted.
  struct Target {
    int peer;
    int lane;
    Channel* channel;
    [[nodiscard]] bool concerns(int which) const {
      return which == lane || (which == every_lane && lane != shift_lane);
    }
  };

  // Allocates on first use of a lane to a peer only.
  Target& target_of(const Piece& piece) {
    for (Target& target : targets_)
      if (target.peer == piece.peer && target.lane == piece.lane) return target;
    Channel& channel = job_.channel(memory_.on_device(), rank(), piece.peer, piece.lane);
    return targets_.emplace_back(Target{piece.peer, piece.lane, &channel});
  }

  Job& job_;
  Memory& memory_;
  std::vector<Target> targets_;
  Groups<Group> groups_;
};

namespace detail {

template <class = void>
std::unique_ptr<World> world_of(Job& job, int rank) {
  return std::make_unique<World>(job, rank);
}
GALVATRON_IN_TRAINER(std::unique_ptr<World> world_of<>(Job&, int))

}  // namespace detail

/// Runs body(World&) on `ranks` threads at once and joins them. The body is one object that all threads call; their
/// names are `rank 0`, `rank 1`, ..., as `top -H` shows.
/// If a rank throws, the others' pending and later calls throw PeerFailure naming that rank and its message, and when
/// all have ended run() throws the first failure, the same object; a DeviceFailure if the system refuses a thread.
template <class F>
void run(int ranks, F&& body, const Options& options = {}) {
  if (ranks < 1) throw Failure(ErrorKind::usage, text_of("a run needs at least 1 rank, not ", ranks));
  Job job(ranks, options);
  const auto rank_main = [&](int rank) {
    ::pthread_setname_np(::pthread_self(), text_of("rank ", rank).c_str());
    try {
      body(*detail::world_of(job, rank));
      job.end(rank);
    } catch (...) {
      job.fail(rank, std::current_exception());
    }
  };
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back(rank_main, rank);
    } catch (const std::exception& e) {  // the last that is tried; the others end
      const std::string why = text_of("cannot start thread ", rank + 1, " of ", ranks, ": ", e.what());
      job.fail(rank, std::make_exception_ptr(DeviceFailure(why)));
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  job.rethrow_first();
}

}  // namespace galvatron::comm::thread
