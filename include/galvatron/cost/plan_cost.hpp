// The prices of layers, of moves between them, and of the iteration that they make: counts at the rates of a cluster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/detail/rates.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/cost/work.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// Seconds of one layer on one rank; `communication` is the part of each that is spent in collectives.
struct LayerSeconds {
  Seconds forward;  ///< a micro-batch
  Seconds backward;
  Seconds synchronise;  ///< once an iteration
  Seconds update;
  Seconds forward_communication;
  Seconds backward_communication;
  Seconds update_communication;
  Seconds weights;  ///< part of backward: weight gradients, which zb-h1 puts off
  friend constexpr bool operator==(const LayerSeconds&, const LayerSeconds&) = default;
};

/// Ranks of one node that work at the same time when all ranks of a plan do.
inline int busy_ranks(const Cluster& cluster, int ranks) { return std::min(ranks, cluster.devices_per_node); }

/// Prices the counts of a layer that runs on a stage of `stage_ranks` of `ranks` ranks, all of them at work.
inline LayerSeconds layer_seconds(const LayerCounts& counts, Precision precision, const Cluster& cluster,
                                  int stage_ranks, int ranks) {
  const Surroundings where{busy_ranks(cluster, ranks), stage_ranks};
  const auto price = [&](const WorkList& list, Seconds& all, Seconds* communication) {
    for (const Work& work : list) {
      const Seconds seconds = time_of(work, precision, cluster, where);
      all += seconds;
      if (communication != nullptr && is_communication(work.kind)) *communication += seconds;
    }
  };
  LayerSeconds out;
  price(counts.forward, out.forward, &out.forward_communication);
  price(counts.backward, out.backward, &out.backward_communication);
  price(counts.synchronise, out.synchronise, nullptr);
  price(counts.update, out.update, &out.update_communication);
  for (const Work& work : counts.backward)
    if (work.kind == WorkKind::gemm_tn || work.kind == WorkKind::bias_gradient)
      out.weights += time_of(work, precision, cluster, where);
  // What is put off beyond the other passes shortens no pipeline: these must go through all stages in any case.
  out.weights = min(out.weights, min(out.forward, out.backward * 0.5));
  return out;
}

/// Prices the moves of activations: re-layouts inside a stage, and what a stage receives from its neighbour.
class MovePricer {
 public:
  MovePricer(const Batch& batch, std::int64_t hidden, const Cluster& cluster, int ranks)
      : batch_(batch), hidden_(hidden), cluster_(cluster), busy_(busy_ranks(cluster, ranks)) {}

  /// One way; `share` of the micro-batch's tokens as relayout_share gives it.
  [[nodiscard]] Seconds relayout(double share) const {
    const double tokens = share * static_cast<double>(batch_.microbatch) * static_cast<double>(batch_.sequence);
    const Work work = move_work({static_cast<std::int64_t>(tokens), 1}, hidden_, batch_.precision);
    return time_of(work, batch_.precision, cluster_, busy_);
  }
  /// The whole local tensor of a layer with this strategy.
  [[nodiscard]] Seconds receive(const StrategySpec& spec) const {
    return relayout(1.0 / spec.data / (spec.sequence == SequenceKind::megatron ? spec.tensor : 1));
  }

 private:
  Batch batch_;
  std::int64_t hidden_;
  const Cluster& cluster_;
  int busy_;
};

/// True when stages of `stage_ranks` ranks compete for cores once several of them work.
inline bool stages_share_cores(const Cluster& cluster, int stages, int stage_ranks) {
  return cluster.cores > 0 && stages > 1 &&
         detail::oversubscription(cluster, busy_ranks(cluster, stages * stage_ranks)) > 1;
}

/// How much longer work takes when a = 1..stages stages work at once; element 0 is not used.
inline std::vector<double> stage_crowding(const Cluster& cluster, int stages, int stage_ranks) {
  std::vector<double> out{1.0};
  for (int a = 1; a <= stages; ++a)
    out.push_back(detail::oversubscription(cluster, busy_ranks(cluster, a * stage_ranks)));
  return out;
}

/// Seconds of an iteration on this cluster. Where stages share cores, the schedules that the runtime does not carry out
/// are priced as if each stage kept its share of them.
inline Seconds iteration_seconds(const Cluster& cluster, ScheduleKind kind, std::span<const StageSeconds> stages,
                                 int microbatches, int stage_ranks, int virtual_stages = 1) {
  const int count = static_cast<int>(stages.size());
  if (!is_trained(kind) || !stages_share_cores(cluster, count, stage_ranks))
    return pipeline_seconds(kind, stages, microbatches, virtual_stages);
  return shared_pipeline_seconds(kind, stages, microbatches, stage_crowding(cluster, count, stage_ranks));
}

}  // namespace galvatron::cost
