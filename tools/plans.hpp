// Plans for other commands.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include <galvatron/plan/find.hpp>

#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

/// The budget of each device: what was asked for (0: nothing), or, with a note, all that a device has if that is less.
Bytes memory_to_plan_with(Bytes wanted, const Cluster& cluster, const Common& common);

/// The fastest plan, with a sign of life while the search takes long. `plan.cluster` becomes `cluster_name`. Throws
/// Failure (usage), or Infeasible.
FoundPlan searched_plan(const ModelSpec& model, const Cluster& cluster, const std::string& cluster_name,
                        const search::SearchOptions& options, const Common& common);

/// A plan that a command is about, and what stands in place of its own model and cluster; empty: its own.
struct PlanArguments {
  std::string path;
  std::string cluster;
  std::string model;
};
void add_plan_options(Options& options, const std::string& name, PlanArguments& a);

/// Model FLOPs over the peak of the devices: ", 41.2 % of peak", or nothing if it is unknown; and as JSON.
std::string mfu_text(double mfu);
void add_mfu(nlohmann::ordered_json& out, double mfu);

/// What `plan` and `cost` say of a stage, and `hetu`.
nlohmann::ordered_json stage_json(int first_layer, int last_layer, int devices, Bytes peak, Seconds forward,
                                  Seconds backward);

}  // namespace galvatron::tools
