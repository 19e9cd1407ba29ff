// Counter-based random numbers: every number is a pure function of (seed, stream, index).
//
// Weights, dropout masks and the order of the training data are indexed by their global position, never by a rank, so
// that any rank computes any number with no state and no communication, and every plan draws the same ones.
//
//                    key                 counter (128 bits)                four words
//   seed ----------> lo, hi      index / 4 (64) | stream (64)  --Philox-->  [index % 4]
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <galvatron/core/compiled.hpp>
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

/// Random numbers of which every sample of a step has its own: a stream, and the number of the sample that is the first
/// here. As words it can be data of a device.
struct SampleStream {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t first_sample = 0;

  static constexpr std::int64_t words = 6;
  constexpr void write(std::int32_t* to) const {
    for (const std::uint64_t number : {seed, stream, first_sample}) {
      *to++ = static_cast<std::int32_t>(number & 0xffffffffU);
      *to++ = static_cast<std::int32_t>(number >> 32);
    }
  }
  static constexpr SampleStream read(const std::int32_t* from) { return {pair(from), pair(from + 2), pair(from + 4)}; }

 private:
  static constexpr std::uint64_t pair(const std::int32_t* words) {
    return static_cast<std::uint32_t>(words[0]) | std::uint64_t{static_cast<std::uint32_t>(words[1])} << 32;
  }
};

/// The radius of a pair of normal numbers.
inline float normal_radius(std::uint32_t word) {
  const float above_zero = static_cast<float>((word >> 8) + 1) * 0x1p-24F;  // (0, 1]
  return std::sqrt(-2.0F * std::log(above_zero));
}

struct CosineAndSine {
  float cosine, sine;
};
/// Of the angle of a pair, in [0, 2 pi): as cosf and sinf of glibc 2.28 to 2.40 compute them, their bits for every
/// angle that there is, without branches. A compiler may contract the sums: rounded to a float they stay the same (a
/// test has all angles).
inline CosineAndSine normal_direction(std::uint32_t word) {
  const double angle = 6.28318530717958648F * uniform_of(word);
  const double above = angle * 0x1.45F306DC9C883p-1 + 0.5;
  const auto quarter = static_cast<std::int32_t>(above);  // the nearest, 0 .. 4
  const double x = angle - quarter * 0x1.921FB54442D18p0;
  const double x2 = x * x;
  const double x4 = x2 * x2;
  const auto s = static_cast<float>((x + x * x2 * -0x1.555545995a603p-3) +
                                    x * x4 * (0x1.1107605230bc4p-7 + x2 * -0x1.994eb3774cf24p-13));
  const auto c = static_cast<float>((1.0 + x2 * -0x1.ffffffd0c621cp-2 + x4 * 0x1.55553e1068f19p-5) +
                                    x4 * x2 * (-0x1.6c087e89a359dp-10 + x2 * 0x1.99343027bf8c3p-16));
  // In odd quarters they change places; the second bit of a quarter is a sign. On bits, which vectors have too.
  const auto q = static_cast<std::uint32_t>(quarter);
  const auto s_bits = std::bit_cast<std::uint32_t>(s);
  const auto c_bits = std::bit_cast<std::uint32_t>(c);
  const std::uint32_t change = (s_bits ^ c_bits) & (0U - (q & 1U));
  return {std::bit_cast<float>(c_bits ^ change ^ (((q + 1U) & 2U) << 30U)),
          std::bit_cast<float>(s_bits ^ change ^ ((q & 2U) << 30U))};
}

/// Two standard normal numbers from two words (Box and Muller, 1958); their absolute value is at most 5.8.
inline std::array<float, 2> normal_pair(std::uint32_t first, std::uint32_t second) {
  const float radius = normal_radius(first);
  const auto [cosine, sine] = normal_direction(second);
  return {radius * cosine, radius * sine};
}

/// A standard normal number (mean 0, deviation 1). Reads the same words as bits_at: give different uses different
/// streams.
inline float normal_at(std::uint64_t seed, std::uint64_t stream, std::uint64_t index) {
  const auto words = random_block(seed, stream, index / 4);
  const auto lane = static_cast<unsigned>(index % 4);
  return normal_pair(words[lane & 2U], words[(lane & 2U) | 1U])[lane & 1U];
}

/// out[i] = stddev * normal_at(seed, stream, first_index + i) for all i, bit for bit.
template <class = void>
void fill_normal(View<float> out, std::uint64_t seed, std::uint64_t stream, std::uint64_t first_index, float stddev) {
  std::int64_t i = 0;
  const auto one = [&] {
    out[i] = stddev * normal_at(seed, stream, first_index + static_cast<std::uint64_t>(i));
    ++i;
  };
  while (i < out.count && (first_index + static_cast<std::uint64_t>(i)) % 4 != 0) one();
  // Each loop does one thing, so that compilers make vectors of all but the logarithms.
  constexpr std::size_t most = 256;
  std::array<std::uint32_t, most> words;
  std::array<float, most / 2> radii;
  while (i + 4 <= out.count) {
    const std::size_t count = std::min(most, static_cast<std::size_t>(out.count - i) / 4 * 4);
    const std::uint64_t block = (first_index + static_cast<std::uint64_t>(i)) / 4;
    for (std::size_t k = 0; k < count / 4; ++k) {
      const auto four = random_block(seed, stream, block + k);
      for (std::size_t lane = 0; lane < 4; ++lane) words[4 * k + lane] = four[lane];
    }
    for (std::size_t k = 0; k < count / 2; ++k) radii[k] = normal_radius(words[2 * k]);
    float* const to = out.data + i;
    for (std::size_t k = 0; k < count / 2; ++k) {
      const auto [cosine, sine] = normal_direction(words[2 * k + 1]);
      to[2 * k] = stddev * (radii[k] * cosine);
      to[2 * k + 1] = stddev * (radii[k] * sine);
    }
    i += static_cast<std::int64_t>(count);
  }
  while (i < out.count) one();
}
GALVATRON_IN_TRAINER(void fill_normal<>(View<float>, std::uint64_t, std::uint64_t, std::uint64_t, float))

}  // namespace galvatron
