// When a search is to end with the best plan so far.
#pragma once

#include <time.h>

#include <atomic>
#include <limits>

namespace galvatron::search {

/// Seconds of a clock that only goes forward. Not <chrono>: that header alone takes a tenth of the time in which a
/// planning program should compile.
inline double monotonic_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Stop {
  const std::atomic<int>* signal = nullptr;                   ///< once not 0
  double deadline = std::numeric_limits<double>::infinity();  ///< at that time of monotonic_seconds

  [[nodiscard]] constexpr bool requested() const {
    return (signal != nullptr && signal->load(std::memory_order_relaxed) != 0) ||
           (deadline < std::numeric_limits<double>::infinity() && monotonic_seconds() >= deadline);
  }
};

}  // namespace galvatron::search
