// Clocks and medians of the profiler.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <utility>
#include <vector>

namespace galvatron::train::detail {

inline double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Processor time of the calling thread.
inline double core_seconds() {
  std::timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// What an operation of a rank is timed with. A rank of one thread is timed in processor time, which does not depend on
/// whose turn it is on a core: with r ranks on c cores an operation takes max(1, r / c) times as long by the wall. A
/// rank of several threads has cores of its own and is timed by the wall.
struct Stopwatch {
  bool by_core = true;
  [[nodiscard]] double now() const { return by_core ? core_seconds() : wall_seconds(); }
};

/// The median; 0 of nothing.
inline double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Seconds of one op(), where seconds(calls, op) is those of so many: after a first call that does not count (it makes
/// code and touches memory) the median of three batches of at least `least` seconds together, or one call of as long.
template <class Timer, class Op>
double measure(const Timer& seconds, double least, const Op& op) {
  op();
  const double once = std::max(seconds(1, op), 1e-8);
  if (once >= least) return once;
  const int calls = static_cast<int>(std::clamp(std::ceil(least / 3 / once), 1.0, 100000.0));
  std::vector<double> batches;
  for (int batch = 0; batch < 3; ++batch) batches.push_back(seconds(calls, op) / calls);
  return std::max(median_of(std::move(batches)), 1e-9);
}

/// Makes values rise along a line: runs that fall are replaced by their geometric mean (pool adjacent violators), which
/// moves noise as little as possible. `log_values` are logarithms, `stride` apart.
inline void make_rise(double* log_values, std::size_t count, std::size_t stride) {
  struct Run {
    double mean;
    std::size_t count;
  };
  std::vector<Run> runs;
  for (std::size_t i = 0; i < count; ++i) {
    runs.push_back({log_values[i * stride], 1});
    while (runs.size() > 1 && runs[runs.size() - 2].mean > runs.back().mean) {
      const Run last = runs.back();
      runs.pop_back();
      Run& before = runs.back();
      const auto total = static_cast<double>(before.count + last.count);
      before.mean =
          (before.mean * static_cast<double>(before.count) + last.mean * static_cast<double>(last.count)) / total;
      before.count += last.count;
    }
  }
  std::size_t i = 0;
  for (const Run& run : runs)
    for (std::size_t j = 0; j < run.count; ++j) log_values[i++ * stride] = run.mean;
}

}  // namespace galvatron::train::detail
