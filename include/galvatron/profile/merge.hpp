// Some figures of a cluster measured anew, the others as they were.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/error.hpp>

namespace galvatron::train {

namespace detail {

/// The tables of one precision take the place of those that were there.
template <class Table>
void take_tables(std::vector<Table>& into, std::vector<Table> measured) {
  std::erase_if(into, [&](const Table& old) {
    return std::ranges::any_of(measured, [&](const Table& table) { return table.precision == old.precision; });
  });
  std::ranges::move(measured, std::back_inserter(into));
}

}  // namespace detail

/// `cluster` with what a profile of only these terms has. Factors of a calibration were of the figures that go. Rates
/// of a data sheet stay, since shares of peak are of them. Errors (usage): the profile is of ranks that share cores in
/// another way.
inline Result<Cluster> with_measured(Cluster cluster, Cluster measured, std::span<const PriceTerm> terms) {
  const auto place = [](const Cluster& c) {
    return std::to_string(c.cores) + " cores with " + std::to_string(c.threads_per_rank) + " threads a rank";
  };
  if (cluster.cores != measured.cores || cluster.threads_per_rank != measured.threads_per_rank)
    return usage_error("the ranks of " + cluster.name + " are on " + place(cluster) + ", and " + place(measured) +
                       " were measured: profile with as many ranks, or all terms");
  const auto has = [&](PriceTerm term) { return std::ranges::find(terms, term) != terms.end(); };
  const bool on_cores = cluster.cores > 0;
  if (has(PriceTerm::products)) {
    detail::take_tables(cluster.gemm, std::move(measured.gemm));
    for (const PrecisionRate& rate : measured.device.rates) {
      auto& rates = cluster.device.rates;
      const auto old = std::ranges::find(rates, rate.precision, &PrecisionRate::precision);
      if (old == rates.end())
        rates.push_back(rate);
      else if (on_cores)
        *old = rate;
    }
  }
  if (has(PriceTerm::attention)) detail::take_tables(cluster.attention, std::move(measured.attention));
  if (has(PriceTerm::memory_bound)) {
    detail::take_tables(cluster.memory_bound, std::move(measured.memory_bound));
    cluster.device.memory_bandwidth = measured.device.memory_bandwidth;
    cluster.device.memory_share = measured.device.memory_share;
  }
  if (has(PriceTerm::inside_node) && measured.devices_per_node > 1) {
    cluster.messages = std::move(measured.messages);
    cluster.inside_node = measured.inside_node;
    cluster.overlap_slowdown = measured.overlap_slowdown;
  }
  if (has(PriceTerm::across_nodes) && measured.nodes() > 1) cluster.across_nodes = measured.across_nodes;
  for (const CostTerm term : cost_terms)
    if (has(price_term_of(term))) cluster.calibration.term(term) = {};
  return cluster;
}

}  // namespace galvatron::train
