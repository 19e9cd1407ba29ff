// The figures of a plan, as the commands print them.
#pragma once

#include <optional>
#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/core/units.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/find.hpp>
#include <galvatron/plan/plan.hpp>

#include "output.hpp"

namespace galvatron::tools {

/// The JSON of `plan` and `cost`; without a search there are no search_seconds.
nlohmann::ordered_json plan_report(const Plan& plan, const PlanCost& cost, std::optional<Seconds> search_seconds);

/// The same for people: a headline and a line for each stage.
std::string plan_summary(const Plan& plan, const PlanCost& cost);

/// The fastest plan, with a sign of life while the search takes long. `plan.cluster` becomes `cluster_name`. Throws
/// Failure (usage), or Infeasible.
FoundPlan searched_plan(const ModelSpec& model, const Cluster& cluster, const std::string& cluster_name,
                        const search::SearchOptions& options, const Common& common);

/// The schedules of a `--schedule` option: `1f1b`, `gpipe,1f1b`. Throws Failure (usage).
std::vector<ScheduleKind> schedules_named(const std::string& text);

}  // namespace galvatron::tools
