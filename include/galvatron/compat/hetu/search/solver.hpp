// The fastest strategies of all stages of a pipeline under Hetu's formula: bounds, and the exact answer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <galvatron/compat/hetu/cost.hpp>
#include <galvatron/compat/hetu/search/stage.hpp>

namespace galvatron::search::hetu {

/// A linear form of what the stages take:
///
///     Σ over stages i of ofC_i * C_i, plus G_k of one stage `overhang`
///
/// with C_i = N_i + e_i and G_i = N_i + X_i, where N_i is the time and X_i the excess of stage i's layers, and e_i the
/// time of embedding and head there.
struct Form {
  std::vector<double> coefficients;  ///< (p) of C_i
  std::size_t overhang = 0;          ///< p: none

  [[nodiscard]] Direction direction(std::size_t stage) const {
    return stage == overhang ? Direction{coefficients[stage] + 1, 1} : Direction{coefficients[stage], 0};
  }
};

/// The forms for m micro-batches over p stages (m >= p) whose maximum is cost::hetu::iteration_time: that is a maximum
/// of three sums, each with or without one of the overhangs G_k - sum_{j<=k} C_j. Only those that fall with no stage
/// are given, which are what bounds a search.
inline std::vector<Form> growing_forms(std::size_t p, double m) {
  std::vector<Form> out;
  for (int sum = 0; sum < 3; ++sum)
    for (std::size_t k = 0; k <= p; ++k) {
      Form form{std::vector<double>(p, sum == 1 ? 0 : 1), k};
      if (sum == 0) form.coefficients.back() = m;
      if (sum == 1) form.coefficients.front() = m;
      if (sum == 2) form.coefficients.front() = m + 1 - static_cast<double>(p);
      bool grows = true;
      for (std::size_t i = 0; i < p; ++i) {
        if (k < p && i <= k) form.coefficients[i] -= 1;
        grows = grows && form.direction(i).time >= 0;
      }
      if (grows) out.push_back(std::move(form));
    }
  return out;
}

/// Counts for every stage, and the time of an iteration.
struct Solution {
  double time = infinite;
  std::vector<Counts> stages;
};

/// One pipeline; what its ends take can be changed, and the convex hulls serve all of it.
class Solver {
 public:
  /// @param stages  (p); their capacities come with set_ends  @param m  micro-batches, m >= p
  Solver(std::vector<Stage> stages, double m)
      : stages_(std::move(stages)), m_(m), forms_(growing_forms(stages_.size(), m)), hulls_(stages_.size()) {}

  /// @param ends  (p) time of embedding and head on each stage  @param capacities  (p) memory for its layers
  void set_ends(std::vector<double> ends, const std::vector<double>& capacities) {
    ends_ = std::move(ends);
    for (std::size_t i = 0; i < stages_.size(); ++i) stages_[i].capacity = capacities[i];
    adds_.clear();
    for (const Form& form : forms_)
      for (std::size_t i = 0; i < stages_.size(); ++i) adds_.push_back(least(i, form.direction(i)));
  }

  /// No choice is faster than this; infinite if nothing fits.
  [[nodiscard]] double bound() const { return strongest_form().first; }

  /// A good choice, quickly. Something fits.
  [[nodiscard]] Solution greedy() const {
    Solution out;
    const Form& form = forms_[strongest_form().second];
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      Direction direction = form.direction(i);
      if (direction.time == 0) direction.time = 1;
      out.stages.push_back(greedy_counts(stages_[i], direction));
    }
    out.time = time_of(out.stages);
    return out;
  }

  /// The fastest choice, if one takes less than `upper` and `work` suffices. To be called once after set_ends.
  std::optional<Solution> fastest(double upper, Work& work) {
    best_ = {upper, {}};
    if (!(bound() < upper)) return std::nullopt;
    const std::size_t p = stages_.size();
    std::vector<double> sums;
    for (std::size_t f = 0; f < forms_.size(); ++f) sums.push_back(constant(f));
    fronts_.clear();
    for (std::size_t i = 0; i < p; ++i) {
      std::map<Direction, double> limits;
      for (std::size_t f = 0; f < forms_.size(); ++f) {
        double below = upper - sums[f];
        for (std::size_t j = 0; j < p; ++j)
          if (j != i) below -= adds_[f * p + j];
        Direction direction = forms_[f].direction(i);
        if (direction == Direction{0, 0}) continue;
        if (direction.excess == 0) below /= std::exchange(direction.time, 1);
        const auto known = limits.try_emplace(direction, below).first;
        known->second = std::min(known->second, below);
      }
      fronts_.push_back(best_counts(stages_[i], limits, work));
      if (fronts_[i].empty()) return std::nullopt;
      for (std::size_t f = 0; f < forms_.size(); ++f) {  // from now on the least of its choices, not of its mixtures
        double& adds = adds_[f * p + i] = infinite;
        for (const Counts& counts : fronts_[i]) adds = std::min(adds, forms_[f].direction(i).of(counts));
      }
    }
    std::vector<Counts> chosen;
    combine(chosen, sums, work);
    if (best_.stages.empty()) return std::nullopt;
    return best_;
  }

