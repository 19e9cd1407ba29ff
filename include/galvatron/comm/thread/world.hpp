// One rank's handle on a world of rank threads, and the function that starts them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/groups.hpp>
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/thread/messages.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// A rank of a world of threads. Every rank uses its own handle, and only from its own thread. When another rank has
/// failed, or has not answered within the timeout, every call throws PeerFailure.
class World final : public comm::World {
 public:
  World(Job& job, int rank) : comm::World(rank, job.size()), job_(job) {}
  ~World() override { withdraw(); }

  Group& group(std::span<const int> ranks) override {
    return groups_.find(ranks, [&] {
      check_members(ranks, rank(), size());
      return std::make_unique<Group>(job_, ranks, rank());
    });
  }

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
  // Where this rank has posted blocks.
  struct Target {
    int peer;
    int lane;
    Channel* channel;
  };

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
      if (piece.peer == rank() && !job_.lanes(rank(), rank())[piece.lane].ready())
        throw Failure(ErrorKind::internal,
                      "rank " + std::to_string(rank()) + " receives a block from itself that it has not posted before");
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
    const auto concerns = [&](const Target& target) { return lane == every_lane || target.lane == lane; };
    for (const Target& target : targets_)
      if (target.peer == rank() && concerns(target) && !target.channel->drained())
        throw Failure(ErrorKind::internal,
                      "rank " + std::to_string(rank()) + " waits for a block to itself that it has not received");
    const auto all_taken = [&] {
      return std::ranges::all_of(targets_,
                                 [&](const Target& target) { return !concerns(target) || target.channel->drained(); });
    };
    const auto late = [&](bool only_ended) {
      std::vector<int> peers;
      for (const Target& target : targets_)
        if (concerns(target) && !(only_ended && !job_.ended(target.peer)) && !target.channel->drained())
          peers.push_back(target.peer);
      std::ranges::sort(peers);
      peers.erase(std::ranges::unique(peers).begin(), peers.end());
      return peers;
    };
    job_.wait(
        rank(), job_.endpoint(rank()).sent, all_taken, [&] { return job_.failure().failed(); },
        [&] { return !late(true).empty(); },
        [&](bool only_ended) {
          std::int64_t blocks = 0;
          for (const Target& target : targets_)
            if (concerns(target)) blocks += target.channel->waiting();
          return rank_list(late(only_ended)) + " did not take " + std::to_string(blocks) + " blocks";
        });
    if (all_taken()) return;
    withdraw();
    job_.throw_failure(rank());
  }

  Job& job_;
  Groups<Group> groups_;
  std::vector<Target> targets_;
};

/// While the exception that kept a rank's thread from starting is handled: what the run throws.
inline std::exception_ptr why_not_started(int rank, int ranks) noexcept {
  try {
    throw;
  } catch (const std::system_error& e) {
    try {
      return std::make_exception_ptr(DeviceFailure("cannot start thread " + std::to_string(rank + 1) + " of " +
                                                   std::to_string(ranks) + ": " + e.what()));
    } catch (const std::bad_alloc&) {
      return std::current_exception();
    }
  } catch (...) {
    return std::current_exception();
  }
}

/// Runs body(World&) on `ranks` threads at once and joins them. The body is one object that all threads call.
///
/// If a rank throws, the others' pending and later calls throw PeerFailure naming that rank and its message, and when
/// all have ended run() throws the first failure, the same exception object. Errors: DeviceFailure if the system
/// refuses a thread.
template <class F>
void run(int ranks, F&& body, const Options& options = {}) {
  if (ranks < 1) throw Failure(ErrorKind::usage, "a run needs at least 1 rank, not " + std::to_string(ranks));
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
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back(rank_main, rank);
    } catch (...) {
      job.fail(rank, why_not_started(rank, ranks));
      break;
    }
  }
  for (auto& thread : threads) thread.join();
  if (const auto failure = job.failure().get()) std::rethrow_exception(failure);
}

}  // namespace galvatron::comm::thread
