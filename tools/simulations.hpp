// Simulated plans and measured runs, written down for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/interval.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/schedule/replay.hpp>
#include <galvatron/simulate/simulation.hpp>
#include <galvatron/train/expert_dispatch.hpp>
#include <galvatron/train/expert_loads.hpp>
#include <galvatron/train/packed_step.hpp>

#include "output.hpp"

namespace galvatron::simulate {

/// A plan that was simulated.
struct Simulated {
  std::string name;  ///< of its file, say
  Plan plan;
  ModelSpec model;
  MixedCluster cluster;
  Simulation simulation;
  PredictionInterval interval;              ///< of its planned iteration
  std::optional<train::PackedStep> step{};  ///< of a plan for documents: some of them
  std::string step_words{};                 ///< which

  /// The stage that has the least of its budget left, or lacks most, and what is said of it.
  [[nodiscard]] const PlanStageCost& fullest() const {
    return simulation.cost.stages[fullest_stage(plan, simulation.cost, cluster)];
  }
  [[nodiscard]] const Cluster& group() const { return cluster.groups[static_cast<std::size_t>(fullest().group)]; }
  /// What the interval is around the simulated iteration.
  [[nodiscard]] Seconds at(Seconds bound) const { return bound * (simulation.iteration / simulation.cost.iteration); }
  [[nodiscard]] Bytes budget() const { return budget_of(plan, cluster, fullest().group); }
  [[nodiscard]] Bytes peak() const { return fullest().peak(); }
  [[nodiscard]] bool fits() const { return peak() <= budget(); }
  [[nodiscard]] double samples_per_second() const {
    return static_cast<double>(plan.global_batch) / simulation.iteration.value;
  }
  [[nodiscard]] double tokens_per_second() const {
    return static_cast<double>(plan.sequences() * plan.sequence_length) / simulation.iteration.value;
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
  Seconds iteration;                             ///< median of the run's steps
  std::vector<Bytes> peaks;                      ///< of each rank
  double others = 0;                             ///< share of the cores that other programs took meanwhile
  std::vector<train::ExpertLoads> loads{};       ///< of the run's last step; empty: no layer has experts
  std::vector<train::LayerDispatch> dispatch{};  ///< the same
  std::vector<std::int64_t> rows{};              ///< of the documents of `step`; empty: samples of one length
};

}  // namespace galvatron::simulate

namespace galvatron::tools {

/// Writes the trace (measured ranks and simulated stages) and the report of a run, whole or not at all; an empty path:
/// not. Throws Failure (usage).
/// @param made_for  the cluster that the plan was searched for; null: the one that it names
void write_run(const Plan& plan, const ModelSpec& model, const Cluster* made_for, const simulate::Measured& measured,
               const std::string& trace, const std::string& report, const Common& common);

}  // namespace galvatron::tools
