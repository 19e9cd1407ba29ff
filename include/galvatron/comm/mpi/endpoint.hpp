// One process's end of a run: how it waits, what it hears of the other ranks, and how all agree on the outcome.
//
// Every rank sends every other one a status when its body has ended, however it ended. Who waits looks for such news
// between two looks at what it waits for, so a failure ends all waits; and in the end all know what became of whom:
//
//   rank 0   .. step .. wait for 1 ~~~~~~~ "1 failed" -> stopped --+-- verdict: rank 1 failed: loss is not a number
//   rank 1   .. step .. throws -> failed --------------------------+-- the same
//   rank 2   .. step ........ wait for 0 ~~~~~~~~~~~~~ -> stopped -+-- the same
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <ranges>
#include <utility>
#include <vector>

#include <galvatron/comm/mpi/runtime.hpp>
#include <galvatron/comm/status.hpp>
#include <galvatron/comm/thread/job.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

using thread::Clock;
using thread::Options;

/// A message of MPI that was begun and may be under way.
struct Message {
  int peer = 0;
  int tag = 0;
  bool incoming = false;
  bool whole = true;  ///< has exactly so many bytes
  int bytes = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Status status{};  ///< when it has come
};

/// Messages that were begun. Throws ConnectionFailure.
struct Requests {
  std::vector<Message> messages;

  /// The request of a message, for the call that begins it.
  MPI_Request* add(const Message& message) { return &messages.emplace_back(message).request; }
  /// True if all have come and gone.
  bool done() { return std::ranges::all_of(messages, has_gone); }
  /// The same for the way out of a failure: also true if a connection is broken.
  bool over() noexcept {
    try {
      return done();
    } catch (const ConnectionFailure&) {
      return true;
    }
  }
  /// The peers of those under way that `concern(message)` names, each once.
  template <class Concern>
  [[nodiscard]] std::vector<int> peers(Concern&& concern) {
    std::vector<int> peers;
    for (Message& message : messages)
      if (concern(message) && !has_gone(message)) peers.push_back(message.peer);
    return each_once(std::move(peers));
  }
  void forget_done() { std::erase_if(messages, has_gone); }

  static bool has_gone(Message& message) {
    if (message.request == MPI_REQUEST_NULL) return true;
    int flag = 0;
    require(MPI_Test(&message.request, &flag, &message.status), "MPI_Test");
    return flag != 0;
  }
};

