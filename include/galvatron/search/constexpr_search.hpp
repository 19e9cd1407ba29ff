// A search that also runs at compile time: one stage, the closed cost formulas, a cluster of a few rates.
//
//     constexpr auto best = search::constexpr_search<4>(block, devices, {.batch = 8, ...});
//     static_assert(best.feasible && best.strategies[0].zero == 3);
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/cost/layer.hpp>
#include <galvatron/cost/overlap.hpp>
#include <galvatron/cost/relayout.hpp>
#include <galvatron/cost/work.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/strategy/layout.hpp>
#include <galvatron/strategy/legality.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron::search {

/// Equal devices on one network, as rates: what a data sheet tells.
struct ConstexprCluster {
  int devices = 1;
  Bytes memory;                     ///< of each
  double flops = 1e14;              ///< FLOP/s reached by GEMMs and attention
  double memory_bandwidth = 1e12;   ///< bytes/s
  double network_bandwidth = 1e11;  ///< bytes/s on the busiest link of a ring
  double latency = 5e-6;            ///< seconds of a step of a ring
};

struct ConstexprOptions {
  std::int64_t global_batch = 8;
  std::int64_t sequence = 128;
  Precision precision = Precision::bf16;
  int microbatches = 1;
  bool recompute = true;  ///< full recomputation may be chosen
};

/// Seconds of work by the alpha-beta model of rings and the rates of the device.
constexpr Seconds constexpr_seconds(const cost::Work& work, Precision precision, const ConstexprCluster& cluster) {
  using cost::WorkKind;
  const double m = static_cast<double>(work.m);
  const double cells = m * static_cast<double>(work.n > 1 ? work.n : 1);
  const double e = static_cast<double>(element_bytes(precision));
  double once = 0;
  if (cost::is_gemm(work.kind) || cost::is_attention(work.kind)) {
    cost::Work one = work;
    one.times = 1;
    once = cost::flops_of(one).count / cluster.flops;
  } else if (cost::is_communication(work.kind)) {
    const double n = static_cast<double>(work.n);
    const double steps = work.kind == WorkKind::send ? 1 : work.kind == WorkKind::all_reduce ? 2 * (n - 1) : n - 1;
    if (n > 1 || work.kind == WorkKind::send)
      once = steps * (cluster.latency + m / (work.kind == WorkKind::send ? 1 : n) / cluster.network_bandwidth);
  } else {
    const double bytes = work.kind == WorkKind::adamw                                 ? 28 * m
                         : work.kind == WorkKind::fill || work.kind == WorkKind::copy ? 2 * m
                                                                                      : 3 * e * cells;
    once = bytes / cluster.memory_bandwidth;
  }
  return {once * work.times};
}

constexpr Seconds constexpr_seconds(const cost::WorkList& list, Precision precision, const ConstexprCluster& cluster) {
  cost::Elapsed elapsed;
  for (const cost::Work& work : list) elapsed.add(work, constexpr_seconds(work, precision, cluster));
  return elapsed.total(1.0);
}

template <std::size_t Layers>
struct ConstexprPlan {
  bool feasible = false;
  std::array<StrategySpec, Layers> strategies{};
  Seconds iteration;
  Bytes peak;  ///< states, stash and the largest workspace of these layers
};

namespace detail {

/// The strategies of `devices` ranks in a fixed order: tensor degrees that divide them, ZeRO 0-3, recomputation.
template <class Visit>
constexpr void for_each_strategy(int devices, bool recompute, Visit visit) {
  for (int tensor = 1; tensor <= devices; ++tensor) {
    if (devices % tensor != 0) continue;
    for (const SequenceKind sequence : {SequenceKind::none, SequenceKind::megatron})
      for (int zero = 0; zero <= 3; ++zero)
        for (const RecomputeKind kind : {RecomputeKind::none, RecomputeKind::full}) {
          if (kind == RecomputeKind::full && !recompute) continue;
          const StrategySpec spec{
              .tensor = tensor, .sequence = sequence, .data = devices / tensor, .zero = zero, .recompute = kind};
          if (is_legal(spec)) visit(spec);
        }
  }
}

}  // namespace detail

