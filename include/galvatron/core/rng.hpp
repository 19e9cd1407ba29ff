// Counter-based random numbers: every number is a pure function of (seed, stream, index).
//
// Weights, dropout masks and the order of the training data are indexed by their global position, never by a rank, so
// that any rank computes any number with no state and no communication, and every plan draws the same ones.
//
//                    key                 counter (128 bits)                four words
//   seed ----------> lo, hi      index / 4 (64) | stream (64)  --Philox-->  [index % 4]
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include <galvatron/core/view.hpp>

namespace galvatron {

/// One round of Philox4x32 with the round's key.
constexpr void philox_round(std::uint32_t& c0, std::uint32_t& c1, std::uint32_t& c2, std::uint32_t& c3,
                            std::uint32_t key0, std::uint32_t key1) {
  const std::uint64_t a = std::uint64_t{0xD2511F53U} * c0;
  const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * c2;
  c0 = static_cast<std::uint32_t>(b >> 32) ^ c1 ^ key0;
  c1 = static_cast<std::uint32_t>(b);
  c2 = static_cast<std::uint32_t>(a >> 32) ^ c3 ^ key1;
  c3 = static_cast<std::uint32_t>(a);
}
/// The key of the round after one with this key.
constexpr void next_philox_key(std::uint32_t& key0, std::uint32_t& key1) {
  key0 += 0x9E3779B9U;
  key1 += 0xBB67AE85U;
}
inline constexpr int philox_rounds = 10;

/// Philox4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011): a
/// bijection of 128-bit counters for every 64-bit key.
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < philox_rounds; ++round) {
    philox_round(counter[0], counter[1], counter[2], counter[3], key[0], key[1]);
    next_philox_key(key[0], key[1]);
  }
  return counter;
}

/// The four words with indices 4 * block .. 4 * block + 3 of a stream.
constexpr std::array<std::uint32_t, 4> random_block(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  return philox4x32({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                     static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)},
                    {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

/// 32 uniform bits.
constexpr std::uint32_t bits_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  return random_block(seed, stream, index / 4)[index % 4];
}

/// A multiple of 2^-24 in [0, 1).
constexpr float uniform_of(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24F; }

/// Two standard normal numbers from two words (Box and Muller, 1958); their absolute value is at most 5.8.
/// Products only, no sums: nothing for a compiler to contract, so every caller gets the same bits.
inline std::array<float, 2> normal_pair(std::uint32_t first, std::uint32_t second) {
  const float above_zero = static_cast<float>((first >> 8) + 1) * 0x1p-24F;  // (0, 1]
  const float radius = std::sqrt(-2.0F * std::log(above_zero));
  const float angle = 6.28318530717958648F * uniform_of(second);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

/// A standard normal number (mean 0, deviation 1). Reads the same words as bits_at: give different uses different
/// streams.
inline float normal_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto words = random_block(seed, stream, index / 4);
  const auto lane = static_cast<unsigned>(index % 4);
  return normal_pair(words[lane & 2U], words[(lane & 2U) | 1U])[lane & 1U];
}

/// out[i] = stddev * normal_at(seed, stream, first_index + i) for all i, bit for bit.
inline void fill_normal(View<float> out, std::uint64_t seed, std::uint64_t stream, std::uint64_t first_index,
                        float stddev) {
  std::int64_t i = 0;
  const auto one = [&] {
    out[i] = stddev * normal_at(seed, stream, first_index + static_cast<std::uint64_t>(i));
    ++i;
  };
  while (i < out.count && (first_index + static_cast<std::uint64_t>(i)) % 4 != 0) one();
  for (; i + 4 <= out.count; i += 4) {
    const auto words = random_block(seed, stream, (first_index + static_cast<std::uint64_t>(i)) / 4);
    const auto low = normal_pair(words[0], words[1]);
    const auto high = normal_pair(words[2], words[3]);
    out[i] = stddev * low[0];
    out[i + 1] = stddev * low[1];
    out[i + 2] = stddev * high[0];
    out[i + 3] = stddev * high[1];
  }
  while (i < out.count) one();
}

}  // namespace galvatron