class Endpoint {
 public:
  Endpoint(Runtime& runtime, const Options& options)
      : runtime_(runtime),
        options_(options),
        policy_(thread::WaitPolicy::of(runtime.local_size(), runtime.local_size() * runtime.cores_per_rank())),
        run_(runtime.next_run()),
        news_(runtime.size()) {
    if (runtime.abandoned())
      throw Failure(ErrorKind::internal, "a run of MPI ranks after one that failed: the processes must end");
    std::erase_if(runtime.early, [&](const auto& news) {
      if (news.second.run != run_) return false;
      take(news.first, news.second);
      return true;
    });
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  [[nodiscard]] int rank() const { return runtime_.rank(); }
  [[nodiscard]] int size() const { return runtime_.size(); }
  [[nodiscard]] Runtime& runtime() { return runtime_; }
  void set_timeout(std::chrono::nanoseconds timeout) { options_.timeout = timeout; }

  void check() const { news_.check(); }

  /// Wakes a rank for a message to it, or because it may go on with one that it sent.
  void ring(int peer) const { runtime_.doorbells().ring(peer); }

  /// Waits until `ready()`: awake for a little while, then asleep until somebody rings, or for a back-off that grows.
  /// `missing()` is a list of the ranks waited for, `what()` says what they did not do. Throws PeerFailure if a rank
  /// fails, if one of those waited for has ended, or after the timeout.
  template <class Ready, class Missing, class What>
  void wait(Ready&& ready, Missing&& missing, What&& what) {
    if (thread::wait_awake(policy_, ready)) return;
    const auto begin = Clock::now();
    auto in_vain_since = Clock::time_point::max();
    ask(runtime_, [&] {
      look();
      check();
      if (runtime_.lost_ranks()) throw PeerFailure("other ranks of this job were lost");
      if (ready()) return true;
      const auto now = Clock::now();
      if (some_ended_) {
        std::vector<int> ended = missing();
        std::erase_if(ended, [&](int peer) { return news_.of(peer) != Status::Kind::ended; });
        in_vain_since = ended.empty() ? Clock::time_point::max() : std::min(in_vain_since, now);
        if (!ended.empty() && now - in_vain_since > std::chrono::seconds(1))  // its last messages had time to come
          throw PeerFailure(waits_in_vain(rank(), rank_list(ended) + " " + what()));
      }
      if (now - begin >= options_.timeout)
        throw PeerFailure(gave_up(rank(), options_.timeout, rank_list(missing()) + " " + what()));
      return false;
    });
  }

  /// For the way out: waits at most `limit` for `ready()`, throws nothing.
  template <class Ready>
  static void drain(const Runtime& runtime, std::chrono::nanoseconds limit, Ready&& ready) noexcept {
    const auto deadline = Clock::now() + limit;
    ask(runtime, [&] { return ready() || Clock::now() >= deadline; });
  }

  /// Tells the others how this rank's body ended (null: well) and waits until all have. A failure abandons the runtime.
  Verdict settle(const std::exception_ptr& own) {
    try {
      return agree(own);
    } catch (const std::exception&) {  // MPI itself is out of order
      runtime_.abandon();
      const auto failure = own != nullptr ? own : std::current_exception();
      return {failure, news_.status_of(failure).error, true};
    }
  }

 private:
  // Asks `ready()` again and again, asleep in between until somebody rings, or for 4 us to 1 ms, more every time.
  template <class Ready>
  static void ask(const Runtime& runtime, Ready&& ready) {
    for (std::chrono::nanoseconds pause(4000);;
         pause = std::min(pause + pause / 2, std::chrono::nanoseconds(1'000'000))) {
      const std::uint32_t heard = runtime.doorbells().listen();
      if (ready()) return;
      runtime.doorbells().sleep(heard, pause);
    }
  }

  void take(int rank, const Status& said) {
    news_.take(rank, said);
    some_ended_ = some_ended_ || said.kind == Status::Kind::ended;
  }
  // Takes the statuses that have arrived.
  void look() {
    for (;;) {
      int there = 0;
      MPI_Status from;
      require(MPI_Iprobe(MPI_ANY_SOURCE, 0, runtime_.news(), &there, &from), "MPI_Iprobe");
      if (there == 0) return;
      Status said;
      require(MPI_Recv(&said, sizeof said, MPI_BYTE, from.MPI_SOURCE, 0, runtime_.news(), MPI_STATUS_IGNORE),
              "MPI_Recv");
      if (said.run == run_)
        take(from.MPI_SOURCE, said);
      else if (said.run > run_)
        runtime_.early.emplace_back(from.MPI_SOURCE, said);
    }
  }

  Verdict agree(const std::exception_ptr& own) {
    Status mine = news_.status_of(own);
    mine.run = run_;
    take(rank(), mine);
    Requests sends;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank())
        require(MPI_Isend(&mine, sizeof mine, MPI_BYTE, peer, 0, runtime_.news(), sends.add({.peer = peer})),
                "MPI_Isend");
    for (int peer = 0; peer < size(); ++peer) ring(peer);

    auto deadline = Clock::time_point::max();
    const auto is_running = [&](int peer) { return news_.of(peer) == Status::Kind::running; };
    ask(runtime_, [&] {
      look();
      if (!news_.failure().empty() || runtime_.lost_ranks()) deadline = std::min(deadline, Clock::now() + patience);
      return std::ranges::none_of(std::views::iota(0, size()), is_running) || Clock::now() > deadline;
    });
    const bool fine = news_.failure().empty() && !runtime_.lost_ranks();
    drain(runtime_, fine ? options_.timeout : std::chrono::milliseconds(500), [&] { return sends.over(); });
    if (fine) return {};
    runtime_.abandon();
    return news_.verdict(rank(), own);
  }

  Runtime& runtime_;
  Options options_;
  thread::WaitPolicy policy_;
  int run_;
  bool some_ended_ = false;  // well
  News news_;
};

/// After a failed run and before the process ends: no rank ends before the user has been told, since mpirun ends all
/// when one does. Called by the process that reports once it has, and by the others.
inline void conclude(Runtime& runtime, bool reported) noexcept {
  constexpr int tag = 1;
  Requests sends;
  for (int peer = 0; reported && peer < runtime.size(); ++peer)
    if (peer != runtime.rank()) MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, runtime.news(), sends.add({.peer = peer}));
  Endpoint::drain(runtime, reported ? std::chrono::milliseconds(500) : patience, [&] {
    if (reported) return sends.over();
    int flag = 0;
    return MPI_Iprobe(MPI_ANY_SOURCE, tag, runtime.news(), &flag, MPI_STATUS_IGNORE) != MPI_SUCCESS || flag != 0;
  });
}

}  // namespace galvatron::comm::mpi
