// How many operators a wave has time for.
#pragma once

#include <algorithm>

namespace galvatron::spindle {

/// Operators of `seconds` each that end within a wave, at most `most`. Sums that differ by rounding are equal.
inline int operators_within(double wave, double seconds, int most) {
  if (wave >= seconds * most) return most;
  return std::min(most, static_cast<int>(wave / seconds * (1 + 1e-12)));
}

}  // namespace galvatron::spindle
