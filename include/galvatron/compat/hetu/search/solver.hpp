// The fastest strategies of all stages of a pipeline under Hetu's formula: bounds, and the exact answer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <galvatron/compat/hetu/cost/pipeline.hpp>
#include <galvatron/compat/hetu/search/forms.hpp>
#include <galvatron/compat/hetu/search/stage.hpp>

namespace galvatron::search::hetu {

/// Counts for every stage, and the time of an iteration.
struct Solution {
  double time = infinite;
  std::vector<Counts> stages;
};

/// One pipeline; what its ends take can be changed, and the convex hulls serve all of it.
class Solver {
 public:
  /// @param stages  (p); their capacities come with set_ends
  /// @param m       micro-batches, m >= p
  Solver(std::vector<Stage> stages, double m)
      : stages_(std::move(stages)), m_(m), forms_(iteration_forms(stages_.size(), m)), sums_(stages_.size()) {
    for (Form& form : forms_)
      for (std::size_t i = 0; i < stages_.size(); ++i) form_sums_.push_back(sum_of(i, form.stages[i]));
  }

  /// @param ends        (p) time of embedding and head on each stage
  /// @param capacities  (p) memory for the layers of each stage
  void set_ends(std::vector<double> ends, std::span<const double> capacities) {
    ends_ = std::move(ends);
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      Stage& stage = stages_[i];
      if (stage.capacity == capacities[i] && ready_) continue;
      stage.capacity = capacities[i];
      for (Sum& sum : sums_[i]) sum.least = stage.count * sum.hull.at(stage.capacity / stage.count).value;
    }
    ready_ = true;
  }

  /// No choice is faster than this; infinite if nothing fits.
  [[nodiscard]] double bound() const { return strongest_form().first; }

  /// A good choice, quickly.
  [[nodiscard]] std::optional<Solution> rounded() const {
    const std::size_t decisive = strongest_form().second;
    Solution out;
    for (std::size_t i = 0; i < stages_.size(); ++i) {
      Direction direction = forms_[decisive].stages[i];
      if (direction.time == 0) direction.time = 1;
      auto counts = rounded_counts(stages_[i], direction);
      if (!counts) return std::nullopt;
      out.stages.push_back(std::move(*counts));
    }
    out.time = time_of(out.stages);
    return out;
  }

  /// The fastest choice, if one takes less than `upper` and `work` suffices.
  std::optional<Solution> fastest(double upper, Work& work) {
    best_ = {};
    best_.time = upper;
    const double lower = bound();
    if (!(lower < upper)) return std::nullopt;
    const std::size_t p = stages_.size();
    fronts_.assign(p, {});
    const std::vector<double> longest = longest_times(upper);
    // What a stage adds to a form, at least: of its mixtures, and once it is solved, of its choices.
    std::vector<double> adds(forms_.size() * p);
    for (std::size_t f = 0; f < forms_.size(); ++f)
      for (std::size_t i = 0; i < p; ++i) adds[f * p + i] = least(f, i);
    for (std::size_t i = 0; i < p; ++i) {
      std::vector<Limit> limits;
      for (std::size_t f = 0; f < forms_.size(); ++f) {
        if (!forms_[f].grows) continue;
        double rest = forms_[f].constant(ends_);
        for (std::size_t j = 0; j < p; ++j)
          if (j != i) rest += adds[f * p + j];
        add_limit(limits, {forms_[f].stages[i], upper - rest});
      }
      put_decisive_first(limits, i);
      fronts_[i] = best_counts(stages_[i], limits, excess_matters(i, longest, lower), work);
      if (fronts_[i].empty()) return std::nullopt;
      for (std::size_t f = 0; f < forms_.size(); ++f) {
        double& least_added = adds[f * p + i] = infinite;
        for (const Counts& counts : fronts_[i]) least_added = std::min(least_added, value(f, i, counts));
      }
    }
    adds_ = std::move(adds);
    chosen_.assign(p, 0);
    std::vector<double> sums;
    for (const Form& form : forms_) sums.push_back(form.constant(ends_));
    combine(0, sums, work);
    if (best_.stages.empty()) return std::nullopt;
    return best_;
  }

  [[nodiscard]] const std::vector<Stage>& stages() const { return stages_; }

  /// Choices that were found superfluous may be faster than the answer, but not faster than this: Hetu's formula
  /// rewards, in places, a slower stage. Infinite if there are none.
  [[nodiscard]] double open_bound() const { return open_bound_; }

 private:
  // A direction that some forms have of a stage, up to a factor.
  struct Sum {
    Direction direction;
    Hull hull;
    double least;  // of the whole stage
  };
  struct FormSum {
    int index = -1;  // of Sum; -1: nothing
    double factor = 0;
  };

  FormSum sum_of(std::size_t stage, Direction direction) {
    if (direction == Direction{0, 0}) return {};
    double factor = 1;
    if (direction.excess == 0) std::swap(factor, direction.time);  // the same direction as {1, 0}
    std::vector<Sum>& sums = sums_[stage];
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (sums[i].direction == direction) return {static_cast<int>(i), factor};
    sums.push_back({direction, Hull(stages_[stage].items, direction), infinite});
    return {static_cast<int>(sums.size()) - 1, factor};
  }

  // The largest least value of a form, and which form has it.
  [[nodiscard]] std::pair<double, std::size_t> strongest_form() const {
    std::pair<double, std::size_t> out{-infinite, 0};
    for (std::size_t f = 0; f < forms_.size(); ++f) {
      if (!forms_[f].grows) continue;
      double value = forms_[f].constant(ends_);
      for (std::size_t i = 0; i < stages_.size(); ++i) value += least(f, i);
      if (value > out.first) out = {value, f};
    }
    return out;
  }

