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
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/thread/messages.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// A rank of a world of threads; models comm::World. Every rank uses its own handle, and only from its own thread.
/// When another rank has failed, or has not answered within the timeout, every call throws PeerFailure.
class World {
 public:
  using Group = galvatron::comm::thread::Group;

  World(Job& job, int rank) : job_(job), rank_(rank) {
    everybody_.resize(static_cast<std::size_t>(job.size()));
    for (int i = 0; i < job.size(); ++i) everybody_[static_cast<std::size_t>(i)] = i;
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World() { withdraw(); }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return job_.size(); }

  /// The group of these world ranks, in this order. Allocates on first use only. Errors: a Failure if a rank does not
  /// exist or comes twice, or if the calling rank is not among them.
  Group& group(std::span<const int> ranks) {
    for (auto& group : groups_)
      if (std::ranges::equal(group->ranks(), ranks)) return *group;
    check_members(ranks, rank_, size());
    return *groups_.emplace_back(std::make_unique<Group>(job_, ranks, rank_));
  }
  /// The group of all ranks.
  Group& everybody() { return group(everybody_); }
  /// Rank threads speak of memory of the program anyway.
  using Control = World;
  Control& control() { return *this; }

  /// Offers blocks to their peers and returns; see comm::World. If an exception could free the memory, a SendGuard that
  /// lives shorter keeps the receivers from reading it then.
  void post(std::span<const Piece> pieces) {
    check_pieces(pieces, size());
    if (job_.failure().failed()) job_.throw_failure(rank_);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      Channel& channel = job_.lanes(rank_, piece.peer)[piece.lane];
      note(piece, channel);
      channel.push(piece);
      if (i + 1 == pieces.size() || pieces[i + 1].peer != piece.peer) job_.endpoint(piece.peer).inbox.ring();
    }
  }

  /// Takes blocks from their peers, in order, and copies them; rows of other lengths than the sender's are fine as long
  /// as the bytes of a block are as many. Errors: a Failure that names both sizes if they are not.
  void receive(std::span<const Piece> pieces) { receive(pieces, copy_piece); }
  /// The same; copy(from, to) sees to it that the bytes are copied before the sender needs its memory again.
  template <class Copy>
  void receive(std::span<const Piece> pieces, Copy&& copy) {
    check_pieces(pieces, size());
    for (const Piece& piece : pieces) {
      if (piece.peer == rank_ && !job_.lanes(rank_, rank_)[piece.lane].ready())
        throw Failure(ErrorKind::internal,
                      "rank " + std::to_string(rank_) + " receives a block from itself that it has not posted before");
      receive_block(job_, rank_, piece, copy);
    }
  }

  /// Returns when every block posted by this rank has been taken.
  void wait_sent() { wait_sent_in(every_lane); }
  /// The same of one lane.
  void wait_sent(int lane) { wait_sent_in(lane); }

  /// What failed on a rank, if one has. Any thread may ask.
  [[nodiscard]] std::optional<std::string> failure() const {
    if (!job_.failure().failed()) return std::nullopt;
    return job_.failure().message();
  }

  /// Takes back every block of this rank that nobody has begun to copy, and returns when nobody reads this rank's
  /// memory any more. For the way out of a failure: a peer that still waits for such a block gets a PeerFailure.
  void withdraw() noexcept {
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
  static constexpr int every_lane = -1;

  // Allocates on first use of a lane to a peer only.
  void note(const Piece& piece, Channel& channel) {
    for (const Target& target : targets_)
      if (target.channel == &channel) return;
    targets_.push_back({piece.peer, piece.lane, &channel});
  }

  void wait_sent_in(int lane) {
    const auto concerns = [&](const Target& target) { return lane == every_lane || target.lane == lane; };
    for (const Target& target : targets_)
      if (target.peer == rank_ && concerns(target) && !target.channel->drained())
        throw Failure(ErrorKind::internal,
                      "rank " + std::to_string(rank_) + " waits for a block to itself that it has not received");
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
        rank_, job_.endpoint(rank_).sent, all_taken, [&] { return job_.failure().failed(); },
        [&] { return !late(true).empty(); },
        [&](bool only_ended) {
          std::int64_t blocks = 0;
          for (const Target& target : targets_)
            if (concerns(target)) blocks += target.channel->waiting();
          return rank_list(late(only_ended)) + " did not take " + std::to_string(blocks) + " blocks";
        });
    if (all_taken()) return;
    withdraw();
    job_.throw_failure(rank_);
  }

  Job& job_;
  int rank_;
  std::vector<int> everybody_;
  std::vector<std::unique_ptr<Group>> groups_;
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
