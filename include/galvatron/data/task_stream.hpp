// TaskStream: where a run of several tasks is in the data of one of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace galvatron::train {

/// The data of a task: how far they are read, and which they are.
struct TaskStream {
  std::string task;
  std::int64_t batch = 0;    ///< samples of a step
  std::int64_t samples = 0;  ///< read before step `step`
  std::int64_t step = 0;
  std::optional<std::uint32_t> crc32c{};  ///< of samples of the data

  /// Samples that were read when so many steps are done.
  [[nodiscard]] std::int64_t samples_at(std::int64_t steps) const { return samples + (steps - step) * batch; }
};

}  // namespace galvatron::train
