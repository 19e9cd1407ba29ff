// The learning rate over a run: linear warm-up, then half a cosine.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace galvatron::train {

struct LearningRate {
  double peak = 1e-3;
  double floor = 1e-4;  ///< at the last step
  std::int64_t warmup_steps = 0;
  std::int64_t steps = 1;  ///< of the whole run

  /// The rate of a step that counts from 0: peak * (step + 1) / warmup_steps while warming up, then from peak to floor
  /// along half a cosine (Loshchilov & Hutter 2017).
  [[nodiscard]] double at(std::int64_t step) const {
    if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    if (steps <= warmup_steps + 1) return peak;
    double progress = static_cast<double>(step - warmup_steps) / static_cast<double>(steps - warmup_steps - 1);
    if (progress > 1) progress = 1;
    return floor + 0.5 * (peak - floor) * (1 + std::cos(std::numbers::pi * progress));
  }
};

}  // namespace galvatron::train
