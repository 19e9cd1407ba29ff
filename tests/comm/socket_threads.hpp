// Ranks that are threads of one process and speak as processes do: by sockets, here pairs of them.
#pragma once

#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <galvatron/comm/tcp/socket.hpp>
#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/comm/words.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::tcp {

/// The connections of each of `ranks` ranks of one process, by rank. Throws DeviceFailure.
inline std::vector<std::vector<Socket>> socket_pairs(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<Socket>> sockets(n);
  for (auto& own : sockets) own.resize(n);
  for (std::size_t a = 0; a < n; ++a)
    for (std::size_t b = 0; b < a; ++b) {
      int ends[2] = {-1, -1};
      if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0)
        throw DeviceFailure(text_of("cannot connect ", ranks, " ranks: ", text_of_errno(errno)));
      sockets[a][b] = Socket(ends[0]);
      sockets[b][a] = Socket(ends[1]);
    }
  return sockets;
}

/// Runs body(World&) on a thread for each rank and joins them. If a rank throws, the others' pending and later calls
/// throw PeerFailure naming that rank and its message, and in the end this throws the first failure, the same object.
/// @param timeout  how long a rank waits for another
template <class F>
void run_threads(int ranks, F&& body, std::chrono::nanoseconds timeout = Limits{}.timeout) {
  auto sockets = socket_pairs(ranks);
  std::mutex mutex;
  std::exception_ptr first;
  const auto record = [&](const std::exception_ptr& failure) {
    const std::scoped_lock lock(mutex);
    if (first == nullptr) first = failure;
  };
  const auto rank_main = [&](int rank) {
    // The first is known before the others hear of it.
    const auto recorded = [&](World& world) {
      try {
        body(world);
      } catch (...) {
        record(std::current_exception());
        throw;
      }
    };
    record(outcome_of(rank, std::move(sockets[static_cast<std::size_t>(rank)]), recorded, timeout).failure);
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(rank_main, rank);
  }
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace galvatron::comm::tcp
