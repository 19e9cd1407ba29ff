// Weighings: the ways in which bounds on pipelines count what stages do once an iteration.
//
// With T the seconds of a stage for a micro-batch, R its ramp and O the largest seconds that a stage has once an
// iteration, an iteration takes at least
//
//     alone (ramp sum R + turns max T) + O
//
// A part of O may be counted at the stages instead, because no stage has more than O: for any shares u, w >= 0
//
//     alone (ramp sum (R + u once) + turns max (T + w once)) + (1 - alone (ramp P u + turns w)) O
//
// is no more, as long as the last factor is not negative. A stage that is fast because it does much once an iteration
// (ZeRO, few data parallel ranks) is told from one that is fast by itself only if it is counted there. Three ways
// serve: nothing at the stages; all of it in the slowest; and all of it, alike, in sum and slowest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include <galvatron/search/bounds.hpp>
#include <galvatron/search/parallel.hpp>
#include <galvatron/search/problem.hpp>
#include <galvatron/search/segments.hpp>

namespace galvatron::search {

class Weighings {
 public:
  static constexpr std::size_t most = 3;

  /// @param workspace_classes  of the segments: see Segments
  /// @param executor           shares the work
  template <class Executor = Team>
  Weighings(const Problem& problem, const Bounds& bounds, int workspace_classes = 1, Executor* executor = nullptr)
      : objective_(problem.objective) {
    const auto add = [&](double in_ramp, double in_slowest) {
      const double weighed = objective_.alone * (objective_.weights.fill_drain * problem.stages() * in_ramp +
                                                 objective_.weights.steady * in_slowest);
      all_.push_back({in_ramp, in_slowest, in_slowest > 0 ? 0 : 1 - weighed,
                      Segments(problem, in_slowest, workspace_classes, executor), ramps(problem, bounds, in_ramp)});
    };
    const cost::PipelineWeights& weights = objective_.weights;
    if (problem.stages() == 1) {  // the objective is one sum
      add(bounds.once_share(), bounds.once_share());
      return;
    }
    add(0, 0);
    if (weights.steady > 0) add(0, 1 / (objective_.alone * weights.steady));
    // Where stages share cores, their sum alone is a bound as well, and not more than a part of it may be weighed.
    if (!objective_.shared) add(bounds.once_share(), bounds.once_share());
  }

  [[nodiscard]] std::size_t size() const { return all_.size(); }
  /// Of T + share * once.
  [[nodiscard]] const Segments& segments(std::size_t k) const { return all_[k].segments; }
  /// Seconds of the slowest stage that one second once an iteration counts for.
  [[nodiscard]] double share(std::size_t k) const { return all_[k].in_slowest; }
  /// Ramps are weighed like the slowest stage.
  [[nodiscard]] bool weighs_ramps(std::size_t k) const { return all_[k].in_ramp > 0; }
  /// Sums over the layers before each one, (layers + 1), of the least ramp + in_ramp * once.
  [[nodiscard]] const std::vector<double>& ramps(std::size_t k) const { return all_[k].ramps; }

  /// No assignment is faster whose stages have these, weighed, and whose largest seconds once an iteration are `once`.
  [[nodiscard]] double seconds(std::size_t k, double ramps, double slowest, double once) const {
    return objective_(ramps, slowest, all_[k].rest * once);
  }
  /// The same where `once` is what the largest is at least, `ramps` and `slowest` are not weighed, and weighed ones are
  /// known besides, the ramps of `stages` stages. More seconds once an iteration would leave less of those: together
  /// never less, as long as they are weighed alike.
  [[nodiscard]] double seconds_with(std::size_t k, double once, double ramps, double weighed_ramps, double stages,
                                    double slowest, double weighed_slowest) const {
    return objective_(std::max(ramps, weighed_ramps - all_[k].in_ramp * stages * once),
                      std::max(slowest, weighed_slowest - all_[k].in_slowest * once), once);
  }
  /// The largest weighed seconds of a stage in an assignment that takes `limit`.
  [[nodiscard]] double most_slowest(std::size_t k, double limit, double once) const {
    const cost::PipelineWeights& weights = objective_.weights;
    if (weights.steady <= 0) return std::numeric_limits<double>::infinity();
    return ((limit - all_[k].rest * once) / objective_.alone - weights.fill_drain * all_[k].ramps.back()) /
           weights.steady * (1 + 1e-9);
  }

 private:
  struct Weighing {
    double in_ramp = 0;
    double in_slowest = 0;
    double rest = 0;  // of the largest seconds once an iteration
    Segments segments;
    std::vector<double> ramps;
  };

  [[nodiscard]] static std::vector<double> ramps(const Problem& p, const Bounds& bounds, double in_ramp) {
    if (in_ramp == 0) return bounds.ramps();
    std::vector<double> of_type;
    for (const LayerType& type : p.types) {
      of_type.push_back(std::numeric_limits<double>::max());
      for (const Choice& c : type)
        of_type.back() = std::min(of_type.back(), p.objective.ramp_of(c) + in_ramp * c.once());
    }
    std::vector<double> out{0};
    for (const int type : p.layers) out.push_back(out.back() + of_type[static_cast<std::size_t>(type)]);
    return out;
  }

  Objective objective_;
  std::vector<Weighing> all_;
};

/// A figure for each of some weighings.
using Weighed = std::array<double, Weighings::most>;

}  // namespace galvatron::search
