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
#include <galvatron/cost/overlap.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/cost/work.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// Seconds of one layer on one rank; `communication` is the part of each in which the rank waits for messages.
struct LayerSeconds {
  Seconds forward;  ///< a micro-batch
  Seconds backward;
  Seconds synchronise;  ///< once an iteration
  Seconds update;
  Seconds forward_communication;
  Seconds backward_communication;
  Seconds update_communication;
  friend constexpr bool operator==(const LayerSeconds&, const LayerSeconds&) = default;
};

/// Ranks of one node that work at the same time when all ranks of a plan do.
inline int busy_ranks(const Cluster& cluster, int ranks) { return std::min(ranks, cluster.devices_per_node); }

/// Prices the counts of a layer of a plan of `ranks` ranks, all of them at work.
inline LayerSeconds layer_seconds(const LayerCounts& counts, Precision precision, const Cluster& cluster, int ranks) {
  const int busy = busy_ranks(cluster, ranks);
  const auto price = [&](const WorkList& list, Seconds& all, Seconds* communication) {
    Elapsed elapsed;
    for (const Work& work : list) elapsed.add(work, time_of(work, precision, cluster, busy));
    all = elapsed.total(cluster.overlap_slowdown);
    if (communication != nullptr) *communication = elapsed.communication(cluster.overlap_slowdown);
  };
  LayerSeconds out;
  price(counts.forward, out.forward, &out.forward_communication);
  price(counts.backward, out.backward, &out.backward_communication);
  price(counts.synchronise, out.synchronise, nullptr);
  price(counts.update, out.update, &out.update_communication);
  return out;
}

/// Prices the moves of activations: re-layouts inside a stage, and what a stage receives from its neighbour.
class MovePricer {
 public:
  MovePricer(const Batch& batch, std::int64_t hidden, const Cluster& cluster, int ranks)
      : batch_(batch), hidden_(hidden), cluster_(cluster), busy_(busy_ranks(cluster, ranks)) {}

  /// One way.
  [[nodiscard]] Seconds relayout(const Relayout& move) const { return seconds(move.share, move.span); }
  /// The whole local tensor of a layer with this strategy.
  [[nodiscard]] Seconds receive(const StrategySpec& spec) const {
    const ActivationLayout layout = activation_layout(spec, 0, 1, 1);
    return seconds(1.0 / layout.data / layout.parts, 0);
  }

 private:
  [[nodiscard]] Seconds seconds(double share, int span) const {
    const double tokens = share * static_cast<double>(batch_.microbatch) * static_cast<double>(batch_.sequence);
    const Work work = move_work({static_cast<std::int64_t>(tokens), 1}, hidden_, batch_.precision, span);
    return time_of(work, batch_.precision, cluster_, busy_);
  }

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

/// Seconds of an iteration on this cluster.
inline Seconds iteration_seconds(const Cluster& cluster, ScheduleKind kind, std::span<const StageSeconds> stages,
                                 int microbatches, int stage_ranks) {
  const int count = static_cast<int>(stages.size());
  if (!stages_share_cores(cluster, count, stage_ranks)) return pipeline_seconds(kind, stages, microbatches);
  return shared_pipeline_seconds(kind, stages, microbatches, stage_crowding(cluster, count, stage_ranks));
}

}  // namespace galvatron::cost
