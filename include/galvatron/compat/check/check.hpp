// Whether another trainer's job fits, how long it takes, and the best plan that the same trainer can run instead.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/spec.hpp>
#include <galvatron/compat/check/job.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/model/spec.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/interval.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/search/trainer_space.hpp>

namespace galvatron {

/// A plan with its price.
struct PricedPlan {
  Plan plan;
  PlanCost cost;
  PredictionInterval interval;
};

struct CheckReport {
  PricedPlan job;
  Bytes budget;   ///< of a device, beside the reserve
  Bytes reserve;  ///< of a device
  /// The fastest plan of the same batch that the trainer can be told; none where no plan fits.
  std::optional<PricedPlan> best;
  std::vector<std::string> changes;  ///< from the job to it; none where the job is as fast
  std::string why_no_best;

  [[nodiscard]] bool fits() const { return job.cost.peak() <= budget; }
};

namespace detail {

inline Result<PricedPlan> priced_plan(Plan plan, const ModelSpec& model, const Cluster& cluster) {
  auto cost = cost_of(plan, model, cluster);
  if (!cost) return tl::unexpected<Error>(std::move(cost.error()));
  auto interval = interval_of(plan, model, cluster, *cost);
  if (!interval) return tl::unexpected<Error>(std::move(interval.error()));
  return PricedPlan{std::move(plan), std::move(*cost), std::move(*interval)};
}

}  // namespace detail

/// Prices a job and searches a better one. Errors (usage): those of plan_of_job and cost_of.
/// @param seconds  that the search may take
inline Result<CheckReport> check_job(const TrainerJob& job, const ModelSpec& model, const Cluster& cluster,
                                     double seconds = 20) {
  const std::int64_t devices = job.devices > 0 ? job.devices : cluster.devices;
  auto plan = plan_of_job(job, model, devices);
  if (!plan) return tl::unexpected<Error>(std::move(plan.error()));
  plan->cluster = cluster.name;
  auto priced = detail::priced_plan(std::move(*plan), model, cluster);
  if (!priced) return tl::unexpected<Error>(std::move(priced.error()));
  CheckReport out;
  out.job = std::move(*priced);
  out.reserve = reserve_of(out.job.plan, cluster);
  out.budget = cluster.device.memory - out.reserve;

  SearchOptions options;
  options.global_batch = out.job.plan.global_batch;
  options.sequence = out.job.plan.sequence_length;
  options.precision = out.job.plan.precision;
  options.trainer = job.trainer;
  options.schedules = {ScheduleKind::one_f_one_b, ScheduleKind::interleaved};
  options.time = seconds;
  options = search::within_trainer(std::move(options));
  Cluster same = cluster;
  same.devices = static_cast<int>(devices);
  same.devices_per_node = std::min(same.devices_per_node, same.devices);
  auto found = find_plan(model, same, options);
  if (!found) {
    out.why_no_best = found.error().message;
    return out;
  }
  if (!found->feasible) {
    out.why_no_best = found->reason;
    return out;
  }
  // The job itself is one of the plans that the trainer can be told.
  if (out.fits() && out.job.cost.iteration <= found->cost.iteration) {
    out.best = out.job;
    return out;
  }
  found->plan.cluster = cluster.name;
  auto better = detail::priced_plan(std::move(found->plan), model, cluster);
  if (!better) return tl::unexpected<Error>(std::move(better.error()));
  out.best = std::move(*better);
  out.changes = changes_between(out.job.plan, out.best->plan, job.kind);
  return out;
}

}  // namespace galvatron
