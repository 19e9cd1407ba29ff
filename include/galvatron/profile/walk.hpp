// Places for the operands of measurements.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/units.hpp>
#include <galvatron/core/view.hpp>
#include <galvatron/device/arena.hpp>

namespace galvatron::train::detail {

/// Hands out places in a region one after another, and begins again at its end.
class Walk {
 public:
  explicit Walk(View<std::byte> region) : region_(region), limit_(region.count) {}
  template <class T>
  View<T> next(std::int64_t count) {
    const std::int64_t bytes = aligned_bytes(count * static_cast<std::int64_t>(sizeof(T)));
    if (at_ + bytes > limit_) at_ = 0;
    View<T> place(reinterpret_cast<T*>(region_.data + at_), count);
    at_ += bytes;
    return place;
  }
  /// From now on walks in the first `bytes` of the region only.
  Walk& within(std::int64_t bytes) {
    limit_ = std::clamp<std::int64_t>(bytes, 0, region_.count);
    return *this;
  }

 private:
  View<std::byte> region_;
  std::int64_t limit_;
  std::int64_t at_ = 0;
};

}  // namespace galvatron::train::detail
