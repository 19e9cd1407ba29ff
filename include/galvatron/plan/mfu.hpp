// Model FLOPs utilization that cannot be.
#pragma once

#include <string>

namespace galvatron {

/// Why an MFU above 1 is shown, as a clause to stand beside it; empty for one that can be. The peak is the cluster's
/// rate, so more than all of it says that the rate is too low: that of a profile that was disturbed, mostly.
inline std::string why_impossible_mfu(double mfu) {
  return mfu > 1
             ? "more than the devices can do: the cluster's rates are too low, so profile again when nothing else runs"
             : "";
}

}  // namespace galvatron
