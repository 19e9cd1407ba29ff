// galvatron export: a plan in the words of another trainer, or as a C++ header.
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>
#include <galvatron/plan/emit.hpp>
#include <galvatron/plan/export/export.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/split.hpp>

#include "commands.hpp"
#include "options.hpp"

namespace galvatron::tools {

namespace {

std::vector<std::string> target_names() {
  std::vector<std::string> out;
  for (const ExportTarget target : export_targets) out.emplace_back(galvatron::name_of(target));
  out.emplace_back("header");
  return out;
}

}  // namespace

void run_export(const Arguments& arguments, Common& common) {
  Options options("export",
                  "Writes a plan for another trainer: arguments of Megatron-LM, a torchtitan job file, a DeepSpeed "
                  "configuration, a plan of Hetu-Galvatron; or as a C++ header with the strategies as types. What the "
                  "target cannot express is told on standard error.");
  std::string path;
  std::string to;
  std::string out;
  std::string name;
  bool strict = false;
  options.require(options.text("plan", path, "FILE", "the plan, as `galvatron plan --out` writes it"));
  options.require(options.choice("--to", to, target_names(), "what to write"));
  options.text("--name", name, "NAME", "namespace of the header (default: frozen_plan)");
  options.flag("--strict", strict, "fail if the target cannot express all of the plan");
  options.section("Output");
  options.text("--out", out, "FILE", "write here (default: standard output)");
  options.flag("--json", common.json, "print one JSON object with the text and what it leaves out");
  options.flag("--quiet", common.quiet, "do not tell what the text leaves out");
  options.examples("Example:\n  galvatron export plan.json --to megatron --out plan_args.sh");
  if (options.parse(arguments) == Options::Outcome::help_shown) return;
  require_output(common);
  const std::optional<ExportTarget> target = export_target_named(to);
  if (target && !name.empty())
    throw Failure(ErrorKind::usage, "--name is the namespace of a header; leave it out with --to " + to);

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
