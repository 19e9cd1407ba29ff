// galvatron plan: the fastest plan for a model on a cluster.
#include <string>

#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/strategy/space.hpp>

#include "commands.hpp"
#include "machine.hpp"
#include "options.hpp"
#include "report.hpp"

namespace galvatron::tools {

void run_plan(const Arguments& arguments, Common& common) {
  Options options("plan",
                  "Searches the fastest training plan for a model on a cluster within a memory budget: the strategy of "
                  "every layer, pipeline stages, micro-batches and recomputation.");
  std::string model_name;
  std::string cluster_name;
  std::string precision;
  std::string space = "all";
  std::string schedule;
  std::string out;
  search::SearchOptions search;
  options.section("What to plan");
  options.text("--model", model_name, "MODEL", "a preset's name, or the path of a Hugging Face config.json")
      ->required();
  options
      .text("--cluster", cluster_name, "CLUSTER",
            "a preset such as 8xa100-80g or host, or a cluster file of `galvatron profile`")
      ->required();
  options.integer("--global-batch", search.global_batch, 1, 1 << 30, "samples of an iteration")->required();
  options.integer("--seq", search.sequence, 1, 1 << 24, "tokens of a sample (default: all the model takes)");
  options.choice("--precision", precision, {"bf16", "fp32"}, "of arithmetic (default: bf16 where the devices have it)");
  options.section("Limits");
  options.size("--memory", search.memory, "memory of each device that the plan may take (default: all it has)");
  options.text("--space", space, "a,b,...", "what to choose from: " + std::string(space_names) + " (default: all)");
  options.text("--schedule", schedule, "NAME", "gpipe, 1f1b, or gpipe,1f1b for the faster one (default)");
  options.integer("--microbatches", search.microbatches, 1, 1 << 30,
                  "micro-batches of an iteration (default: the fastest number)");
  options.integer("--threads", search.threads, 1, 1024, "threads to search with (default: 1)");
  options.section("Output");
  options.text("--out", out, "FILE", "write the plan here, for `cost`, `train` and `explain`");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples(
      "Examples:\n  galvatron plan --model llama3-8b --cluster 64xh100-80g --global-batch 512\n  galvatron plan "
      "--model "
      "gpt2-tiny --cluster cluster.json --global-batch 16 \\\n      --memory 16MiB --out plan.json");
  if (options.parse(arguments) == Options::Outcome::help_shown) return;
  require_output(common);
  require_writable(out, "--out");

  const ModelSpec model = value_or_throw(load_model(model_name));
  const Cluster cluster = cluster_named(cluster_name);
  search.precision = chosen_precision(precision, cluster);
  search.space = value_or_throw(parse_space(space));
  if (!schedule.empty()) search.schedules = schedules_named(schedule);
  const FoundPlan found = searched_plan(model, cluster, cluster_name, search, common);
  if (!out.empty())
    if (auto saved = save_plan(found.plan, out); !saved) throw_error(saved.error());
  if (common.json) {
    print_json(plan_report(found.plan, found.cost, found.statistics.seconds));
    return;
  }
  std::string text = plan_summary(found.plan, found.cost);
  text += "  search       " + format_seconds(found.statistics.seconds) + ", " + std::to_string(found.statistics.cases) +
          " combinations of stages, micro-batches and schedule\n";
  if (!out.empty()) text += "  written to   " + out + " (`galvatron explain " + out + "` tells why this plan won)\n";
  print(text);
}

}  // namespace galvatron::tools
