// The prices of layers, of moves between them, and of the iteration that they make: counts at the rates of a cluster.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/pipeline.hpp>
#include <galvatron/cost/rates.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/cost/time.hpp>
#include <galvatron/cost/trainer.hpp>
#include <galvatron/op/work.hpp>
#include <galvatron/schedule/core_sharing.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::cost {

/// Seconds of one layer on one rank; `communication` is the part of each in which the rank does not compute.
struct LayerSeconds {
  Seconds forward;  ///< a micro-batch
  Seconds backward;
  Seconds synchronise;  ///< once an iteration, what the last backward pass does not hide
  Seconds update;       ///< once an iteration, what the next forward pass does not hide
  Seconds forward_communication;
  Seconds backward_communication;
  Seconds update_communication;
  Seconds weights;  ///< part of backward: weight gradients that are deferred
  friend constexpr bool operator==(const LayerSeconds&, const LayerSeconds&) = default;
};

/// Ranks of one node that work at the same time when all ranks of a plan do.
constexpr int busy_ranks(const Cluster& cluster, int ranks) { return std::min(ranks, cluster.devices_per_node); }

/// True when traffic can run beside computation: ranks that share cores have none to spare for it.
constexpr bool can_overlap(const Cluster& cluster) { return cluster.cores == 0; }

/// True for collectives around the products of a tensor-parallel layer.
constexpr bool joins_tensor_ranks(const op::Work& work, const StrategySpec& spec) {
  return (work.kind == op::Kind::all_gather || work.kind == op::Kind::reduce_scatter) && work.n > 1 &&
         work.n == spec.tensor && work.stride == spec.tensor_stride();
}

/// What messages add that run beside products in so many pieces: the first or last has none to hide behind.
constexpr Seconds beyond_products(Seconds products, Seconds messages, int pieces, double slowdown) {
  return side_by_side(products, messages, slowdown) - products + min(products, messages) * (1.0 / pieces);
}

/// True when the tensor ranks of a strategy share a node, inside which their messages can run beside products.
constexpr bool tensor_ranks_share_node(const Cluster& cluster, const StrategySpec& spec) {
  return detail::members_per_node(cluster, spec.tensor, spec.tensor_stride()) == spec.tensor;
}

/// The priced lists of a layer's counts, or of a part of them: those of parts add up.
struct LayerPrices {
  struct Pass {
    Seconds device;  ///< computation
    Seconds waited;  ///< communication that computation waits for
    Seconds beside;  ///< communication that runs beside it
    Seconds host;    ///< in which the host launches all of it

    [[nodiscard]] constexpr Seconds computation() const {
      return host.value > 0 ? max(device, host - waited) : device;  // negative and NaN stay, for the search to refuse
    }
    [[nodiscard]] constexpr Seconds alone() const { return computation() + waited; }
    friend constexpr Pass operator+(const Pass& a, const Pass& b) {
      return {a.device + b.device, a.waited + b.waited, a.beside + b.beside, a.host + b.host};
    }
  };
  std::array<Pass, 5> passes;  ///< forward, backward, weights, synchronise, update
  static constexpr std::size_t synchronise = 3;

  friend constexpr LayerPrices operator+(LayerPrices a, const LayerPrices& b) {
    for (std::size_t i = 0; i < a.passes.size(); ++i) a.passes[i] = a.passes[i] + b.passes[i];
    return a;
  }
};

/// How much longer messages take that run beside work: 2 where ranks share cores and have none to spare, so that one
/// thing happens after the other.
constexpr double overlap_slowdown(const Cluster& cluster) {
  return can_overlap(cluster) ? cluster.overlap_slowdown : 2;
}

