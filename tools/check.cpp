// galvatron check: whether another trainer's configuration fits, how long a step takes, and what would be faster.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/compat/check/accelerate.hpp>
#include <galvatron/compat/check/check.hpp>
#include <galvatron/compat/check/deepspeed.hpp>
#include <galvatron/compat/check/megatron.hpp>
#include <galvatron/compat/check/torchtitan.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/files.hpp>
#include <galvatron/plan/compiled.hpp>

#include "config_files.hpp"
#include "plans.hpp"

namespace galvatron::tools {

namespace {

bool ends_with_any(const std::string& path, std::initializer_list<const char*> endings) {
  return std::ranges::any_of(endings, [&](const char* ending) { return path.ends_with(ending); });
}

TrainerJob job_of(const std::string& path, std::int64_t devices) {
  const std::string text = value_or_throw(read_text_file(path, std::int64_t{1} << 20));
  const auto named = [&](Result<TrainerJob> job) {
    if (!job) refuse(path, ": ", job.error().message);
    return std::move(*job);
  };
  if (ends_with_any(path, {".toml"})) return named(torchtitan_job(value_or_throw(json_of_toml(text, path)), devices));
  if (ends_with_any(path, {".yaml", ".yml"})) return named(accelerate_job(value_or_throw(json_of_yaml(text, path))));
  if (ends_with_any(path, {".json"})) return named(deepspeed_job(value_or_throw(parse_json(text, path))));
  return named(megatron_job(text));
}

nlohmann::ordered_json time_json(const PlanCost& cost) {
  return {{"compute_seconds", cost.compute.value},
          {"communication_seconds", cost.communication.value},
          {"update_seconds", cost.update.value},
          {"idle_seconds", cost.idle.value}};
}

nlohmann::ordered_json priced_json(const PricedPlan& priced) {
  nlohmann::ordered_json out{{"peak_bytes", priced.cost.peak().count},
                             {"peak_bytes_interval", {priced.interval.peak_low.count, priced.interval.peak_high.count}},
                             {"iteration_seconds", priced.cost.iteration.value},
                             {"interval", {priced.interval.low.value, priced.interval.high.value}},
                             {"samples_per_second", priced.cost.samples_per_second},
                             {"tokens_per_second", priced.cost.tokens_per_second}};
  add_mfu(out, priced.cost.mfu);
  out["time"] = time_json(priced.cost);
  return out;
}

nlohmann::ordered_json report_json(const TrainerJob& job, const CheckReport& report) {
  nlohmann::ordered_json out{{"fits", report.fits()}};
  out.update(priced_json(report.job));
  out["budget_bytes"] = report.budget.count;
  out["reserve_bytes"] = report.reserve.count;
  out["trainer"] = job.trainer.name;
  add_spread(out, report.job.interval);
  out["unknown"] = job.unknown;
  out["ignored"] = job.ignored;
  out["assumed"] = job.assumed;
  out["plan"] = to_json(report.job.plan);
  if (report.best) {
    out["best"] = priced_json(*report.best);
    out["best"]["changes"] = report.changes;
    out["best"]["plan"] = to_json(report.best->plan);
  } else {
    out["best"] = nullptr;
    out["best_reason"] = report.why_no_best;
  }
  return out;
}

std::string shares_text(const PlanCost& cost) {
  const auto share = [&](Seconds part) { return percent(part / cost.iteration); };
  return text_of("compute ", share(cost.compute), ", communication ", share(cost.communication),
                 ", gradients and optimizer ", share(cost.update), ", waiting for other stages ", share(cost.idle));
}

std::string speed_text(const PricedPlan& priced) {
  return text_of(format_seconds(priced.cost.iteration), " (", format_seconds(priced.interval.low), " to ",
                 format_seconds(priced.interval.high), " with 90 %), ", format_count(priced.cost.tokens_per_second),
                 " tokens/s", mfu_text(priced.cost.mfu));
}

std::string report_text(const TrainerJob& job, const CheckReport& report, const std::string& model,
                        const std::string& cluster) {
  const Bytes peak = report.job.cost.peak();
  const bool fits = report.fits();
  const Bytes distance = fits ? report.budget - peak : peak - report.budget;
  std::string out =
      text_of(model, " with ", job.trainer.name, " on ", cluster, ": ", counted(report.job.plan.ranks(), "rank"), ", ",
              batch_text(report.job.plan), ", ", name_of(report.job.plan.precision), "\n");
  out += row("runs as", plan_words(report.job.plan));
  out += row("memory", fits ? "it fits: " : "it does not fit: ", format_bytes(peak), " of ",
             format_bytes(report.budget), ", ", format_bytes(distance), fits ? " to spare" : " too much", "; ",
             format_bytes(report.reserve), " are the trainer's own");
  out += row("iteration", speed_text(report.job));
  out += row("goes to", shares_text(report.job.cost));
  if (!report.best)
    out += row("better", "no plan of this trainer fits: ", report.why_no_best);
  else if (report.changes.empty())
    out += row("better", "nothing that this trainer can be told is faster");
  else
    out += row("better", plan_words(report.best->plan), ": ", speed_text(*report.best), ", ",
               format_bytes(report.best->cost.peak()));
  for (const std::string& change : report.changes) out += "    " + change + "\n";
  for (const std::string& what : job.assumed) out += row("assumed", what);
  if (!job.unknown.empty()) out += row("unknown", joined(job.unknown));
  if (!job.ignored.empty()) out += row("no effect", joined(job.ignored));
  return out;
}

}  // namespace

void run_check(const Arguments& arguments, Common& common) {
  Options options("check",
                  "Reads the configuration of another trainer and tells whether it fits, how long a step takes, where "
                  "the time goes, and which of its settings would be faster.");
  std::string path;
  std::string model_name;
  std::string cluster_name;
  std::int64_t sequence = 0;
  double seconds = 20;
  options.section("What to check");
  options.require(options.text("config", path, "CONFIG",
                               "a launch script or arguments of Megatron-LM, .toml of torchtitan, .json of DeepSpeed, "
                               ".yaml of Accelerate's FSDP or transformers' Trainer"));
  options.text("--model", model_name, "MODEL", "a preset or a config.json (default: what the configuration says)");
  options.text("--cluster", cluster_name, "CLUSTER",
               "a preset or a cluster file (default: H100 of 80 GB, as many as the configuration has ranks)");
  options.integer("--seq", sequence, 1, 1 << 24, "tokens of a sample (default: the configuration's, or the model's)");
  options.number("--time", seconds, 1e-3, 1e9, "seconds that the search of a better plan may take (default: 20)");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.examples(
      "Examples:\n  galvatron check train_gpt.sh --cluster 64xa100-80g\n  galvatron check ds_config.json "
      "--model llama2-7b --cluster 8xh100-80g \\\n      --seq 4096");
  if (!options.parse(arguments, common)) return;

  std::optional<Cluster> cluster;
  if (!cluster_name.empty()) cluster = cluster_named(cluster_name);
  TrainerJob job = job_of(path, cluster ? cluster->devices : 0);
  if (sequence > 0) job.sequence = sequence;
  if (!model_name.empty()) job.model = value_or_throw(load_model(model_name));
  if (!job.model)
    refuse(path, " does not say the model", job.kind == ConfigKind::megatron ? " with all of its numbers" : "",
           ": name it with --model");
  if (!cluster) {
    if (job.devices == 0) {
      job.devices = std::max<std::int64_t>(8, job.tensor * job.pipeline * job.context);
      job.assume("the configuration does not say how many devices there are: ", job.devices);
    }
    cluster_name = text_of(job.devices, "xh100-80g");
    cluster = cluster_named(cluster_name);
    job.assume("the devices are H100 of 80 GB: name them with --cluster");
  } else if (job.devices > cluster->devices || job.kind == ConfigKind::megatron || job.devices == 0) {
    job.devices = cluster->devices;  // scripts are started with other numbers of nodes
  }
  const ModelSpec& model = *job.model;
  const CheckReport report = value_or_throw(check_job(job, model, *cluster, seconds));
  if (common.json)
    print_json(report_json(job, report));
  else
    print(report_text(job, report, model.name, cluster_name));
  if (!report.fits()) throw Exited{static_cast<int>(ErrorKind::infeasible)};
}

}  // namespace galvatron::tools
