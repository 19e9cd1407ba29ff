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

/// What a price depends on.
enum class PriceTerm : std::uint8_t { products, attention, memory_bound, inside_node, across_nodes, trainer };
inline constexpr std::array price_terms{PriceTerm::products,    PriceTerm::attention,    PriceTerm::memory_bound,
                                        PriceTerm::inside_node, PriceTerm::across_nodes, PriceTerm::trainer};

constexpr const char* name_of(PriceTerm term) {
  return std::array{
      "products", "attention", "memory_bound", "inside_node", "across_nodes", "trainer"}[static_cast<std::size_t>(
      term)];
}

/// The term that a factor of a cluster's calibration belongs to; launches by the host are the trainer's.
constexpr PriceTerm price_term_of(CostTerm term) {
  if (term == CostTerm::products) return PriceTerm::products;
  if (term == CostTerm::attention) return PriceTerm::attention;
  if (term == CostTerm::host) return PriceTerm::trainer;
  if (term < CostTerm::host) return PriceTerm::memory_bound;
  return term < CostTerm::all_reduce_across_nodes ? PriceTerm::inside_node : PriceTerm::across_nodes;
}

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
};

struct PredictionInterval {
  Seconds low;
  Seconds high;
  Bytes peak_low;
  Bytes peak_high;
  std::vector<TermSpread> terms;  ///< the widest first

  [[nodiscard]] PriceTerm widest() const { return terms.front().term; }
};

namespace detail {

inline constexpr double standard_deviations_of_90_percent = 1.645;

/// Of the figures themselves, without a calibration.
inline FigureSource source_of(const Cluster& cluster, PriceTerm term) {
  const bool measured = term == PriceTerm::products       ? !cluster.gemm.empty()
                        : term == PriceTerm::attention    ? !cluster.attention.empty()
                        : term == PriceTerm::memory_bound ? !cluster.memory_bound.empty()
                        : term == PriceTerm::inside_node  ? !cluster.messages.empty() && !cluster.gemm.empty()
                                                          : false;
  return measured ? FigureSource::measured : FigureSource::preset;
}

/// A cluster with the figures of one term slower by their standard deviation, and where they come from.
inline std::pair<Cluster, FigureSource> with_slower(Cluster cluster, PriceTerm term) {
  const FigureSource source = source_of(cluster, term);
  bool calibrated = false;
  for (const CostTerm each : cost_terms) {
    if (price_term_of(each) != term) continue;
    CalibratedTerm& known = cluster.calibration.term(each);
    calibrated = calibrated || known.spread > 0;
    known.factor *= 1 + (known.spread > 0 ? known.spread : spread_of(term, source));
  }
  return {std::move(cluster), calibrated ? FigureSource::calibrated : source};
}

}  // namespace detail

/// The intervals of a plan's prediction. Errors: those of cost_of.
/// @param cost  of the plan on the cluster
inline Result<PredictionInterval> interval_of(const Plan& plan, const ModelSpec& model, const ClusterView& cluster,
                                              const PlanCost& cost) {
  PredictionInterval out;
  double squares = 0;
  const auto add = [&](PriceTerm term, FigureSource source, double relative) {
    out.terms.push_back({term, source, relative});
    squares += relative * relative;
  };
  for (const PriceTerm term : price_terms) {
    if (term == PriceTerm::trainer) {
      add(term, FigureSource::preset, plan.trainer.traits.time_spread);
      continue;
    }
    MixedCluster slower{cluster.name(), {}, {cluster.links().begin(), cluster.links().end()}};
    FigureSource worst = FigureSource::measured;
    for (const Cluster& group : cluster.groups()) {
      auto [slow, source] = detail::with_slower(group, term);
      worst = std::max(worst, source);
      slower.groups.push_back(std::move(slow));
    }
    if (term == PriceTerm::across_nodes)
      for (Link& link : slower.links) link = link.slower(1 + spread_of(term, FigureSource::preset));
    auto priced = cost_of(plan, model, slower);
    if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
    add(term, worst, std::log(priced->iteration / cost.iteration));
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

/// The measurement that narrows an interval most, as a sentence without a full stop.
inline std::string what_to_measure(PriceTerm term) {
  switch (term) {
    case PriceTerm::products:
      return "products on one of these devices: `galvatron profile` there, or a \"gemm\" table in a cluster file";
    case PriceTerm::attention:
      return "attention on one of these devices: `galvatron profile` there, or an \"attention\" table in a cluster "
             "file";
    case PriceTerm::memory_bound:
      return "norms and activations on one of these devices: `galvatron profile` there, or \"memory_share\" in a "
             "cluster file";
    case PriceTerm::inside_node:
      return "collectives in one node by size, with nccl-tests: \"messages\" in a cluster file";
    case PriceTerm::across_nodes:
      return "all_gather and all_reduce between nodes, with nccl-tests: \"across_nodes\" in a cluster file";
    case PriceTerm::trainer:
      return "one step of a plan with this trainer, beside its prediction";
  }
  return {};
}

}  // namespace galvatron
