// What a report is about.
#pragma once

#include <string>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/simulate/simulation.hpp>

namespace galvatron::simulate {

/// A plan that was simulated.
struct Simulated {
  std::string name;  ///< of its file, say
  Plan plan;
  ModelSpec model;
  Cluster cluster;
  Simulation simulation;

  [[nodiscard]] Bytes budget() const { return budget_of(plan, cluster); }
  [[nodiscard]] Bytes peak() const { return simulation.cost.peak(); }
  [[nodiscard]] bool fits() const { return peak() <= budget(); }
  [[nodiscard]] double samples_per_second() const {
    return static_cast<double>(plan.global_batch) / simulation.iteration.value;
  }
  [[nodiscard]] double tokens_per_second() const {
    return samples_per_second() * static_cast<double>(plan.sequence_length);
  }
  /// 0 when the device's peak is unknown.
  [[nodiscard]] double mfu() const {
    const PlanCost& cost = simulation.cost;
    return cost.mfu * (cost.iteration / simulation.iteration);
  }
};

/// A run of that plan.
struct Measured {
  schedule::MeasuredStep step;
  Seconds iteration;         ///< median of the run's steps
  std::vector<Bytes> peaks;  ///< of each rank
  double others = 0;         ///< share of the cores that other programs took meanwhile
};

}  // namespace galvatron::simulate
