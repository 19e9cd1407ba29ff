// A step of a training run as it was measured: when every rank did what.
#pragma once

#include <cstdint>
#include <vector>

#include <galvatron/core/units.hpp>
#include <galvatron/schedule/replay.hpp>

namespace galvatron::simulate {

struct MeasuredStep {
  std::int64_t step = 0;                           ///< counts from 0
  std::vector<std::vector<schedule::Span>> ranks;  ///< of each rank; times count from the first beginning of all ranks
  Seconds seconds;                                 ///< until the last rank has ended
};

}  // namespace galvatron::simulate
