// Sufficient-factor broadcasting: whether a weight's gradient is all-reduced, or its two factors are gathered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include <galvatron/hap/prices.hpp>

namespace galvatron::hap {

/// The gradient dW = dY^T X of a linear layer [features out, features in] for `batch` rows, which are sharded.
struct WeightGradient {
  double batch = 0;
  double in_features = 0;
  double out_features = 0;
};

struct FactorChoice {
  double all_reduce_seconds = 0;          ///< every device multiplies its rows, dW is all-reduced
  double factor_seconds = 0;              ///< dY and X are gathered, every device multiplies all rows
  std::optional<double> threshold_batch;  ///< below it factors win; nothing where they always do

  [[nodiscard]] bool chooses_factors() const { return factor_seconds < all_reduce_seconds; }
};

/// b* = (4 f h / bw_ar) / (k_sfb - k_ar) rows: k_sfb = 4 (f + h) m max_j B_j / bw_ag + 2 f h / min F seconds of a row
/// by factors, k_ar = 2 f h max_j B_j / F_j of one otherwise (HAP, section 4.3; fp32).
inline FactorChoice choose_factors(const WeightGradient& gradient, const Devices& devices, const Ratios& ratios) {
  const RatioPoint point = point_of(devices, ratios);
  const double weight = gradient.in_features * gradient.out_features;
  const double reduced = 4 * weight / devices.rate(Collective::all_reduce);
  const double of_row = 2 * weight * point.work;
  const double gathered = 4 * (gradient.in_features + gradient.out_features) * static_cast<double>(devices.count()) *
                          point.largest / devices.rate(Collective::all_gather);
  const double by_factors = gathered + 2 * weight * point.replicated;
  FactorChoice out;
  out.all_reduce_seconds = reduced + of_row * gradient.batch;
  out.factor_seconds = by_factors * gradient.batch;
  if (by_factors > of_row) out.threshold_batch = reduced / (by_factors - of_row);
  return out;
}

}  // namespace galvatron::hap
