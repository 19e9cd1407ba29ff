// One rank's handle on a world of rank threads, and the function that starts them.
#pragma once

#include <cstddef>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <galvatron/comm/communicator.hpp>
#include <galvatron/comm/thread/blocks.hpp>
#include <galvatron/comm/thread/group.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// A rank of a world of threads. Every rank uses its own handle, and only from its own thread. When another rank has
/// failed, or has not answered within the timeout, every call throws PeerFailure.
class World : public comm::World {
 public:
  World(Job& job, int rank) : World(job, program_memory(), rank) {}
  ~World() override { withdraw(); }

  Group& group(std::span<const int> ranks) override {
    return groups_.find(*this, ranks, job_, memory_, blocks_, ranks, rank());
  }

  std::optional<std::string> failure() override {
    if (!job_.failed()) return std::nullopt;
    return job_.failure();
  }
  void warn(const std::string& text) noexcept override { job_.warn(rank(), text); }

  /// A peer that still waits for a block that is taken back gets a PeerFailure.
  void withdraw() noexcept override {
    blocks_.withdraw();
    for (int peer = 0; peer < size(); ++peer) memory_.wait(peer);
  }

 protected:
  /// The same ranks' world for other memory.
  World(World& control, Memory& memory) : World(control.job_, memory, control.rank()) {}

 private:
  World(Job& job, Memory& memory, int rank)
      : comm::World(rank, job.size()), job_(job), memory_(memory), blocks_(job, memory, rank) {}
  static Memory& program_memory() {
    static Memory memory;
    return memory;
  }

  void do_post(std::span<const Piece> pieces) override { blocks_.post(pieces); }
  void do_receive(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) blocks_.receive(piece);
  }
  void do_wait_sent(int lane) override { blocks_.wait_sent(lane); }

  Job& job_;
  Memory& memory_;
  Blocks blocks_;
  Groups<Group> groups_;
};

/// Runs body(World&) on `ranks` threads at once and joins them. The body is one object that all threads call.
///
/// If a rank throws, the others' pending and later calls throw PeerFailure naming that rank and its message, and when
/// all have ended run() throws the first failure, the same exception object. Errors: DeviceFailure if the system
/// refuses a thread.
template <class F>
void run(int ranks, F&& body, const Options& options = {}) {
  if (ranks < 1) throw Failure(ErrorKind::usage, text("a run needs at least 1 rank, not ", ranks));
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
      try {
        threads.emplace_back(rank_main, rank);
      } catch (const std::system_error& e) {
        throw DeviceFailure(text("cannot start thread ", rank + 1, " of ", ranks, ": ", e.what()));
      }
    } catch (...) {  // the last that is tried; the others end
      job.fail(rank, std::current_exception());
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
  job.rethrow_first();
}

}  // namespace galvatron::comm::thread
