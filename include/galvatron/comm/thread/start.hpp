// The threads of ranks, and what becomes of a run whose threads the system refuses.
#pragma once

#include <cstddef>
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include <galvatron/comm/check.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::comm::thread {

/// While the exception that kept a rank's thread from starting is handled: what the run throws.
inline std::exception_ptr why_not_started(int rank, int ranks) noexcept {
  try {
    throw;
  } catch (const std::system_error& e) {
    try {
      return std::make_exception_ptr(
          DeviceFailure(text("cannot start thread ", rank + 1, " of ", ranks, ": ", e.what())));
    } catch (const std::bad_alloc&) {
      return std::current_exception();
    }
  } catch (...) {
    return std::current_exception();
  }
}

/// Calls rank_main(rank) on a thread for each rank and joins them. A thread that cannot start is the last that is
/// tried: not_started(rank, why) ends the others.
template <class Main, class NotStarted>
void on_threads(int ranks, Main&& rank_main, NotStarted&& not_started) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    try {
      threads.emplace_back([&rank_main, rank] { rank_main(rank); });
    } catch (...) {
      not_started(rank, why_not_started(rank, ranks));
      break;
    }
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace galvatron::comm::thread
