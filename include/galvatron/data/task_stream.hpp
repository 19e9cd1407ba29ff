// TaskStream: where a run of several tasks is in the data of one of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace galvatron::train {

/// The data of a task: how far they are read, and which they are.
struct TaskStream {
  /// Another batch from some step on.
  struct Change {
    std::int64_t step = 0;
    std::int64_t batch = 0;  ///< 0: the task pauses
  };

  std::string task;
  std::int64_t batch = 0;    ///< samples of a step; 0: the task pauses
  std::int64_t samples = 0;  ///< read before step `step`
  std::int64_t step = 0;
  std::optional<std::uint32_t> crc32c{};  ///< of samples of the data
  std::vector<Change> changes{};          ///< by their steps, each behind `step`

  /// Samples that were read when so many steps are done.
  [[nodiscard]] std::int64_t samples_at(std::int64_t steps) const {
    std::int64_t out = samples, since = step, own = batch;
    for (const Change& change : changes) {
      if (change.step >= steps) break;
      out += (change.step - since) * own;
      since = change.step;
      own = change.batch;
    }
    return out + (steps - since) * own;
  }
  /// Samples of a step.
  [[nodiscard]] std::int64_t batch_at(std::int64_t of_step) const {
    std::int64_t out = batch;
    for (const Change& change : changes)
      if (change.step <= of_step) out = change.batch;
    return out;
  }
};

}  // namespace galvatron::train
