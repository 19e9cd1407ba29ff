// The iteration of a pipeline as Hetu-Galvatron counts it. It looks at the first and the last stage only, so that it
// must not be used to compare uneven splits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

namespace galvatron::cost::hetu {

/// Times of one stage and micro-batch.
struct StageTime {
  double no_sync = 0;  ///< C: without the synchronisation of gradients; embedding and head included
  double sync = 0;     ///< G: the layers alone, with it
};

/// Time of an iteration of m = `microbatches` over p stages, in the unit of `stages` (at least one):
///
///     R = max( sum C + (m-1) C_last,  max( min(p-1, m-1) C_0, sum_{i>0} C_i ) + C_0 max(0, m+1-p) )
///     R + max( 0, max_i( G_i - sum_{j<=i} C_j ) )
inline double iteration_time(std::span<const StageTime> stages, double microbatches) {
  const double m = microbatches;
  const auto p = static_cast<double>(stages.size());
  double sum = 0;
  double left_over = 0;
  for (const StageTime& stage : stages) {
    sum += stage.no_sync;
    left_over = std::max(left_over, stage.sync - sum);
  }
  const double first = stages.front().no_sync;
  const double run = std::max(sum + (m - 1) * stages.back().no_sync,
                              std::max(std::min(p - 1, m - 1) * first, sum - first) + first * std::max(0.0, m + 1 - p));
  return run + left_over;
}

}  // namespace galvatron::cost::hetu
