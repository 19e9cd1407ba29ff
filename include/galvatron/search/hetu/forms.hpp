// Hetu's time of an iteration as a maximum of linear forms of what the stages take, which is what bounds need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <galvatron/search/hetu/stage.hpp>

namespace galvatron::search::hetu {

/// constant + Σ over stages of time * N_i + excess * X_i, where N_i is the time and X_i the excess of stage i's layers.
struct Form {
  std::vector<Direction> stages;  ///< (p)
  double constant = 0;            ///< of the ends
  /// No coefficient is negative: a form that grows with every stage. Only these bound a search.
  bool grows = true;
};

/// The forms for m micro-batches (m >= p); their maximum is cost::hetu::iteration_time with C_i = N_i + e_i, where e =
/// `ends` is the time of embedding and head on the stages, and G_i = N_i + X_i.
///
/// R is a maximum of three sums, each with or without one of the p overhangs G_k - sum_{j<=k} C_j.
inline std::vector<Form> iteration_forms(std::vector<double> ends, double m) {
  const std::size_t p = ends.size();
  std::vector<Form> out;
  for (int sum = 0; sum < 3; ++sum)
    for (std::size_t k = 0; k <= p; ++k) {  // k = p: no overhang
      Form form;
      form.stages.assign(p, {0, 0});
      for (std::size_t i = 0; i < p; ++i) {
        double coefficient = 0;  // of C_i
        if (sum == 0) coefficient = i + 1 == p ? m : 1;
        if (sum == 1) coefficient = i == 0 ? m : 0;
        if (sum == 2) coefficient = i == 0 ? m + 1 - static_cast<double>(p) : 1;
        if (k < p && i <= k) coefficient -= 1;
        form.constant += coefficient * ends[i];
        if (i == k) {
          coefficient += 1;
          form.stages[i].excess = 1;
        }
        form.stages[i].time = coefficient;
        form.grows = form.grows && coefficient >= 0;
      }
      out.push_back(std::move(form));
    }
  return out;
}

}  // namespace galvatron::search::hetu
