// The order in which a run reads its windows: a permutation of each epoch that anybody can compute at any place.
#pragma once

#include <bit>
#include <cstdint>

#include <galvatron/core/rng.hpp>

namespace galvatron::train {

/// Element `index` of a random permutation of [0, count), a different one for every (seed, epoch): a Feistel network on
/// the next even number of bits (Luby and Rackoff, 1988) with Philox as its round function, walked until it falls into
/// the range (Black and Rogaway, 2002), which takes less than 4 steps on average. count < 2^62.
constexpr std::uint64_t shuffled(std::uint64_t seed, std::uint64_t epoch, std::uint64_t index, std::uint64_t count) {
  if (count <= 1) return 0;
  const int half = (static_cast<int>(std::bit_width(count - 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << half) - 1;
  constexpr std::uint64_t stream = 0x6461746100000000U;  // apart from the streams of the weights
  std::uint64_t x = index;
  do {
    std::uint64_t left = x >> half, right = x & mask;
    for (std::uint64_t round = 0; round < 6; ++round) {
      const std::uint64_t mixed = left ^ (random_block(seed, stream + epoch, round << 32 | right)[0] & mask);
      left = right;
      right = mixed;
    }
    x = left << half | right;
  } while (x >= count);
  return x;
}

}  // namespace galvatron::train
