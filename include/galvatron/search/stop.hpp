// When a search is to end with the best plan so far.
#pragma once

#include <atomic>
#include <limits>

#include <galvatron/core/units.hpp>

namespace galvatron::search {

struct Stop {
  const std::atomic<int>* signal = nullptr;                   ///< once not 0
  double deadline = std::numeric_limits<double>::infinity();  ///< at that time of steady_seconds

  [[nodiscard]] constexpr bool requested() const {
    return (signal != nullptr && signal->load(std::memory_order_relaxed) != 0) ||
           (deadline < std::numeric_limits<double>::infinity() && steady_seconds() >= deadline);
  }
};

}  // namespace galvatron::search
