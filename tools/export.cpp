// galvatron export: a plan in the words of another trainer, or as a C++ header; a checkpoint for Hugging Face.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface_components.hpp>
#include <galvatron/checkpoint/huggingface_writer.hpp>
#include <galvatron/checkpoint/peft.hpp>
#include <galvatron/checkpoint/reader.hpp>
#include <galvatron/compat/export/cpp_header.hpp>
#include <galvatron/compat/export/export.hpp>
#include <galvatron/files.hpp>
#include <galvatron/model/clip.hpp>
#include <galvatron/model/multi_task_json.hpp>

#include "options.hpp"
#include "plans.hpp"
#include "tasks.hpp"
#include "weights.hpp"

namespace galvatron::tools {

namespace {

// @param manifest  null: of weights of Hugging Face
void tell_of_weights(const train::CheckpointManifest* manifest, const std::string& target, const std::string& path,
                     const std::string& model, const std::string& out, const std::vector<std::string>& files,
                     const Common& common) {
  if (common.json) {
    nlohmann::ordered_json told{{"target", target}, {"checkpoint", path}, {"model", model}};
    if (manifest != nullptr) told["step"] = manifest->training.step;
    told["out"] = out;
    told["files"] = files;
    return print_json(told);
  }
  const std::string step = manifest == nullptr ? "" : text_of(" after step ", manifest->training.step);
  print(text_of("Wrote the ", target == "peft" ? "adapters" : "weights", " of ", model, step, " to ", out, ": ",
                joined(files, " "), "\n"));
}

// Components of a model of several tasks as the model of a config.json, of which they are all layers.
void export_components(const std::string& path, const train::CheckpointManifest& manifest,
                       const std::string& model_name, std::string components, const std::string& out,
                       Precision precision, const Common& common) {
  const MultiTaskModel model = value_or_throw(load_multi_task_model(model_name));
  if (components.empty() && describes_clip(std::filesystem::path(model_name)))
    components = "text,vision,contrast=" + model_name;
  if (components.empty())
    refuse("the model ", model.name, " has several components; name those to write, and the folder or config.json of ",
           "what they are, with --components COMPONENT[,COMPONENT]=PATH");
  const ComponentsOf of = components_of("--components", components);
  const std::vector<std::string> files = value_of("--components", [&]() -> Result<std::vector<std::string>> {
    if (describes_clip(std::filesystem::path(of.path)))
      return load_clip(of.path).and_then(
          [&](const ClipShape& clip) { return train::write_components(out, path, model, of.names, clip, precision); });
    return load_model(of.path).and_then(
        [&](const ModelSpec& whole) { return train::write_components(out, path, model, of.names, whole, precision); });
  }());
  tell_of_weights(&manifest, "huggingface", path, model.name, out, files, common);
}

// The weights of a checkpoint, or with an adapter of peft of a folder of Hugging Face too, for Hugging Face
// transformers.
void export_weights(const std::string& path, std::string model_name, const std::string& components,
                    const std::string& adapter, const std::string& out, Precision precision, const Common& common) {
  if (out.empty()) refuse("--to huggingface writes a folder; give --out DIR");
  const bool is_ours = adapter.empty() || train::find_checkpoint(path).has_value();
  std::optional<train::CheckpointManifest> manifest;
  if (is_ours) manifest = value_or_throw(train::Checkpoint::read_manifest(path));
  if (model_name.empty()) model_name = is_ours ? manifest->training.model : path;
  if (is_ours && names_tasks(model_name))
    return export_components(path, *manifest, model_name, components, out, precision, common);
  if (!components.empty())
    refuse("--components are those of a model of several tasks, and ", model_name,
           " has one task; name theirs with --model");
  const ModelSpec model = value_or_throw(load_model(model_name));
  const Weights weights("the checkpoint", path, model, adapter);
  const auto files = value_or_throw(train::write_huggingface(out, weights.source(), model, precision));
  tell_of_weights(manifest ? &*manifest : nullptr, "huggingface",
                  is_ours ? value_or_throw(train::find_checkpoint(path)).string() : path, model.name, out, files,
                  common);
}

// The adapters of a checkpoint, for Hugging Face's peft.
void export_adapters(const std::string& path, std::string model_name, const std::string& out, const Common& common) {
  if (out.empty()) refuse("--to peft writes a folder; give --out DIR");
  const auto manifest = value_or_throw(train::Checkpoint::read_manifest(path));
  if (model_name.empty()) model_name = manifest.training.model;
  const ModelSpec model =
      value_or_throw(train::with_adapters_of(manifest.training, value_or_throw(load_model(model_name))));
  if (adapters_of(model).rank == 0)
    refuse(path, " has no adapters but whole weights; write them with --to huggingface");
  const auto checkpoint = value_or_throw(train::Checkpoint::open(path, model));
  const std::string& base = manifest.training.base;
  const auto files = value_or_throw(train::write_peft(out, checkpoint, model, base.empty() ? model_name : base));
  tell_of_weights(&manifest, "peft", checkpoint.path().string(), model.name, out, files, common);
}

// Writes the text where it is wanted, and else prints it, or the report.
void give(const Exported& exported, const std::string& to, const std::string& out, const nlohmann::ordered_json& more,
          const Common& common) {
  if (!out.empty()) value_or_throw(write_file_atomically(out, exported.text));
  if (common.json) {
    nlohmann::ordered_json report{{"target", to},
                                  {"text", exported.text},
                                  {"not_expressed", exported.not_expressed},
                                  {"set_elsewhere", exported.set_elsewhere}};
    report.update(more);
    print_json(report);
  } else if (out.empty()) {
    print(exported.text);
  }
}

// What the exported job costs, or why it is not priced.
struct Priced {
  std::optional<JobCost> cost;
  std::string why_not;  // a part of a sentence
  std::string command;  // that searches a plan which the target can be told
};

Priced priced(const Exported& exported, const Plan& plan, ExportTarget target, const Result<ModelSpec>& model,
              const std::string& model_name, const std::string& cluster_name) try {
  if (!model) return {{}, model.error().message + "; name the model with --model", {}};
  const Cluster cluster = cluster_named(cluster_name, plan.ranks());
  const Result<JobCost> cost = job_cost(exported, plan, *model, cluster);
  if (!cost) return {{}, cost.error().message, {}};
  return {
      *cost,
      {},
      search_command(plan, target, model_name, cluster_name, *model, cluster.device.memory - reserve_of(plan, cluster),
                     text_of("plan_for_", name_of(target), ".json"))};
} catch (const Failure& e) {
  return {{}, std::string(e.what()) + "; name the cluster with --cluster", {}};
}

nlohmann::ordered_json price_json(const Exported& exported, const Plan& plan, const Priced& price) {
  if (!price.cost) return {{"exported", nullptr}, {"not_priced", price.why_not}};
  nlohmann::ordered_json out{{"peak_bytes", price.cost->peak.count},
                             {"iteration_seconds", price.cost->iteration.value},
                             {"budget_bytes", price.cost->budget.count},
                             {"fits", price.cost->fits()},
                             {"plan", to_json(exported.job.value_or(plan))}};
  if (!price.cost->fits()) out["command"] = price.command;
  return {{"exported", out}};
}

// The exported job beside the budget.
std::string too_large(const JobCost& cost) {
  return text_of("the exported job takes ", cost.peak.count, " bytes (", format_bytes(cost.peak),
                 ") on its fullest device, and the budget is ", format_bytes(cost.budget), " on each");
}

}  // namespace

void run_export(const Arguments& arguments, Common& common) {
  Options options(
      "export",
      "Writes a plan for another trainer: arguments of Megatron-LM, a configuration of torchtitan, DeepSpeed or "
      "Accelerate, "
      "a plan of Hetu-Galvatron; or as a C++ header with the strategies as types. What the target cannot express is "
      "told on standard error, and the job that it will run is priced: the first line warns when it does not fit. Or "
      "writes the weights of a checkpoint for Hugging Face transformers, those of adapters merged with their base, or "
      "adapters for peft.");
  std::string path;
  std::string to;
  std::string out;
  std::string name;
  std::string model;
  std::string cluster;
  std::string components;
  std::string adapter;
  std::optional<Precision> precision;
  std::optional<TorchtitanRelease> torchtitan;
  bool strict = false;
  options.require(options.text("plan", path, "PATH",
                               "the plan, as `galvatron plan --out` writes it; with --to huggingface and --to peft a "
                               "checkpoint, or a folder of them, of `galvatron train --checkpoint`"));
  options.require(options.choice(
      "--to", to, {"megatron", "torchtitan", "deepspeed", "accelerate", "hetu", "header", "huggingface", "peft"},
      "what to write"));
  options.choice("--release", torchtitan, {TorchtitanRelease::v0_3, TorchtitanRelease::v0_2},
                 "of torchtitan: a Python module, or the TOML of older ones (default: 0.3)");
  options.text("--name", name, "NAME", "namespace of the header (default: frozen_plan)");
  options.flag(
      "--strict", strict,
      "fail if the target cannot express all of the plan (exit code 2), or if the exported job does not fit (3)");
  options.text("--model", model, "MODEL",
               "a preset or a config.json, to price the exported job (default: the plan's own); with --to huggingface "
               "the checkpoint's model, if its name is not enough");
  options.text(
      "--components", components, "COMPONENT,...=PATH",
      "with --to huggingface, of models of several tasks: the components to write, and the folder or config.json "
      "of the model that they are (default: of a CLIP its parts)");
  adapter_option(options, adapter,
                 "with --to huggingface, merged with the weights of a checkpoint or of a folder of Hugging Face");
  options.text("--cluster", cluster, "CLUSTER",
               "a preset or a cluster file, to price the exported job (default: the plan's own)");
  options.choice("--precision", precision, {Precision::fp32, Precision::bf16},
                 "with --to huggingface: number format of the weights (default: fp32)");
  options.section("Output");
  options.text("--out", out, "PATH", "write here (default: standard output); with --to huggingface a folder");
  options.flag("--json", common.json, "print one JSON object with the text and what it leaves out");
  options.flag("--quiet", common.quiet, "do not tell what the text leaves out, but that the job does not fit");
  options.examples(
      "Example:\n  galvatron export plan.json --to megatron --out plan_args.sh\n  galvatron export checkpoints --to "
      "huggingface --out my-gpt2");
  if (!options.parse(arguments, common)) return;
  std::optional<ExportTarget> target;
  for (const ExportTarget known : export_targets)
    if (to == name_of(known)) target = known;
  if (target && !name.empty()) refuse("--name is the namespace of a header; leave it out with --to ", to);
  if (torchtitan && to != "torchtitan") refuse("--release is of torchtitan; leave it out with --to ", to);
  if (to == "huggingface" || to == "peft") {
    if (!name.empty() || strict || !cluster.empty())
      refuse("--name, --strict and --cluster are for plans; leave them out with --to ", to);
  }
  if (to == "peft") {
    if (!components.empty() || precision || !adapter.empty())
      refuse("--components, --adapter and --precision are for --to huggingface; leave them out");
    return export_adapters(path, model, out, common);
  }
  if (to == "huggingface") {
    if (!adapter.empty() && !components.empty())
      refuse("--components are those of a model of several tasks, and --adapter is of one task; leave one of them out");
    return export_weights(path, model, components, adapter, out, precision.value_or(Precision::fp32), common);
  }
  if (!components.empty()) refuse("--components is for --to huggingface; leave it out with --to ", to);
  if (!adapter.empty()) refuse("--adapter is for --to huggingface; leave it out with --to ", to);
  if (precision) refuse("--precision is for --to huggingface; leave it out with --to ", to);
  if (!target && (!model.empty() || !cluster.empty()))
    refuse("--model and --cluster price a job for another trainer; leave them out with --to " + to);

  require_apart({{"--out", out}}, {{"the command", path}, {"--model", model}, {"--cluster", cluster}});
  if (is_waves_file(path))
    refuse("the plan ", path,
           " is one of waves or of several pipelines, which are not exported; give one of one chain of stages");
  const Plan plan = value_or_throw(read_plan(path));
  if (target && plan.adapters.rank > 0)
    refuse(path, " trains adapters, which ", to, " is told of by its own settings; export a plan without them");
  if (model.empty()) model = plan.model;
  if (cluster.empty()) cluster = plan.cluster;
  if (!target)  // the strategies as types: all of a plan is expressed
    return give(value_or_throw(export_header(plan, name.empty() ? "frozen_plan" : name)), to, out,
                nlohmann::ordered_json::object(), common);

  const Result<ModelSpec> spec = load_model(model);  // without gains of residuals, which no target has
  if (spec)
    if (const std::string why = why_not_trained(*spec, *target); !why.empty()) refuse(why);
  const Exported exported =
      value_or_throw(export_plan(plan, *target, spec ? &*spec : nullptr, torchtitan.value_or(TorchtitanRelease::v0_3)));
  if (spec)
    if (const std::string why = why_not_run(exported, *spec, *target); !why.empty()) refuse(why);
  const Priced price = priced(exported, plan, *target, spec, model, cluster);
  const bool fits = !price.cost || price.cost->fits();
  const std::string instead = "; to search a plan that " + to + " can express: " + price.command;
  if (strict && !fits) throw Failure(ErrorKind::infeasible, "--strict: " + too_large(*price.cost) + instead);
  if (strict && !exported.not_expressed.empty())
    refuse("--strict: ", to, " cannot express all of ", path, ": ", exported.not_expressed.front(),
           exported.not_expressed.size() == 1 ? "" : text_of("; and ", exported.not_expressed.size() - 1, " more"),
           "; export without --strict to see all of it", price.command.empty() ? "" : instead);
  if (strict && !price.cost) refuse("--strict: the exported job is not priced: ", price.why_not);
  give(exported, to, out, price_json(exported, plan, price), common);
  if (!fits) complain("warning: " + too_large(*price.cost) + instead);
  if (!price.cost) note(common, "the exported job is not priced, so it may not fit: ", price.why_not);
  for (const std::string& sentence : exported.not_expressed) note(common, "not expressed: ", sentence);
  for (const std::string& sentence : exported.set_elsewhere) note(common, "to be set elsewhere: ", sentence);
}

}  // namespace galvatron::tools
