// Random words of neighbouring places, many at once.
#pragma once

#include <array>
#include <cstdint>

#include <galvatron/core/rng.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/device/kernels/adamw.hpp>
#include <galvatron/device/kernels/macros.hpp>

namespace galvatron::device::host {

/// A run of a stream's words. fill() computes blocks side by side, which compilers turn into vectors.
class RandomRun {
 public:
  static constexpr std::int64_t most = 512;  ///< places

  /// The words of places [first, first + count), count <= most; with the vectors of the caller's instruction set.
  GALVATRON_INLINE void fill(const kernels::RandomStream& stream, std::uint64_t first, std::int64_t count) {
    skipped_ = static_cast<std::int64_t>(first % 4);
    const std::int64_t blocks = divide_up(skipped_ + count, 4);
    for (std::int64_t block = 0; block < blocks; block += lanes) {
      std::uint32_t c[4][lanes];
      for (int i = 0; i < lanes; ++i) {
        const std::uint64_t index = first / 4 + static_cast<std::uint64_t>(block + i);
        c[0][i] = static_cast<std::uint32_t>(index);
        c[1][i] = static_cast<std::uint32_t>(index >> 32);
        c[2][i] = static_cast<std::uint32_t>(stream.stream);
        c[3][i] = static_cast<std::uint32_t>(stream.stream >> 32);
      }
      auto key0 = static_cast<std::uint32_t>(stream.seed);
      auto key1 = static_cast<std::uint32_t>(stream.seed >> 32);
      for (int round = 0; round < philox_rounds; ++round) {
#pragma omp simd
        for (int i = 0; i < lanes; ++i) philox_round(c[0][i], c[1][i], c[2][i], c[3][i], key0, key1);
        next_philox_key(key0, key1);
      }
      std::uint32_t* out = words_.data() + 4 * block;
      for (int i = 0; i < lanes; ++i)
        for (int word = 0; word < 4; ++word) out[4 * i + word] = c[word][i];
    }
  }
  /// Those of place first + i and the places behind it.
  GALVATRON_INLINE const std::uint32_t* from(std::int64_t i) const { return words_.data() + skipped_ + i; }

 private:
  static constexpr int lanes = 16;  ///< blocks of four words at once
  std::array<std::uint32_t, most + 4 * lanes> words_;
  std::int64_t skipped_ = 0;
};

}  // namespace galvatron::device::host
