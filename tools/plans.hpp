// Plans for other commands.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/plan/find.hpp>

#include "output.hpp"

namespace galvatron::tools {

/// The plan as its file has it, keys in their order.
nlohmann::ordered_json plan_json(const Plan& plan);

/// The budget of each device: what was asked for (0: nothing), or, with a note, all that a device has if that is less.
Bytes memory_to_plan_with(Bytes wanted, const Cluster& cluster, const Common& common);

/// The fastest plan, with a sign of life while the search takes long. `plan.cluster` becomes `cluster_name`. Throws
/// Failure (usage), or Infeasible.
FoundPlan searched_plan(const ModelSpec& model, const Cluster& cluster, const std::string& cluster_name,
                        const search::SearchOptions& options, const Common& common);

}  // namespace galvatron::tools
