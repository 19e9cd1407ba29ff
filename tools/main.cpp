// galvatron: profiles clusters, searches plans, prices them and trains with them.
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>

#include "commands.hpp"
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
    {"explain", "tell in words why a plan is as it is", run_explain},
    {"export", "write a plan for another trainer, or as a C++ header", run_export},
    {"hetu", "price and search plans on the profiles of Hetu-Galvatron, under its cost model", run_hetu},
    {"list", "show the models, clusters, strategies and schedules known by name", run_list},
};

std::string general_help() {
  const auto width = static_cast<std::size_t>(help_width());
  std::string out = "Usage: galvatron COMMAND [options]\n\n" +
                    wrapped(
                        "Turns a Transformer, a cluster and a memory budget into the fastest hybrid-parallel training "
                        "plan, and runs that plan.",
                        width, 0) +
                    "\n\nCommands:\n";
  for (const Command& command : commands) {
    std::string name = std::string("  ") + command.name;
    name.resize(12, ' ');
    out += wrapped(name + command.purpose, width, 12) + "\n";
  }
  out +=
      "\n" +
      wrapped(
          "`galvatron COMMAND --help` shows the options of a command, `galvatron --version` or -V the version. Results "
          "go to standard output, as one JSON object with --json; progress and messages go to standard error.",
          width, 0) +
      "\n\n" +
      wrapped(
          "Exit codes: 0 done, 1 internal error, 2 bad usage or input, 3 no plan fits, 4 a device, rank or peer "
          "failed, 128 + n ended by signal n.",
          width, 12) +
      "\n\nA first run:\n  galvatron profile --ranks 4 --out cluster.json\n  galvatron plan --model gpt2-tiny "
      "--cluster cluster.json --global-batch 16 \\\n      --memory 16MiB --out plan.json\n  galvatron train --plan "
      "plan.json --model gpt2-tiny --data text.txt \\\n      --global-batch 16 --steps 100\n";
  return out;
}

std::string command_names() {
  std::string out;
  for (const Command& command : commands) out += (out.empty() ? "" : ", ") + std::string(command.name);
  return out;
}

void run(const Arguments& arguments, Common& common) {
  if (arguments.empty()) refuse("no command; the commands are " + command_names() + " (`galvatron --help` shows more)");
  const std::string& first = arguments.front();
  if (first == "--version" || first == "-V") {
    print("galvatron " GALVATRON_VERSION "\n");
    return;
  }
  const bool help = first == "--help" || first == "-h" || first == "help";
  if (help && arguments.size() == 1) {
    print(general_help());
    return;
  }
  const std::string& name = first == "help" ? arguments[1] : first;
  const auto* command =
      std::find_if(std::begin(commands), std::end(commands), [&](const Command& c) { return name == c.name; });
  if (command == std::end(commands)) {
    const std::string what = name.starts_with("-") ? "unknown option " : "unknown command ";
    std::vector<std::string> names;
    for (const Command& known : commands) names.emplace_back(known.name);
    const auto near = name.starts_with("-") ? std::vector<std::string>() : nearest_names(name, names, 1);
    refuse(what + "\"" + detail::one_line(name, 40) + "\"" +
           (near.empty() ? "" : ", did you mean " + near.front() + "?") + "; the commands are " + command_names() +
           " (`galvatron --help` shows more)");
  }
  if (first == "help") {
    command->run({"--help"}, common);
    return;
  }
  command->run(Arguments(arguments.begin() + 1, arguments.end()), common);
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
