// Which row of a table of relative positions a distance reads.
#pragma once

#include <cmath>
#include <cstdint>

#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::kernels {

/// T5's bucket of the distance key - query (Raffel et al., 2020): half of the buckets of a direction for one distance
/// each, the others for runs that grow by a constant factor up to `far`. Two directions share the buckets: keys that
/// follow have the second half. With one, all keys that follow are as near as the query itself.
GALVATRON_HD inline std::int64_t relative_bucket(std::int64_t distance, std::int64_t buckets, std::int64_t far,
                                                 bool one_direction) {
  const std::int64_t n = one_direction ? buckets : buckets / 2;
  const std::int64_t first = !one_direction && distance > 0 ? n : 0;
  if (one_direction && distance > 0) distance = 0;
  const std::int64_t away = distance < 0 ? -distance : distance;
  const std::int64_t exact = n / 2;
  if (exact == 0) return first;
  if (away < exact || exact >= far) return first + (away < n ? away : n - 1);
  const double grown = std::log(static_cast<double>(away) / static_cast<double>(exact)) /
                       std::log(static_cast<double>(far) / static_cast<double>(exact));
  const auto behind = exact + static_cast<std::int64_t>(grown * static_cast<double>(n - exact));
  return first + (behind < n ? behind : n - 1);
}

}  // namespace galvatron::device::kernels