  [[nodiscard]] const std::vector<Stage>& stages() const { return stages_; }

  /// No choice that was found dominated is faster than this: Hetu's formula rewards, in places, a slower stage.
  [[nodiscard]] double open_bound() const { return open_bound_; }

 private:
  // The least of a direction over the mixtures of a stage.
  [[nodiscard]] double least(std::size_t stage, const Direction& direction) {
    if (direction == Direction{0, 0}) return 0;
    std::vector<HullPoint>& hull = hulls_[stage][direction];
    const Stage& s = stages_[stage];
    if (hull.empty()) hull = hull_of(s.items, direction);
    return s.count * best_mixture(hull, s.capacity / s.count).value;
  }

  // What embedding and head add to a form.
  [[nodiscard]] double constant(std::size_t form) const {
    double out = 0;
    for (std::size_t i = 0; i < ends_.size(); ++i) out += forms_[form].coefficients[i] * ends_[i];
    return out;
  }

  // The largest form and which one it is, when stages before `stage` add sum(form) and the others their least.
  template <class Sum>
  [[nodiscard]] std::pair<double, std::size_t> strongest_form(std::size_t stage, Sum sum) const {
    std::pair<double, std::size_t> out{-infinite, 0};
    for (std::size_t f = 0; f < forms_.size(); ++f) {
      double value = sum(f);
      for (std::size_t i = stage; i < stages_.size(); ++i) value += adds_[f * stages_.size() + i];
      if (value > out.first) out = {value, f};
    }
    return out;
  }
  [[nodiscard]] std::pair<double, std::size_t> strongest_form() const {
    return strongest_form(0, [&](std::size_t form) { return constant(form); });
  }

  [[nodiscard]] double time_of(const std::vector<Counts>& counts) const {
    std::vector<cost::hetu::StageTime> times;
    for (std::size_t i = 0; i < counts.size(); ++i)
      times.push_back({counts[i].time + ends_[i], counts[i].time + counts[i].excess});
    return cost::hetu::iteration_time(times, m_);
  }

  // Tries the choices of the stages behind those that are chosen; `sums` is what the latter add up to, for every form.
  void combine(std::vector<Counts>& chosen, const std::vector<double>& sums, Work& work) {
    const std::size_t stage = chosen.size();
    const double grown = strongest_form(stage, [&](std::size_t form) { return sums[form]; }).first;
    if (!(grown < best_.time)) return;
    if (stage == stages_.size()) {
      const double time = time_of(chosen);
      if (time > grown + 1e-12 * std::abs(grown)) open_bound_ = std::min(open_bound_, grown);
      if (time < best_.time) best_ = {time, chosen};
      return;
    }
    for (const Counts& counts : fronts_[stage]) {
      if (++work.labels > work.most) {
        work.exhausted = true;
        return;
      }
      std::vector<double> next = sums;
      for (std::size_t f = 0; f < forms_.size(); ++f) next[f] += forms_[f].direction(stage).of(counts);
      chosen.push_back(counts);
      combine(chosen, next, work);
      chosen.pop_back();
    }
  }

  std::vector<Stage> stages_;
  double m_;
  std::vector<Form> forms_;
  std::vector<std::map<Direction, std::vector<HullPoint>>> hulls_;  // (p)
  std::vector<double> ends_;                                        // (p)
  std::vector<double> adds_;                                        // (forms, p) what a stage adds to a form, at least

  Solution best_;
  std::vector<std::vector<Counts>> fronts_;  // (p)
  double open_bound_ = infinite;
};

}  // namespace galvatron::search::hetu