/// Prices the counts of a layer. On devices of their own the traffic of parameters runs beside computation where the
/// counts say so (overlaps_gradients, overlaps_parameters, streams): gradients travel while earlier layers run
/// backward, parameters of ZeRO-3 are gathered a layer ahead, those of ZeRO-1 and 2 during the next forward pass. So do
/// messages that the work itself overlaps (op::Work::overlap).
/// @param prices  the seconds of work, with busy_ranks at work
template <class Prices>
constexpr LayerPrices layer_prices(const LayerCounts& counts, const StrategySpec& spec, const Cluster& cluster,
                                   Prices&& prices) {
  const double slowdown = overlap_slowdown(cluster);
  const int pieces = counts.tensor_pieces > 0 && tensor_ranks_share_node(cluster, spec) ? counts.tensor_pieces : 0;
  const Seconds host = counts.host * cluster.calibration.factor(CostTerm::host);
  const double slowest = counts.device_spread > 0 ? 1 + counts.device_spread * expected_largest(cluster.devices) : 1.0;
  // `streams`: traffic of data ranks in the list runs beside computation.
  const auto price = [&](const op::WorkList& list, bool streams) {
    LayerPrices::Pass sum;
    if (list.size() == 0) return sum;
    Elapsed elapsed;
    Seconds products;
    Seconds around;  // messages that run beside them
    for (const op::Work& work : list) {
      const Seconds seconds = prices(work) * (is_communication(work.kind) ? 1.0 : slowest);
      sum.host += host * work.times;
      if (is_gemm(work.kind)) products += seconds;
      if (streams && can_overlap(cluster) && work.parameters)
        sum.beside += seconds;
      else if (pieces > 0 && joins_tensor_ranks(work, spec))
        around += seconds;
      else
        elapsed.add(work, seconds);
    }
    sum.waited = elapsed.communication(slowdown);
    sum.device = elapsed.total(slowdown) - sum.waited;
    if (pieces > 0) sum.waited += beyond_products(products, around, pieces, slowdown);
    return sum;
  };
  return {{price(counts.forward, counts.streams), price(counts.backward, counts.streams),
           price(counts.weights, counts.streams), price(counts.synchronise, counts.overlaps_gradients),
           price(counts.update, counts.overlaps_parameters)}};
}

/// The seconds of a layer from all its prices.
constexpr LayerSeconds layer_seconds(const LayerPrices& prices, const Cluster& cluster) {
  const auto& [forward, backward, weights, synchronise, update] = prices.passes;
  /// How much longer a pass takes with more communication beside it.
  const auto longer = [slowdown = overlap_slowdown(cluster)](Seconds pass, Seconds communication) {
    return side_by_side(pass, communication, slowdown) - pass;
  };
  LayerSeconds out;
  out.forward = forward.alone() + longer(forward.alone(), forward.beside);
  out.weights = weights.alone() + longer(weights.alone(), weights.beside);
  out.backward = backward.alone() + longer(backward.alone(), backward.beside) + out.weights;
  out.forward_communication = out.forward - forward.computation();
  out.backward_communication = out.backward - backward.computation() - weights.computation();
  // Gradients of a head come of its forward pass, which is the longer one.
  out.synchronise = synchronise.alone() + longer(max(out.forward, out.backward), synchronise.beside);
  out.update_communication = update.waited + longer(out.forward, update.beside);
  out.update = update.computation() + out.update_communication;
  // What is deferred beyond the other passes shortens no pipeline: these must go through all stages in any case.
  out.weights = min(out.weights, min(out.forward, out.backward * 0.5));
  return out;
}
/// The seconds of a layer on one of `ranks` ranks of this cluster, all of them at work.
/// @param ends  as for time_of
constexpr LayerSeconds layer_seconds(const LayerCounts& counts, const StrategySpec& spec, Precision precision,
                                     const Cluster& cluster, int ranks, const Link* ends = nullptr) {
  const int busy = busy_ranks(cluster, ranks);
  const auto price = [&](const op::Work& work) { return time_of(work, precision, cluster, busy, ends); };
  return layer_seconds(layer_prices(counts, spec, cluster, price), cluster);
}

/// Prices the moves of activations over one border between layers: re-layouts inside a stage, and what a stage receives
/// from its neighbour.
class MovePricer {
 public:
  /// @param elements  of a sample that cross the border (LayerSpec::input_elements)
  constexpr MovePricer(const Batch& batch, std::int64_t elements, const Cluster& cluster, int ranks)
      : batch_(batch), elements_(elements), cluster_(cluster), busy_(busy_ranks(cluster, ranks)) {}

