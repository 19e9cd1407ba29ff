// How sure a prediction is: the 90 % intervals of an iteration's seconds and of the peak, from the spread of what the
// prices are made of.
//
// The plan is priced again with one kind of figures of the cluster worse by its standard deviation at a time, or by
// that which a calibration has left of it. The differences are those of independent causes, so that their squares add
// up; what the trainer adds is one more of them (cost::RuntimeTraits::time_spread). Seconds are taken to be log-normal.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/calibration.hpp>
#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/plan.hpp>

namespace galvatron {

/// Where the figures of a term come from.
enum class FigureSource : std::uint8_t {
  measured,    ///< on these devices: tables of seconds
  calibrated,  ///< corrected by steps that were measured on them
  preset,      ///< public measurements of devices of the kind, or data sheets
};
constexpr const char* name_of(FigureSource source) {
  return std::array{"measured", "calibrated", "preset"}[static_cast<std::size_t>(source)];
}

/// Relative standard deviations. Measured ones are those of a profile taken twice and of sizes between its points
/// (docs/performance.md); those of presets are how near prices come to public measurements (tests/cost/curves.cpp):
/// products within 10 % for nearly all, attention 10 to 15 %, collectives 10 % in a node; networks are users' own.
/// Those of calibrated figures are in the cluster.
constexpr double spread_of(PriceTerm term, FigureSource source) {
  struct Spread {
    double measured, preset;
  };
  constexpr std::array<Spread, price_terms.size() - 1> spreads{
      {{0.02, 0.06}, {0.03, 0.10}, {0.03, 0.06}, {0.05, 0.10}, {0.10, 0.20}}};
  const Spread& spread = spreads[static_cast<std::size_t>(term)];
  return source == FigureSource::measured ? spread.measured : spread.preset;
}

struct TermSpread {
  PriceTerm term{};
  FigureSource source{};
  double relative = 0;  ///< standard deviation that it gives the iteration
  double measured = 0;  ///< the same once what_to_measure is measured
  /// What of the interval's variance goes then.
  [[nodiscard]] double gain() const { return relative * relative - measured * measured; }
};

struct PredictionInterval {
  Seconds low;
  Seconds high;
  Bytes peak_low;
  Bytes peak_high;
  std::vector<TermSpread> terms;  ///< the widest first

