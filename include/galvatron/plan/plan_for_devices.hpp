// The plan for a run that has lost devices: what it trains, on those that are left.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/find_spread.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/search/options.hpp>

namespace galvatron {

/// The best plan for what another one is for (model, batch, precision) on equal devices of another number: that of the
/// search, or, where numbers do not divide, one of uneven shards (find_spread_plan). Errors (infeasible): none fits.
/// @param cluster  with the devices that are left  @param memory  of a rank; 0: the device's
/// @param allowed  whether this program runs a plan; null: it does
inline Result<Plan> plan_for_devices(const Plan& plan, const ModelSpec& model, const Cluster& cluster,
                                     Bytes memory = {}, const std::function<bool(const Plan&)>& allowed = {}) {
  SearchOptions options;
  options.global_batch = plan.global_batch;
  options.sequence = plan.sequence_length;
  options.precision = plan.precision;
  options.moments = plan.moments;
  options.expert_imbalance = plan.expert_imbalance;
  options.lsh = plan.lsh;
  options.memory = memory;
  options.time = 2;
  std::optional<Plan> out;
  Seconds best{1e30};
  auto found = find_plan(model, cluster, options);
  if (!found) return tl::unexpected<Error>(std::move(found.error()));
  const auto offer = [&](Plan candidate, Seconds iteration) {
    candidate.cluster = plan.cluster;
    for (PlanStage& stage : candidate.stages) {  // all are of one kind
      stage.group = 0;
      stage.rank_groups.clear();
    }
    if (allowed && !allowed(candidate)) return;
    best = iteration;
    out = std::move(candidate);
  };
  if (found->feasible) offer(found->plan, found->cost.iteration);
  if (cluster.devices > 1) {
    Cluster most = cluster;
    Cluster last = cluster;
    last.devices = last.devices_per_node = 1;
    most.devices = cluster.devices - 1;
    most.devices_per_node = std::min(cluster.devices_per_node, most.devices);
    MixedCluster parts{cluster.name, {std::move(most), std::move(last)}, {cluster.inside_node}};
    if (const auto completed = search::completed(options, model, parts))
      if (auto spread = find_spread_plan(model, parts, *completed, best))
        offer(std::move(spread->plan), spread->cost.iteration);
  }
  if (out) return *out;
  return tl::unexpected<Error>(Error{ErrorKind::infeasible, "no plan for " + model.name + " on " +
                                                                std::to_string(cluster.devices) + " ranks" +
                                                                (found->reason.empty() ? "" : ": " + found->reason)});
}

}  // namespace galvatron