  [[nodiscard]] double least(std::size_t form, std::size_t stage) const {
    const FormSum& sum = form_sums_[form * stages_.size() + stage];
    return sum.index < 0 ? 0 : sum.factor * sums_[stage][static_cast<std::size_t>(sum.index)].least;
  }

  [[nodiscard]] double value(std::size_t form, std::size_t stage, const Counts& counts) const {
    const Direction& direction = forms_[form].stages[stage];
    return direction.time * counts.time + direction.excess * counts.excess;
  }

  [[nodiscard]] double time_of(std::span<const Counts> counts) const {
    std::vector<cost::hetu::StageTime> times;
    for (std::size_t i = 0; i < counts.size(); ++i)
      times.push_back({counts[i].time + ends_[i], counts[i].time + counts[i].excess});
    return cost::hetu::iteration_time(times, m_);
  }

  static void add_limit(std::vector<Limit>& limits, Limit limit) {
    if (limit.direction == Direction{0, 0}) return;
    for (Limit& known : limits)
      if (known.direction == limit.direction) {
        known.below = std::min(known.below, limit.below);
        return;
      }
    limits.push_back(limit);
  }

  // The limit that leaves the least room is the one that best_counts orders the items by.
  void put_decisive_first(std::vector<Limit>& limits, std::size_t stage) const {
    const Stage& s = stages_[stage];
    double tightest = infinite;
    for (std::size_t l = 0; l < limits.size(); ++l) {
      const double least = s.count * Hull(s.items, limits[l].direction).at(s.capacity / s.count).value;
      const double room = (limits[l].below - least) / std::max(limits[l].direction.time, limits[l].direction.excess);
      if (room >= tightest) continue;
      tightest = room;
      std::swap(limits[0], limits[l]);
    }
  }

  // (p) No choice below `upper` has a stage whose layers take longer.
  [[nodiscard]] std::vector<double> longest_times(double upper) const {
    const std::size_t p = stages_.size();
    std::vector<double> out;
    for (const Stage& stage : stages_) {
      double slowest = -infinite;
      for (const Item& item : stage.items) slowest = std::max(slowest, item.time);
      out.push_back(stage.count * slowest);
    }
    for (std::size_t f = 0; f < forms_.size(); ++f) {
      if (!forms_[f].grows) continue;
      double whole = forms_[f].constant(ends_);
      for (std::size_t i = 0; i < p; ++i) whole += least(f, i);
      for (std::size_t i = 0; i < p; ++i)
        if (const Direction& d = forms_[f].stages[i]; d.time > 0 && d.excess == 0)
          out[i] = std::min(out[i], (upper - whole + least(f, i)) / d.time);
    }
    return out;
  }

  // Whether the excess of a stage can decide the time of a choice: an overhang of this stage may exceed `lower`.
  [[nodiscard]] bool excess_matters(std::size_t stage, std::span<const double> longest, double lower) const {
    for (const Form& form : forms_) {
      if (form.stages[stage].excess == 0) continue;
      double most = form.constant(ends_);
      for (std::size_t i = 0; i < stages_.size(); ++i) {
        const Direction& d = form.stages[i];
        double shortest = infinite;
        double excess = -infinite;
        for (const Item& item : stages_[i].items) {
          shortest = std::min(shortest, item.time);
          excess = std::max(excess, item.excess);
        }
        most += d.time * (d.time > 0 ? longest[i] : stages_[i].count * shortest);
        if (d.excess > 0) most += d.excess * stages_[i].count * excess;
      }
      if (most > lower) return true;
    }
    return false;
  }

  // Tries the choices of the stages from `stage` on; `sums` is what the stages before add up to, for every form.
  void combine(std::size_t stage, const std::vector<double>& sums, Work& work) {
    const std::size_t p = stages_.size();
    double grown = -infinite;
    for (std::size_t f = 0; f < forms_.size(); ++f) {
      if (!forms_[f].grows) continue;
      double value = sums[f];
      for (std::size_t i = stage; i < p; ++i) value += adds_[f * p + i];
      grown = std::max(grown, value);
    }
    if (!(grown < best_.time)) return;
    if (stage == p) {
      std::vector<Counts> counts;
      for (std::size_t i = 0; i < p; ++i) counts.push_back(fronts_[i][chosen_[i]]);
      const double time = time_of(counts);
      if (time > grown + 1e-12 * std::abs(grown)) open_bound_ = std::min(open_bound_, grown);
      if (time < best_.time) best_ = {time, std::move(counts)};
      return;
    }
    for (std::size_t c = 0; c < fronts_[stage].size(); ++c) {
      if (++work.labels > work.most) {
        work.exhausted = true;
        return;
      }
      chosen_[stage] = c;
      std::vector<double> next = sums;
      for (std::size_t f = 0; f < forms_.size(); ++f) next[f] += value(f, stage, fronts_[stage][c]);
      combine(stage + 1, next, work);
    }
  }

  std::vector<Stage> stages_;
  double m_;
  std::vector<Form> forms_;
  std::vector<std::vector<Sum>> sums_;  // (p)
  std::vector<FormSum> form_sums_;      // (forms, p)
  std::vector<double> ends_;            // (p)
  bool ready_ = false;

  Solution best_;
  std::vector<std::vector<Counts>> fronts_;  // (p)
  std::vector<double> adds_;                 // (forms, p)
  std::vector<std::size_t> chosen_;          // (p)
  double open_bound_ = infinite;
};

}  // namespace galvatron::search::hetu