  /// Whose single measurement narrows it most, and what its ends are then apart, as a ratio.
  [[nodiscard]] const TermSpread& narrows_most() const {
    return *std::ranges::max_element(terms, {}, &TermSpread::gain);
  }
  [[nodiscard]] double ratio_after(const TermSpread& measured) const;
};

namespace detail {

inline constexpr double standard_deviations_of_90_percent = 1.645;
/// What a step that was measured does not tell of the next plan's; as the cores of a host and public runs vary.
inline constexpr double spread_of_steps = 0.02;

/// Of the figures themselves, without a calibration.
inline FigureSource source_of(const Cluster& cluster, PriceTerm term) {
  const bool measured = term == PriceTerm::products       ? !cluster.gemm.empty()
                        : term == PriceTerm::attention    ? !cluster.attention.empty()
                        : term == PriceTerm::memory_bound ? !cluster.memory_bound.empty()
                        : term == PriceTerm::inside_node  ? !cluster.messages.empty() && !cluster.gemm.empty()
                                                          : false;
  return measured ? FigureSource::measured : FigureSource::preset;
}

/// A cluster with the figures of one term slower by their standard deviation.
struct SlowerCluster {
  Cluster cluster;
  FigureSource source{};  ///< where they come from
  double spread = 0;      ///< the largest standard deviation
};
inline SlowerCluster with_slower(Cluster cluster, PriceTerm term) {
  SlowerCluster out{std::move(cluster), {}, 0};
  const FigureSource source = source_of(out.cluster, term);
  out.source = source;
  for (const CostTerm each : cost_terms) {
    if (price_term_of(each) != term) continue;
    CalibratedTerm& known = out.cluster.calibration.term(each);
    if (known.spread > 0) out.source = FigureSource::calibrated;
    const double spread = known.spread > 0 ? known.spread : spread_of(term, source);
    out.spread = std::max(out.spread, spread);
    known.factor *= 1 + spread;
  }
  return out;
}

}  // namespace detail

/// The intervals of a plan's prediction. Errors: those of cost_of.
/// @param cost  of the plan on the cluster
inline Result<PredictionInterval> interval_of(const Plan& plan, const ModelSpec& model, const ClusterView& cluster,
                                              const PlanCost& cost) {
  PredictionInterval out;
  double squares = 0;
  for (const PriceTerm term : price_terms) {
    TermSpread& spread = out.terms.emplace_back(TermSpread{term, FigureSource::preset});
    if (term == PriceTerm::trainer) {
      spread.relative = plan.trainer.traits.time_spread;
      spread.measured = std::min(spread.relative, detail::spread_of_steps);
      squares += spread.relative * spread.relative;
      continue;
    }
    MixedCluster slower{cluster.name(), {}, {cluster.links().begin(), cluster.links().end()}};
    spread.source = FigureSource::measured;
    double widest = spread_of(term, FigureSource::measured);
    for (const Cluster& group : cluster.groups()) {
      detail::SlowerCluster slow = detail::with_slower(group, term);
      spread.source = std::max(spread.source, slow.source);
      widest = std::max(widest, slow.spread);
      slower.groups.push_back(std::move(slow.cluster));
    }
    if (term == PriceTerm::across_nodes)
      for (Link& link : slower.links) link = link.slower(1 + spread_of(term, FigureSource::preset));
    auto priced = cost_of(plan, model, slower);
    if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
    spread.relative = std::log(priced->iteration / cost.iteration);
    spread.measured = spread.relative * spread_of(term, FigureSource::measured) / widest;
    squares += spread.relative * spread.relative;
  }
  std::ranges::stable_sort(out.terms, std::greater<>{}, &TermSpread::relative);
  const double width = detail::standard_deviations_of_90_percent * std::sqrt(squares);
  out.low = cost.iteration * std::exp(-width);
  out.high = cost.iteration * std::exp(width);
  const double memory = detail::standard_deviations_of_90_percent * plan.trainer.traits.memory_spread;
  const auto peak = static_cast<double>(cost.peak().count);
  out.peak_low = {static_cast<std::int64_t>(std::llround(peak * (1 - memory)))};
  out.peak_high = {static_cast<std::int64_t>(std::llround(peak * (1 + memory)))};
  return out;
}

inline double PredictionInterval::ratio_after(const TermSpread& measured) const {
  double squares = 0;
  for (const TermSpread& term : terms) squares += term.relative * term.relative;
  return std::exp(2 * detail::standard_deviations_of_90_percent * std::sqrt(squares - measured.gain()));
}

/// The measurement that tells a term, as a sentence without a full stop. Files of clusters may also have it from
/// elsewhere, as tables (docs/clusters.md).
inline std::string what_to_measure(PriceTerm term) {
  const std::string profile = ": `galvatron profile --measure " + std::string(name_of(term)) + "` there";
  switch (term) {
    case PriceTerm::products:
      return "products on one of these devices" + profile;
    case PriceTerm::attention:
      return "attention on one of these devices" + profile;
    case PriceTerm::memory_bound:
      return "norms, activations and the optimizer on one of these devices" + profile;
    case PriceTerm::inside_node:
      return "collectives by size in one node" + profile + ", or nccl-tests";
    case PriceTerm::across_nodes:
      return "collectives by size between nodes" + profile + ", or nccl-tests";
    case PriceTerm::trainer:
      return "steps with this trainer, for `galvatron calibrate`";
  }
  return {};
}

}  // namespace galvatron
