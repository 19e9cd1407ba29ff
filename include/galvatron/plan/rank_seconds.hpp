// RankSeconds: what a step took a rank, as it was measured.
#pragma once

namespace galvatron {

/// A rank's own work in a step, without waiting for others, in seconds.
struct RankSeconds {
  double passes = 0;  ///< of all micro-batches, forward and backward
  double update = 0;  ///< of the optimizer
  [[nodiscard]] constexpr double total() const { return passes + update; }
};

}  // namespace galvatron
