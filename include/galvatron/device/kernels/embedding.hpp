// Which row of a shard of the vocabulary a token reads.
#pragma once

#include <cstdint>

#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::kernels {

/// The row of `token` in a shard that holds tokens [first, first + count), or -1.
GALVATRON_HD GALVATRON_INLINE std::int64_t shard_row(std::int32_t token, std::int64_t first, std::int64_t count) {
  const std::int64_t row = token - first;
  return row >= 0 && row < count ? row : -1;
}

}  // namespace galvatron::device::kernels
