// galvatron: profiles clusters, searches plans, prices them and trains with them.
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>

#include "options.hpp"
#include "output.hpp"
#include "signals.hpp"

namespace galvatron::tools {

namespace {

struct Command {
  const char* name;
  const char* purpose;
  void (*run)(const Arguments&, Common&);
};
constexpr Command commands[] = {
    {"profile", "measure this machine and write it down as a cluster file", run_profile},
    {"plan", "search the fastest training plan for a model on a cluster", run_plan},
    {"cost", "price a plan: time and memory, stage by stage", run_cost},
    {"simulate", "replay a plan: when stages work and wait, a trace, an HTML report", run_simulate},
    {"train", "train a model on this machine as a plan says", run_train},
    {"generate", "go on with a text, with the weights of a checkpoint", run_generate},
    {"evaluate", "score a checkpoint on files: perplexity, choices, last words", run_evaluate},
    {"data", "make, convert, split and inspect files of tokens", run_data},
    {"explain", "tell in words why a plan is as it is", run_explain},
    {"export", "write a plan for another trainer, or as a C++ header", run_export},
    {"check", "tell whether another trainer's configuration fits, and what would be faster", run_check},
    {"calibrate", "tell from measured steps where the model of cost is off, term by term", run_calibrate},
    {"hetu", "price and search plans on the profiles of Hetu-Galvatron, under its cost model", run_hetu},
    {"flexsp", "plan sequence-parallel groups for batches of documents of any length", run_flexsp},
    {"hap", "synthesise programs with uneven shards for devices of different speed", run_hap},
    {"spindle", "plan steps of many tasks in waves", run_spindle},
    {"moe", "answer cases of mixtures of experts with the operations that train", run_moe},
    {"list", "show the models, clusters, strategies, schedules and trainers known by name", run_list},
};

std::string general_help() {
  const auto width = static_cast<std::size_t>(help_width());
  const auto paragraph = [&](const std::string& text, std::size_t indent) {
    return wrapped(text, width, indent) + "\n";
  };
  std::string out = "Usage: galvatron COMMAND [options]\n\n" +
                    paragraph(
                        "Turns a Transformer, a cluster and a memory budget into the fastest hybrid-parallel training "
                        "plan, and runs that plan.",
                        0) +
                    "\nCommands:\n";
  for (const Command& command : commands) {
    std::string name = text_of("  ", command.name);
    name.resize(12, ' ');
    out += paragraph(name + command.purpose, 12);
  }
  return out + "\n" +
         paragraph(
             "`galvatron COMMAND --help` shows the options of a command, `galvatron --version` or -V the version. "
             "Results go to standard output, as one JSON object with --json; progress and messages go to standard "
             "error.",
             0) +
         "\n" +
         paragraph(
             "Exit codes: 0 done, 1 internal error, 2 bad usage or input, 3 no plan fits, 4 a device, rank or peer "
             "failed, 128 + n ended by signal n.",
             12) +
         "\nA first run:\n  galvatron profile --ranks 4 --out cluster.json\n  galvatron plan --model gpt2-tiny "
         "--cluster cluster.json --global-batch 16 \\\n      --memory 16MiB --out plan.json\n  galvatron train --plan "
         "plan.json --model gpt2-tiny --data text.txt \\\n      --global-batch 16 --steps 100\n";
}

void run(const Arguments& arguments, Common& common) {
  const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Command& command : commands) out.emplace_back(command.name);
    return out;
  }();
  const std::string known = text_of("; the commands are ", joined(names), " (`galvatron --help` shows more)");
  if (arguments.empty()) refuse("no command", known);
  const std::string& first = arguments.front();
  if (first == "--version" || first == "-V") return print("galvatron " GALVATRON_VERSION "\n");
  const bool help = first == "--help" || first == "-h" || first == "help";
  if (help && arguments.size() == 1) return print(general_help());
  const std::string& name = first == "help" ? arguments[1] : first;
  const auto at = std::ranges::find(names, name);
  if (at == names.end()) {
    const bool option = name.starts_with("-");
    const auto near = option ? std::vector<std::string>() : nearest_names(name, names, 1);
    refuse(option ? "unknown option " : "unknown command ", "\"", detail::one_line(name, 40), "\"",
           near.empty() ? "" : ", did you mean " + near.front() + "?", known);
  }
  commands[at - names.begin()].run(
      first == "help" ? Arguments{"--help"} : Arguments(arguments.begin() + 1, arguments.end()), common);
}

}  // namespace

}  // namespace galvatron::tools

int main(int count, char** values) {
  using namespace galvatron::tools;
  Common common;
  try {
    prepare_streams();
    prepare_terminations();
    if (::isatty(STDERR_FILENO) != 0) end_on_signals("interrupted");  // below a progress bar
    run(Arguments(values + std::min(count, 1), values + count), common);
    return 0;
  } catch (...) {
    return report_failure(std::current_exception(), common);
  }
}
