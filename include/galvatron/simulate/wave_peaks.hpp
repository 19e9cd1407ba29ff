// The memory that a plan of waves takes on every rank.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include <galvatron/cluster/mixed.hpp>
#include <galvatron/core/dtype.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/plan/task_costs.hpp>
#include <galvatron/plan/task_plan.hpp>
#include <galvatron/plan/wave_plan.hpp>

namespace galvatron::simulate {

/// Peak memory of every rank, whose devices are the cluster's in their order. Ranks that have the same parts in the
/// same places share their answer.
/// @param costs  of the plan
inline std::vector<Bytes> peaks_of(const train::TaskPlan& plan, const train::TaskCosts& costs, Precision precision,
                                   const ClusterView& cluster) {
  using Key = std::vector<std::pair<std::size_t, int>>;  // parts of a rank, and its tensor rank in each
  std::vector<Key> keys(static_cast<std::size_t>(plan.ranks));
  for (std::size_t i = 0; i < plan.parts.size(); ++i) {
    const WavePart& where = plan.parts[i].where;
    for (std::size_t local = 0; local < where.ranks.size(); ++local)
      keys[static_cast<std::size_t>(where.ranks[local])].emplace_back(
          i, where.strategy.tensor_rank(static_cast<int>(local)));
  }
  std::vector<Bytes> out;
  std::map<Key, Bytes> known;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    const Key& key = keys[static_cast<std::size_t>(rank)];
    auto at = known.find(key);
    if (at == known.end()) at = known.emplace(key, train::memory_of(plan, costs, precision, rank, {}).total()).first;
    out.push_back(at->second + cluster.group(cluster.group_of(rank)).device.library_workspace);
  }
  return out;
}
inline std::vector<Bytes> peaks_of(const train::TaskPlan& plan, Precision precision, const ClusterView& cluster) {
  train::LayerCosts layers(precision);
  return peaks_of(plan, train::TaskCosts(plan, layers), precision, cluster);
}

}  // namespace galvatron::simulate
