// Work: how much a search may do, counted so that its answer does not depend on the machine.
#pragma once

#include <cstdint>

namespace galvatron::spindle {

/// Steps of a search, of about a nanosecond each.
struct Work {
  std::int64_t left = 0;

  void spend(std::int64_t steps) { left -= steps; }
  [[nodiscard]] bool is_spent() const { return left <= 0; }
};

}  // namespace galvatron::spindle
