// The commands of galvatron, what they are in words, and commands whose first argument is a verb.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "options.hpp"

namespace galvatron::tools {

extern const std::string_view version;  ///< "0.1.0"

/// A command, or a verb of one.
struct Command {
  const char* name;
  const char* purpose;  ///< a clause: "price a plan: time and memory, stage by stage"
  void (*run)(const Arguments&, Common&);
  bool trains = false;  ///< needs a build with the trainer
};

/// All, in the order of the help text.
std::span<const Command> commands();

struct ExitCode {
  const char* code;
  const char* meaning;
};
inline constexpr ExitCode exit_codes[] = {{"0", "done"},
                                          {"1", "internal error"},
                                          {"2", "bad usage or input"},
                                          {"3", "no plan fits"},
                                          {"4", "a device, rank or peer failed"},
                                          {"128 + n", "ended by signal n"}};

inline constexpr std::string_view what_galvatron_does =
    "Turns a Transformer, a cluster and a memory budget into the fastest hybrid-parallel training plan, and runs that "
    "plan.";
inline constexpr std::string_view where_output_goes =
    "Results go to standard output, as one JSON object with --json; progress and messages go to standard error.";
inline constexpr std::string_view first_run =
    "galvatron profile --ranks 4 --out cluster.json\n"
    "galvatron plan --model gpt2-tiny --cluster cluster.json --global-batch 16 \\\n    --memory 16MiB --out plan.json\n"
    "galvatron train --plan plan.json --model gpt2-tiny --data text.txt \\\n    --global-batch 16 --steps 100\n";

/// A command with its options, and those of its verbs.
struct DescribedCommand {
  const Command* command = nullptr;
  std::vector<Description> descriptions;  ///< one, or one of each verb
};
/// All that this build has, as their own code declares them. Runs none.
std::vector<DescribedCommand> described_commands();

/// A command whose first argument is a verb, which does the rest: `galvatron hetu plan|cost`. Throws Failure (usage)
/// without one. @param purpose  a sentence
void run_verb(const std::string& name, const std::string& purpose, std::initializer_list<Command> verbs,
              const Arguments& arguments, Common& common);

/// Does what the arguments say. Throws what goes wrong.
void run_command(const Arguments& arguments, Common& common);

/// Whether this build trains: then the command is linked with the trainer's library.
extern const bool has_trainer;

}  // namespace galvatron::tools
