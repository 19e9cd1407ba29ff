// Overlap: how long two things take that happen at the same time.
#pragma once

#include <galvatron/core/units.hpp>

namespace galvatron::cost {

/// Seconds of two things that begin together and take `slowdown` times as long while both run; never more than one
/// after the other. Source: Galvatron (arXiv 2211.13878), its cost estimator.
constexpr Seconds side_by_side(Seconds a, Seconds b, double slowdown) {
  const Seconds longer = max(a, b);
  const Seconds shorter = a < b ? a : b;
  return longer + shorter * (slowdown < 2 ? slowdown - 1 : 1);
}

}  // namespace galvatron::cost
