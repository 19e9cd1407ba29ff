#include "commands.hpp"

#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include <galvatron/core/error.hpp>
#include <galvatron/core/names.hpp>

namespace galvatron::tools {

namespace {

constexpr Command all_commands[] = {
    {"profile", "measure this machine and write it down as a cluster file", run_profile, true},
    {"plan", "search the fastest training plan for a model on a cluster", run_plan},
    {"cost", "price a plan: time and memory, stage by stage", run_cost},
    {"simulate", "replay a plan: when stages work and wait, a trace, an HTML report", run_simulate},
    {"train", "train a model on this machine as a plan says", run_train, true},
    {"generate", "go on with a text, with the weights of a checkpoint", run_generate, true},
    {"evaluate", "score a checkpoint on files: perplexity, choices, last words", run_evaluate, true},
    {"data", "make, convert, split and inspect files of tokens", run_data},
    {"explain", "tell in words why a plan is as it is", run_explain},
    {"export", "write a plan for another trainer, or as a C++ header", run_export},
    {"check", "tell whether another trainer's configuration fits, and what would be faster", run_check},
    {"calibrate", "tell from measured steps where the model of cost is off, term by term", run_calibrate},
    {"hetu", "price and search plans on the profiles of Hetu-Galvatron, under its cost model", run_hetu},
    {"flexsp", "plan sequence-parallel groups for batches of documents of any length", run_flexsp},
    {"hap", "synthesise programs with uneven shards for devices of different speed", run_hap},
    {"spindle", "plan steps of many tasks in waves", run_spindle},
    {"moe", "answer cases of mixtures of experts with the operations that train", run_moe, true},
    {"list", "show the models, clusters, strategies, schedules and trainers known by name", run_list},
    {"completion", "print what makes a shell complete these commands", run_completion},
    {"manual", "print the manual of all commands, as a man page or Markdown", run_manual},
};

std::string paragraph(std::string_view text, std::size_t indent) {
  return wrapped(text, static_cast<std::size_t>(help_width()), indent) + "\n";
}

std::string table_of(std::span<const Command> some) {
  std::string out;
  for (const Command& command : some) {
    std::string name = text_of("  ", command.name);
    name.resize(std::max<std::size_t>(name.size() + 1, 12), ' ');
    out += paragraph(name + command.purpose + (command.trains && !has_trainer ? " (not in this build)" : ""), 12);
  }
  return out;
}

std::string general_help() {
  std::string codes = "Exit codes: ";
  for (const ExitCode& one : exit_codes) codes += text_of(&one == exit_codes ? "" : ", ", one.code, " ", one.meaning);
  std::string example(first_run);
  for (std::size_t at = 0; at < example.size(); at = example.find('\n', at) + 1) example.insert(at, "  ");
  return "Usage: galvatron COMMAND [options]\n\n" + paragraph(what_galvatron_does, 0) + "\nCommands:\n" +
         table_of(commands()) + "\n" +
         paragraph(text_of("`galvatron COMMAND --help` shows the options of a command, `galvatron --version` or -V the "
                           "version. ",
                           where_output_goes),
                   0) +
         "\n" + paragraph(codes + ".", 12) + "\nA first run:\n" + example;
}

std::vector<std::string> names_of_commands() {
  std::vector<std::string> out;
  for (const Command& command : all_commands) out.emplace_back(command.name);
  return out;
}

// Adds the command to common.descriptions, or its verbs.
void describe(const Command& command, Common& common) {
  const std::size_t before = common.descriptions->size();
  command.run({}, common);
  for (std::size_t i = before; i < common.descriptions->size(); ++i)
    if (std::string& clause = (*common.descriptions)[i].clause; clause.empty()) clause = command.purpose;
}

Arguments after_first(const Arguments& arguments) {
  return {arguments.begin() + (arguments.empty() ? 0 : 1), arguments.end()};
}

}  // namespace

const std::string_view version = GALVATRON_VERSION;

std::span<const Command> commands() { return all_commands; }

std::vector<DescribedCommand> described_commands() {
  std::vector<DescribedCommand> out;
  for (const Command& command : all_commands) {
    if (command.trains && !has_trainer) continue;
    out.push_back({&command, {}});
    Common describing;
    describing.descriptions = &out.back().descriptions;
    describe(command, describing);
  }
  return out;
}

void run_verb(const std::string& name, const std::string& purpose, std::initializer_list<Command> verbs,
              const Arguments& arguments, Common& common) {
  if (common.descriptions != nullptr) {
    for (const Command& verb : verbs) describe(verb, common);
    return;
  }
  const std::string word = arguments.empty() ? "" : arguments.front();
  for (const Command& verb : verbs)
    if (word == verb.name) return verb.run(after_first(arguments), common);
  const auto whole = [&name](const Command& verb) { return text_of("`galvatron ", name, " ", verb.name, "`"); };
  if (word == "--help" || word == "-h") {
    const auto help = [&name](const Command& verb) { return text_of("`galvatron ", name, " ", verb.name, " --help`"); };
    const std::string words = joined(verbs, "|", [](const Command& verb) { return verb.name; });
    return print(text_of("Usage: galvatron ", name, " ", words, " [options]\n\n", paragraph(purpose, 0), "\n",
                         table_of({verbs.begin(), verbs.size()}), "\n",
                         paragraph(text_of(joined(verbs, ", ", help, " and "),
                                           verbs.size() == 1 ? " shows the options." : " show the options."),
                                   0)));
  }
  refuse(name, ": ", word.empty() ? "nothing to do" : text_of("\"", detail::one_line(word, 40), "\" is unknown"),
         "; say ", joined(verbs, " or ", whole), " (--help shows the options)");
}

void run_command(const Arguments& arguments, Common& common) {
  const std::vector<std::string> names = names_of_commands();
  const std::string known = text_of("; the commands are ", joined(names), " (`galvatron --help` shows more)");
  if (arguments.empty()) refuse("no command", known);
  const std::string& first = arguments.front();
  if (first == "--version" || first == "-V") return print(text_of("galvatron ", version, "\n"));
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
  all_commands[at - names.begin()].run(first == "help" ? Arguments{"--help"} : after_first(arguments), common);
}

}  // namespace galvatron::tools
