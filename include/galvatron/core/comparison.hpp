// A measurement beside its prediction, in words.
#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include <galvatron/core/units.hpp>

namespace galvatron {

/// What was measured against what was predicted: "62 % slower than predicted", "3.4 % faster than predicted" (per cent
/// of the predicted time), "as predicted" when they differ by less than 0.05 %, "34 times as long as predicted" from
/// three times on. Empty unless both are known.
inline std::string against_prediction(Seconds predicted, Seconds measured) {
  if (!(predicted.value > 0) || !(measured.value > 0)) return {};
  const double ratio = measured / predicted;
  const double percent = 100 * std::fabs(ratio - 1);
  std::array<char, 64> out{};
  if (ratio >= 3)
    std::snprintf(out.data(), out.size(),
                  ratio < 9.95 ? "%.1f times as long as predicted" : "%.0f times as long as predicted", ratio);
  else if (percent < 0.05)
    return "as predicted";
  else
    std::snprintf(out.data(), out.size(), percent < 9.95 ? "%.1f %% %s than predicted" : "%.0f %% %s than predicted",
                  percent, ratio > 1 ? "slower" : "faster");
  return out.data();
}

}  // namespace galvatron
