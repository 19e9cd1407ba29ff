// Sampler: chooses the next token from a model's logits.
//
//   logits / temperature ──▶ the k largest ──▶ of these the likeliest until their probabilities reach p ──▶ one of them
//
// The number that chooses is a function of seed, sample and position (core/rng.hpp): no state, and the same whatever
// was drawn before.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <galvatron/core/rng.hpp>

namespace galvatron::generate {

struct Sampling {
  double temperature = 1;  ///< 0: the likeliest token
  std::int64_t top_k = 0;  ///< 0: all tokens
  double top_p = 1;        ///< in (0, 1]
  std::uint64_t seed = 1;
};

/// A number in [0, 1) with 53 bits.
constexpr double uniform_for(const Sampling& sampling, std::int64_t sample, std::int64_t position) {
  constexpr std::uint64_t stream = 0x67656e6572617465U;  // apart from those of weights and data
  const auto words =
      random_block(sampling.seed, stream + static_cast<std::uint64_t>(sample), static_cast<std::uint64_t>(position));
  return static_cast<double>((std::uint64_t{words[0]} << 32 | words[1]) >> 11) * 0x1p-53;
}

/// The token that follows, for sample `sample` at position `position`. Ties go to the lower number; logits that are not
/// numbers are never chosen.
/// @param logits  (V), at least one of them finite
inline std::int32_t choose_token(std::span<const float> logits, const Sampling& sampling, std::int64_t sample,
                                 std::int64_t position) {
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i])) tokens.push_back(static_cast<std::int32_t>(i));
  if (tokens.empty()) return 0;
  if (sampling.temperature == 0) return *std::ranges::min_element(tokens, likelier);
  const bool cuts = sampling.top_k > 0 && sampling.top_k < std::ssize(tokens);
  if (cuts) {
    std::ranges::nth_element(tokens, tokens.begin() + sampling.top_k - 1, likelier);
    tokens.resize(static_cast<std::size_t>(sampling.top_k));
  }
  std::ranges::sort(tokens, likelier);
  std::vector<double> weights;
  const double most = logits[static_cast<std::size_t>(tokens.front())];
  for (const std::int32_t token : tokens)
    weights.push_back(std::exp((logits[static_cast<std::size_t>(token)] - most) / sampling.temperature));
  double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (sampling.top_p < 1) {
    double kept = 0;
    std::size_t count = 0;
    while (count < weights.size() && (count == 0 || kept < sampling.top_p * sum)) kept += weights[count++];
    weights.resize(count);
    sum = kept;
  }
  double rest = uniform_for(sampling, sample, position) * sum;
  std::size_t chosen = 0;
  while (chosen + 1 < weights.size() && rest >= weights[chosen]) rest -= weights[chosen++];
  return tokens[chosen];
}

}  // namespace galvatron::generate
