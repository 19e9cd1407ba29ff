// From a question that leaves the batch open to a plan: the batch with the most samples a second.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/find.hpp>

namespace galvatron {

/// `least`, twice that, and so on, and `most`.
inline std::vector<std::int64_t> batches_between(std::int64_t least, std::int64_t most) {
  std::vector<std::int64_t> out;
  for (std::int64_t batch = least; batch < most; batch *= 2) out.push_back(batch);
  out.push_back(most);
  return out;
}

/// One batch that was tried.
struct TriedBatch {
  std::int64_t global_batch = 1;
  bool feasible = false;
  Seconds iteration;
  double samples_per_second = 0;
};

struct Sweep {
  std::int64_t global_batch = 1;  ///< of the best plan, or the last that was tried
  FoundPlan best;
  std::vector<TriedBatch> tried;
};

/// The plan with the most samples a second over `batches`, ascending; of equal ones the smallest batch. A larger batch
/// amortises what is done once an iteration and fills the pipeline, so throughput levels off: the sweep ends after a
/// batch that gains less than `least_gain` (a share) on the best before; 0 tries all. Batches that
/// `options.microbatches` does not divide are left out, but for the last. Errors (usage): no batch, bad
/// options.
/// @tparam Executor  as of search::search
template <class Executor = search::Team>
Result<Sweep> sweep_batches(const ModelSpec& model, const Cluster& cluster, SearchOptions options,
                            const std::vector<std::int64_t>& batches, double least_gain = 0) {
  if (batches.empty()) return usage_error("no global batch is to be tried: name one");
  Sweep out;
  // A sweep may take several searches' work, but not that of one for each batch.
  options.shares = std::max(1, static_cast<int>(batches.size()) / 2);
  for (const std::int64_t batch : batches) {
    if (options.microbatches > 1 && batch % options.microbatches != 0 && batch != batches.back()) continue;
    options.global_batch = batch;
    auto found = find_plan<Executor>(model, cluster, options);
    if (!found) return tl::unexpected<Error>(std::move(found.error()));
    const double before = out.best.feasible ? out.best.cost.samples_per_second : 0;
    const double now = found->feasible ? found->cost.samples_per_second : 0;
    out.tried.push_back({batch, found->feasible, found->cost.iteration, now});
    if (out.tried.size() == 1 || now > before) {
      const search::SearchStatistics earlier = out.best.statistics;
      out.best = std::move(*found);
      out.global_batch = batch;
      out.best.statistics.seconds += earlier.seconds;
    } else {
      out.best.statistics.seconds += found->statistics.seconds;
    }
    if (options.interrupted() || (before > 0 && now < before * (1 + least_gain))) break;
  }
  if (options.shares > 1 && out.best.feasible && !options.interrupted()) {  // the best with all the work
    options.shares = 1;
    options.global_batch = out.global_batch;
    auto found = find_plan<Executor>(model, cluster, options);
    if (!found) return tl::unexpected<Error>(std::move(found.error()));
    if (found->feasible && found->cost.iteration <= out.best.cost.iteration) {
      found->statistics.seconds += out.best.statistics.seconds;
      out.best = std::move(*found);
      for (TriedBatch& tried : out.tried)
        if (tried.global_batch == out.global_batch)
          tried = {tried.global_batch, true, out.best.cost.iteration, out.best.cost.samples_per_second};
    }
  }
  out.best.statistics.interrupted = options.interrupted();
  return out;
}

}  // namespace galvatron