/// The fastest strategies for `Layers` equal layers on one stage within the devices' memory, found by a dynamic program
/// over counts: the layers with the first strategy come first, and at most two strategies share the stage, which is
/// optimal up to one layer for a single memory limit. Re-layout between the two runs is charged.
template <std::size_t Layers>
constexpr ConstexprPlan<Layers> constexpr_search(const LayerSpec& layer, const ConstexprCluster& cluster,
                                                 const ConstexprOptions& options) {
  struct Priced {
    StrategySpec spec;
    double seconds = 0;  // an iteration
    std::int64_t kept = 0;
    std::int64_t forward_workspace = 0;
    std::int64_t workspace = 0;
    std::int64_t activation = 0;
  };
  constexpr std::size_t capacity = 96;
  std::array<Priced, capacity> choices{};
  std::size_t count = 0;
  const cost::Batch batch{.microbatch = options.global_batch / options.microbatches,
                          .sequence = options.sequence,
                          .precision = options.precision,
                          .microbatches = options.microbatches};
  detail::for_each_strategy(cluster.devices, options.recompute, [&](const StrategySpec& spec) {
    if (count == capacity || !is_fit(layer, spec, batch.microbatch, batch.sequence)) return;
    const cost::LayerCounts c = cost::layer_counts(layer, spec, batch);
    const auto price = [&](const cost::WorkList& list) {
      return constexpr_seconds(list, options.precision, cluster).value;
    };
    Priced& out = choices[count++];
    out.spec = spec;
    out.seconds =
        (price(c.forward) + price(c.backward)) * options.microbatches + price(c.synchronise) + price(c.update);
    out.kept = c.states.count + c.stash.count;
    out.forward_workspace = c.forward_workspace.count;
    out.workspace = max(c.forward_workspace, c.activation + c.backward_workspace).count;
    out.activation = c.activation.count;
  });

  ConstexprPlan<Layers> best;
  const auto try_mix = [&](const Priced& a, const Priced& b, std::size_t first) {
    const auto n = static_cast<std::int64_t>(first);
    const auto rest = static_cast<std::int64_t>(Layers) - n;
    double seconds = static_cast<double>(n) * a.seconds + static_cast<double>(rest) * b.seconds;
    std::int64_t workspace = a.workspace > b.workspace ? a.workspace : b.workspace;
    const ActivationLayout from = activation_layout(a.spec, 0, batch.microbatch, batch.sequence);
    const ActivationLayout to = activation_layout(b.spec, 0, batch.microbatch, batch.sequence);
    if (rest > 0 && cost::needs_relayout(from, to)) {
      const cost::Work there = cost::move_work(cost::busiest_receiver(from, to), layer.hidden, options.precision);
      const cost::Work back = cost::move_work(cost::busiest_receiver(to, from), layer.hidden, options.precision);
      seconds += options.microbatches * (constexpr_seconds(there, options.precision, cluster) +
                                         constexpr_seconds(back, options.precision, cluster))
                                            .value;
      const std::int64_t space =
          a.activation + (a.forward_workspace > b.activation ? a.forward_workspace : b.activation);
      workspace = workspace > space ? workspace : space;
    }
    const Bytes peak{n * a.kept + rest * b.kept + workspace};
    if (peak > cluster.memory || (best.feasible && seconds >= best.iteration.value)) return;
    best.feasible = true;
    best.iteration = {seconds};
    best.peak = peak;
    for (std::size_t i = 0; i < Layers; ++i) best.strategies[i] = i < first ? a.spec : b.spec;
  };
  for (std::size_t i = 0; i < count; ++i) try_mix(choices[i], choices[i], Layers);
  for (std::size_t i = 0; i < count; ++i)
    for (std::size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      // A mix with a choice that is itself slower than the best mix cannot win.
      const double fastest = choices[i].seconds < choices[j].seconds ? choices[i].seconds : choices[j].seconds;
      if (best.feasible && fastest * static_cast<double>(Layers) >= best.iteration.value) continue;
      for (std::size_t n = 1; n < Layers; ++n) try_mix(choices[i], choices[j], n);
    }
  return best;
}

}  // namespace galvatron::search
