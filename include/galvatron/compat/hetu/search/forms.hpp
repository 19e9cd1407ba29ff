// Hetu's time of an iteration as a maximum of linear forms of what the stages take, which is what bounds need.
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/compat/hetu/search/stage.hpp>

namespace galvatron::search::hetu {

/// Σ over stages of ends * e_i + time * N_i + excess * X_i, where N_i is the time and X_i the excess of stage i's
/// layers, and e_i the time of embedding and head there.
struct Form {
  std::vector<Direction> stages;  ///< (p)
  std::vector<double> ends;       ///< (p)
  bool grows = true;              ///< no coefficient of a stage is negative: only such forms bound a search
  [[nodiscard]] double constant(std::span<const double> end_times) const {
    double out = 0;
    for (std::size_t i = 0; i < ends.size(); ++i) out += ends[i] * end_times[i];
    return out;
  }
};

/// The forms for m micro-batches over p stages (m >= p); their maximum is cost::hetu::iteration_time with C_i = N_i +
/// e_i and G_i = N_i + X_i: R is a maximum of three sums, each with or without one of the overhangs
/// G_k - sum_{j<=k} C_j.
inline std::vector<Form> iteration_forms(std::size_t p, double m) {
  std::vector<Form> out;
  for (int sum = 0; sum < 3; ++sum)
    for (std::size_t k = 0; k <= p; ++k) {  // k = p: no overhang
      Form form;
      for (std::size_t i = 0; i < p; ++i) {
        double coefficient = 0;  // of C_i
        if (sum == 0) coefficient = i + 1 == p ? m : 1;
        if (sum == 1) coefficient = i == 0 ? m : 0;
        if (sum == 2) coefficient = i == 0 ? m + 1 - static_cast<double>(p) : 1;
        if (k < p && i <= k) coefficient -= 1;
        form.ends.push_back(coefficient);
        form.stages.push_back(i == k ? Direction{coefficient + 1, 1} : Direction{coefficient, 0});
        form.grows = form.grows && form.stages.back().time >= 0;
      }
      out.push_back(std::move(form));
    }
  return out;
}

}  // namespace galvatron::search::hetu
