// Division by a number that a kernel is given.
#pragma once

#include <bit>
#include <cstdint>

#include <galvatron/device/cuda/block.hpp>

namespace galvatron::device::cuda {

/// Divides by `value` >= 1 as a multiplication and a shift (Granlund & Montgomery 1994), which on a GPU takes a tenth
/// of the time of a division of 64 bits.
///
/// With l = ceil(log2 value) and m = ceil(2^(31 + l) / value), floor(n m / 2^(31 + l)) = floor(n / value) for every n
/// below 2^31, and m has 32 bits.
class Divisor {
 public:
  struct Parts {
    std::int64_t quotient;
    std::int64_t remainder;
  };

  Divisor() = default;
  constexpr explicit Divisor(std::int64_t value) : value_(value) {
    if (value >= limit) return;
    const int bits = std::bit_width(static_cast<std::uint64_t>(value - 1));
    shift_ = 31 + bits;
    multiplier_ = static_cast<std::uint32_t>(((std::uint64_t{1} << shift_) + static_cast<std::uint64_t>(value) - 1) /
                                             static_cast<std::uint64_t>(value));
  }

  /// Of n >= 0.
  [[nodiscard]] GALVATRON_KERNEL Parts operator()(std::int64_t n) const {
    const std::int64_t quotient =
        n < limit && value_ < limit ? static_cast<std::int64_t>(product(n) >> shift_) : n / value_;
    return {quotient, n - quotient * value_};
  }
  [[nodiscard]] constexpr std::int64_t value() const { return value_; }

 private:
  static constexpr std::int64_t limit = std::int64_t{1} << 31;

  [[nodiscard]] GALVATRON_KERNEL std::uint64_t product(std::int64_t n) const {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(n)) * multiplier_;
  }

  std::int64_t value_ = 1;
  std::uint32_t multiplier_ = std::uint32_t{1} << 31;
  int shift_ = 31;
};

}  // namespace galvatron::device::cuda
