// Images as squares of tokens: their sides, which layers that look at neighbours in two directions need.
#pragma once

#include <cstdint>

namespace galvatron {

/// The tokens of a side of a square of `tokens` tokens; 0 where they make no square.
constexpr std::int64_t side_of_square(std::int64_t tokens) {
  if (tokens < 1) return 0;
  std::int64_t side = tokens;  // Newton's iteration from above
  for (std::int64_t next = (side + 1) / 2; next < side; next = (side + tokens / side) / 2) side = next;
  return side * side == tokens ? side : 0;
}

}  // namespace galvatron