  /// One way.
  [[nodiscard]] constexpr Seconds relayout(const Relayout& move) const { return seconds(move.share, move.span); }
  /// The whole local tensor of a layer with this strategy. Where tensor ranks have copies of it, a trainer may send
  /// each a part, which they gather (Narayanan et al., arXiv 2104.04473, section 4.1).
  [[nodiscard]] constexpr Seconds receive(const StrategySpec& spec) const {
    const ActivationLayout layout = activation_layout(spec, 0, 1, 1);
    const double share = 1.0 / layout.data / layout.parts;
    const bool copies = spec.tensor > 1 && !spec.cuts_over_tensor();
    if (!copies || !batch_.trainer->scatters_sends) return seconds(share, 0);
    const op::Work gather{
        .kind = op::Kind::all_gather, .m = moved(share).count, .n = spec.tensor, .stride = spec.tensor_stride()};
    return seconds(share / spec.tensor, 0) + time_of(gather, batch_.precision, cluster_, busy_);
  }
  /// The same from a stage of `peers` ranks on another group of devices, or, of its gradient, to the layer before such
  /// a stage: no rank of either stage moves less than its part of the tensor.
  /// @param link  between the groups
  [[nodiscard]] constexpr Seconds receive_over(const Link& link, const StrategySpec& spec, int peers) const {
    const ActivationLayout layout = activation_layout(spec, 0, 1, 1);
    const Bytes bytes = moved(std::max(1.0 / layout.data / layout.parts, 1.0 / peers));
    return link.latency + Seconds{static_cast<double>(bytes.count) / link.send_bandwidth};
  }

 private:
  // The send that a rank waits for, from peers inside an aligned run of `span` ranks; 0: anywhere.
  [[nodiscard]] constexpr Seconds seconds(double share, int span) const {
    return time_of({.kind = op::Kind::send, .m = moved(share).count, .n = 1, .k = span}, batch_.precision, cluster_,
                   busy_);
  }
  [[nodiscard]] constexpr Bytes moved(double share) const {
    const double elements = share * static_cast<double>(batch_.microbatch) * static_cast<double>(elements_);
    return {static_cast<std::int64_t>(elements) * element_bytes(batch_.precision)};
  }

  Batch batch_;
  std::int64_t elements_;
  const Cluster& cluster_;
  int busy_;
};

/// True when stages, of `ranks` ranks together, compete for cores once several of them work.
constexpr bool stages_share_cores(const Cluster& cluster, int stages, int ranks) {
  return cluster.cores > 0 && stages > 1 && detail::oversubscription(cluster, busy_ranks(cluster, ranks)) > 1;
}

/// How the stages of a plan share the cores of this cluster.
/// @param stage_ranks  ranks of each stage
constexpr schedule::CoreSharing core_sharing(const Cluster& cluster, std::vector<int> stage_ranks) {
  return {cluster.cores, cluster.threads_per_rank, cluster.devices_per_node, std::move(stage_ranks)};
}

/// Seconds of an iteration on this cluster, of stages with so many ranks each. Where stages share cores, gpipe and 1f1b
/// are replayed; the other schedules are priced as if each stage kept its share of the cores.
inline Seconds iteration_seconds(const Cluster& cluster, ScheduleKind kind, std::span<const StageSeconds> stages,
                                 int microbatches, std::vector<int> stage_ranks, int virtual_stages = 1) {
  const int count = static_cast<int>(stages.size());
  const int ranks = std::accumulate(stage_ranks.begin(), stage_ranks.end(), 0);
  if (!is_followed_on_shared_cores(kind) || !stages_share_cores(cluster, count, ranks))
    return pipeline_seconds(kind, stages, microbatches, virtual_stages);
  return shared_pipeline_seconds(kind, stages, microbatches, core_sharing(cluster, std::move(stage_ranks)));
}

}  // namespace galvatron::cost
