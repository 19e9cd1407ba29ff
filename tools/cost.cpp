// galvatron cost: the price of a plan.
#include <string>

#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/cost.hpp>
#include <galvatron/plan/json.hpp>

#include "commands.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "report.hpp"

namespace galvatron::tools {

void run_cost(const Arguments& arguments, Common& common) {
  Options options("cost", "Prices a plan on a cluster: the time of an iteration, and of each stage the peak memory.");
  std::string path;
  std::string cluster_name;
  std::string model_name;
  options.text("--plan", path, "FILE", "the plan, as `galvatron plan --out` writes it")->required();
  options.text("--cluster", cluster_name, "CLUSTER", "a preset or a cluster file (default: the plan's own)");
  options.text("--model", model_name, "MODEL", "a preset or a config.json (default: the plan's own)");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  if (options.parse(arguments) == Options::Outcome::help_shown) return;
  require_output(common);

  const Plan plan = value_or_throw(read_plan(path));
  const ModelSpec model = value_or_throw(load_model(model_name.empty() ? plan.model : model_name));
  const bool own = cluster_name.empty();
  const Cluster cluster = cluster_named(own ? plan.cluster : cluster_name, plan.ranks());
  const PlanCost cost = value_or_throw(cost_of(plan, model, cluster));
  const Bytes peak = cost.peak();
  const bool fits = peak <= cluster.device.memory;
  const std::string reason = "the plan takes " + std::to_string(peak.count) + " bytes (" + format_bytes(peak) +
                             ") on its fullest device, and " + cluster.name + " has " +
                             format_bytes(cluster.device.memory) + " on each";
  if (common.json) {
    auto report = plan_report(plan, cost, std::nullopt);
    if (!fits) {
      report["feasible"] = false;
      report["reason"] = reason;
      report["smallest_feasible_memory_bytes"] = peak.count;
    }
    print_json(report);
    return;
  }
  Plan shown = plan;
  if (!own) shown.cluster = cluster_name;
  print(plan_summary(shown, cost) + (fits ? "" : "  It does not fit: " + reason + ".\n"));
}

}  // namespace galvatron::tools
