// Ratios as whole numbers: how many rows of a sharded dimension each device gets.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <galvatron/hap/prices.hpp>

namespace galvatron::hap {

using Sizes = std::vector<std::int64_t>;

/// The paper's rule (section 4.4): the nearest integers, halves up, then steps of one where |size - length B_j| is
/// smallest behind the step, the first of equals, until they add up to `length`. No size is below 0.
/// @param ratios  B_j >= 0 that add up to 1
inline Sizes nearest_sizes(std::int64_t length, const Ratios& ratios) {
  const auto whole = static_cast<double>(length);
  Sizes out;
  for (const double ratio : ratios) out.push_back(static_cast<std::int64_t>(std::floor(whole * ratio + 0.5)));
  for (std::int64_t off = length - std::accumulate(out.begin(), out.end(), std::int64_t{0}); off != 0;) {
    const std::int64_t step = off > 0 ? 1 : -1;
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < out.size(); ++j) {
      const double error = std::abs(static_cast<double>(out[j] + step) - whole * ratios[j]);
      if (out[j] + step < 0 || error >= least) continue;
      least = error;
      best = j;
    }
    out[best] += step;
    off -= step;
  }
  return out;
}

/// That of the released program: integers below, then one more for the largest deficit, the last of equals. A length of
/// 1 is not sharded: every device has it.
inline Sizes released_sizes(std::int64_t length, const Ratios& ratios) {
  if (length == 1) return Sizes(ratios.size(), 1);
  const auto whole = static_cast<double>(length);
  Sizes out;
  for (const double ratio : ratios) out.push_back(static_cast<std::int64_t>(std::floor(whole * ratio)));
  for (std::int64_t left = length - std::accumulate(out.begin(), out.end(), std::int64_t{0}); left > 0; --left) {
    std::size_t best = 0;
    for (std::size_t j = 1; j < out.size(); ++j)
      if (whole * ratios[j] - static_cast<double>(out[j]) >= whole * ratios[best] - static_cast<double>(out[best]))
        best = j;
    ++out[best];
  }
  return out;
}

}  // namespace galvatron::hap
