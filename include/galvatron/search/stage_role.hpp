// What a search for stages is asked and what it answers.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace galvatron::search {

/// What limits the work of a search.
struct Limits {
  std::size_t labels = 192;  ///< of one class at one layer; beyond them the search is no longer exact
  /// Labels to make: fewer are kept to stay near it, and well beyond it the search gives up.
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  bool memory_only = false;                ///< ignore time: look for the least memory
  const std::atomic<int>* stop = nullptr;  ///< once not 0, the search ends as if the work had been done

  [[nodiscard]] bool interrupted() const { return stop != nullptr && stop->load(std::memory_order_relaxed) != 0; }
  /// Labels that a stage may make when so many are left and so many stages still to be done, joins included: more than
  /// its part, as most need less.
  [[nodiscard]] static std::int64_t share_of_work(std::int64_t left, int stages) {
    return left == std::numeric_limits<std::int64_t>::max() ? left : left / (stages + 1) * 2;
  }
  /// With fewer labels a search is to find a good plan: bounds of its own are not worth their time.
  [[nodiscard]] bool seeks_proof() const { return labels >= 64 && !memory_only; }
};

/// A stage that ends after some layer.
struct StageOption {
  double time = 0;
  double ramp = 0;
  double once = 0;
  std::int64_t peak = 0;
  std::int32_t label = 0;
};

/// An option that none of these is less than in any figure.
inline StageOption least_of(const std::vector<StageOption>& options) {
  StageOption least = options.empty() ? StageOption{} : options.front();
  for (const StageOption& option : options) {
    least.time = std::min(least.time, option.time);
    least.ramp = std::min(least.ramp, option.ramp);
    least.once = std::min(least.once, option.once);
    least.peak = std::min(least.peak, option.peak);
  }
  return least;
}

/// Where stages may begin.
struct Windows {
  std::vector<int> low;   ///< (P + 1) the earliest first layer of every stage; the number of layers
  std::vector<int> high;  ///< (P + 1) the latest
};

/// Which stage a table is for.
struct StageRole {
  int stage = 0;
  int begin = 0;     ///< first layer
  int shortest = 1;  ///< layers
  int longest = 1;   ///< layers
  bool first = true;
  bool last = true;
  int tag = -1;                      ///< of the first layer of the first stage and of the last of the last; -1: any
  std::int64_t least_workspace = 0;  ///< it counts as at least that
  std::int64_t most_workspace = std::numeric_limits<std::int64_t>::max();  ///< no choice has more
};

}  // namespace galvatron::search
