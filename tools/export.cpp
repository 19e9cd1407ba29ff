// galvatron export: a plan in the words of another trainer, or as a C++ header; a checkpoint for Hugging Face.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/plan/emit.hpp>
#include <galvatron/plan/export/export.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/split.hpp>
#include <galvatron/train/checkpoint/huggingface_writer.hpp>
#include <galvatron/train/checkpoint/reader.hpp>

#include "commands.hpp"
#include "options.hpp"

namespace galvatron::tools {

namespace {

std::vector<std::string> target_names() {
  std::vector<std::string> out;
  for (const ExportTarget target : export_targets) out.emplace_back(galvatron::name_of(target));
  out.emplace_back("header");
  out.emplace_back("huggingface");
  return out;
}

// The weights of a checkpoint, for Hugging Face transformers.
void export_weights(const std::string& path, std::string model_name, const std::string& out, Precision precision,
                    const Common& common) {
  if (out.empty()) throw Failure(ErrorKind::usage, "--to huggingface writes a folder; give --out DIR");
  const auto manifest = value_or_throw(galvatron::train::Checkpoint::read_manifest(path));
  if (model_name.empty()) model_name = manifest.training.model;
  const ModelSpec model = value_or_throw(load_model(model_name));
  const auto checkpoint = value_or_throw(galvatron::train::Checkpoint::open(path, model));
  const auto files = value_or_throw(galvatron::train::write_huggingface(out, checkpoint, model, precision));
  if (common.json) {
    print_json({{"target", "huggingface"},
                {"checkpoint", checkpoint.path().string()},
                {"model", model.name},
                {"step", checkpoint.training().step},
                {"out", out},
                {"files", files}});
    return;
  }
  std::string text = "Wrote the weights of " + model.name + " after step " +
                     std::to_string(checkpoint.training().step) + " to " + out + ":";
  for (const std::string& file : files) text += " " + file;
  print(text + "\n");
}

}  // namespace

void run_export(const Arguments& arguments, Common& common) {
  Options options("export",
                  "Writes a plan for another trainer: arguments of Megatron-LM, a torchtitan job file, a DeepSpeed "
                  "configuration, a plan of Hetu-Galvatron; or as a C++ header with the strategies as types. What the "
                  "target cannot express is told on standard error. Or writes the weights of a checkpoint for Hugging "
                  "Face transformers.");
  std::string path;
  std::string to;
  std::string out;
  std::string name;
  std::string model;
  std::string precision;
  bool strict = false;
  options.require(
      options.text("plan", path, "PATH",
                   "the plan, as `galvatron plan --out` writes it; with --to huggingface a checkpoint, or a "
                   "folder of them, of `galvatron train --checkpoint`"));
  options.require(options.choice("--to", to, target_names(), "what to write"));
  options.text("--name", name, "NAME", "namespace of the header (default: frozen_plan)");
  options.flag("--strict", strict, "fail if the target cannot express all of the plan");
  options.text("--model", model, "MODEL", "with --to huggingface: the checkpoint's model, if its name is not enough");
  options.choice("--precision", precision, {"fp32", "bf16"},
                 "with --to huggingface: number format of the weights (default: fp32)");
  options.section("Output");
  options.text("--out", out, "PATH", "write here (default: standard output); with --to huggingface a folder");
  options.flag("--json", common.json, "print one JSON object with the text and what it leaves out");
  options.flag("--quiet", common.quiet, "do not tell what the text leaves out");
  options.examples(
      "Example:\n  galvatron export plan.json --to megatron --out plan_args.sh\n  galvatron export "
      "checkpoints --to huggingface --out my-gpt2");
  if (options.parse(arguments) == Options::Outcome::help_shown) return;
  require_output(common);
  const std::optional<ExportTarget> target = export_target_named(to);
  if (target && !name.empty())
    throw Failure(ErrorKind::usage, "--name is the namespace of a header; leave it out with --to " + to);
  if (to == "huggingface") {
    if (!name.empty() || strict)
      throw Failure(ErrorKind::usage, "--name and --strict are for plans; leave them out with --to huggingface");
    return export_weights(path, model, out, precision == "bf16" ? Precision::bf16 : Precision::fp32, common);
  }
  if (!model.empty() || !precision.empty())
    throw Failure(ErrorKind::usage, "--model and --precision are for --to huggingface; leave them out with --to " + to);

  require_apart({{"--out", out}}, {{"the command", path}});
  const Plan plan = value_or_throw(joined(value_or_throw(read_plan(path))));
  const Exported exported =
      target ? export_plan(plan, *target) : value_or_throw(export_header(plan, name.empty() ? "frozen_plan" : name));
  if (strict && !exported.not_expressed.empty())
    throw Failure(ErrorKind::usage, "--strict: " + to + " cannot express all of " + path + ": " +
                                        exported.not_expressed.front() +
                                        (exported.not_expressed.size() == 1
                                             ? ""
                                             : "; and " + std::to_string(exported.not_expressed.size() - 1) + " more") +
                                        "; export without --strict to see all of it");
  if (!out.empty())
    if (auto written = write_file_atomically(out, exported.text); !written) throw_error(written.error());
  if (common.json)
    print_json({{"target", to},
                {"text", exported.text},
                {"not_expressed", exported.not_expressed},
                {"set_elsewhere", exported.set_elsewhere}});
  else if (out.empty())
    print(exported.text);
  for (const std::string& sentence : exported.not_expressed) note(common, "not expressed: " + sentence);
  for (const std::string& sentence : exported.set_elsewhere) note(common, "to be set elsewhere: " + sentence);
}

}  // namespace galvatron::tools
