// One rank's handle on a world of rank threads, and the function that starts them.
#pragma once

#include <exception>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/groups.hpp>
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/thread/messages.hpp>
#include <galvatron/comm/thread/start.hpp>

namespace galvatron::comm::thread {

/// A rank of a world of threads. Every rank uses its own handle, and only from its own thread. When another rank has
/// failed, or has not answered within the timeout, every call throws PeerFailure.
class World final : public comm::World {
 public:
  World(Job& job, int rank) : comm::World(rank, job.size()), job_(job) {}
  ~World() override { withdraw(); }

  Group& group(std::span<const int> ranks) override { return groups_.find(*this, ranks, job_, ranks, rank()); }

  using comm::World::receive;
  /// The same; copy(from, to) sees to it that the bytes are copied before the sender needs its memory again.
  template <class Copy>
  void receive(std::span<const Piece> pieces, Copy&& copy) {
    check_pieces(pieces, size());
    receive_checked(pieces, copy);
  }

  std::optional<std::string> failure() override {
    if (!job_.failure().failed()) return std::nullopt;
    return job_.failure().message();
  }

  /// A peer that still waits for a block that is taken back gets a PeerFailure.
  void withdraw() noexcept override {
    for (const Target& target : targets_) target.channel->withdraw();
    for (const auto& group : groups_) group->withdraw();
  }

 private:
  void do_post(std::span<const Piece> pieces) override {
    if (job_.failure().failed()) job_.throw_failure(rank());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      Channel& channel = job_.lanes(rank(), piece.peer)[piece.lane];
      note(piece, channel);
      channel.push(piece);
      if (i + 1 == pieces.size() || pieces[i + 1].peer != piece.peer) job_.endpoint(piece.peer).inbox.ring();
    }
  }
  void do_receive(std::span<const Piece> pieces) override { receive_checked(pieces, copy_piece); }
  template <class Copy>
  void receive_checked(std::span<const Piece> pieces, Copy&& copy) {
    for (const Piece& piece : pieces) {
      if (piece.peer == rank() && !job_.lanes(rank(), rank())[piece.lane].ready()) throw_not_posted(rank());
      receive_block(job_, rank(), piece, copy);
    }
  }

  // Allocates on first use of a lane to a peer only.
  void note(const Piece& piece, Channel& channel) {
    for (const Target& target : targets_)
      if (target.channel == &channel) return;
    targets_.push_back({piece.peer, piece.lane, &channel});
  }

  void do_wait_sent(int lane) override {
    for (const Target& target : targets_)
      if (target.peer == rank() && target.concerns(lane) && !target.channel->drained()) throw_not_received(rank());
    if (wait_taken(job_, rank(), targets_, lane)) return;
    withdraw();
    job_.throw_failure(rank());
  }

  Job& job_;
  Groups<Group> groups_;
  std::vector<Target> targets_;
};

/// Runs body(World&) on `ranks` threads at once and joins them. The body is one object that all threads call.
///
/// If a rank throws, the others' pending and later calls throw PeerFailure naming that rank and its message, and when
/// all have ended run() throws the first failure, the same exception object. Errors: DeviceFailure if the system
/// refuses a thread.
template <class F>
void run(int ranks, F&& body, const Options& options = {}) {
  check_rank_count(ranks);
  Job job(ranks, options);
  const auto rank_main = [&](int rank) {
    try {
      {
        World world(job, rank);
        body(world);
      }
      job.end(rank);
    } catch (...) {
      job.fail(rank, std::current_exception());
    }
  };
  on_threads(ranks, rank_main, [&](int rank, std::exception_ptr why) { job.fail(rank, std::move(why)); });
  if (const auto failure = job.failure().get()) std::rethrow_exception(failure);
}

}  // namespace galvatron::comm::thread
