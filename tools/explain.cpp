// galvatron explain: a plan in words.
#include <string>

#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/explain.hpp>
#include <galvatron/plan/json.hpp>

#include "commands.hpp"
#include "machine.hpp"
#include "options.hpp"

namespace galvatron::tools {

void run_explain(const Arguments& arguments, Common& common) {
  Options options("explain",
                  "Tells in words and a table what a plan does, where time and memory go, why it won and by what the "
                  "others lost.");
  std::string path;
  std::string cluster_name;
  std::string model_name;
  options.text("plan", path, "FILE", "the plan, as `galvatron plan --out` writes it")->required();
  options.text("--cluster", cluster_name, "CLUSTER", "a preset or a cluster file (default: the plan's own)");
  options.text("--model", model_name, "MODEL", "a preset or a config.json (default: the plan's own)");
  if (options.parse(arguments) == Options::Outcome::help_shown) return;
  require_output(common);

  const Plan plan = value_or_throw(read_plan(path));
  const ModelSpec model = value_or_throw(load_model(model_name.empty() ? plan.model : model_name));
  const Cluster cluster = cluster_named(cluster_name.empty() ? plan.cluster : cluster_name, plan.ranks());
  print(value_or_throw(galvatron::explain(plan, model, cluster)));
}

}  // namespace galvatron::tools
