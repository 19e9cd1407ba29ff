// Noise that rows of tokens are multiplied by (Fedus et al., "Switch Transformers", 2021: input jitter). A number
// belongs to seed, step, layer, sample, token and column, wherever the token is: every rank and every pass draws the
// same.
#pragma once

#include <cstdint>

#include <galvatron/core/rng.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::kernels {

/// Rows from a token of all samples on: row r is token first_token + r / samples of sample r % samples.
struct Jitter {
  std::int64_t samples = 1;  ///< b, on this rank
  std::int64_t tokens = 1;   ///< S, of a whole sample
  std::int64_t first_token = 0;
  std::int64_t columns = 1;
  float amount = 0;  ///< factors are uniform in [1 - amount, 1 + amount)

  /// Where the random numbers of a row begin: the block of its first four columns.
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE std::uint64_t block(const SampleStream& stream, std::int64_t row) const {
    const std::uint64_t sample = stream.first_sample + static_cast<std::uint64_t>(row % samples);
    const auto token = static_cast<std::uint64_t>(first_token + row / samples);
    return (sample * static_cast<std::uint64_t>(tokens) + token) * static_cast<std::uint64_t>((columns + 3) / 4);
  }
  [[nodiscard]] GALVATRON_HD GALVATRON_INLINE float factor(std::uint32_t word) const {
    return 1.0F + amount * (2.0F * uniform_of(word) - 1.0F);
  }
};

}  // namespace galvatron::device::kernels
