// galvatron completion: what makes shells complete the commands, made of the options that these declare.
#include <algorithm>
#include <compare>
#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/cost/trainer_json.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/model/zoo.hpp>

#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

namespace {

// What may stand in a place of the command line.
struct Suggestions {
  std::vector<std::string> words;
  bool files = false;

  auto operator<=>(const Suggestions&) const = default;
};

std::vector<std::string> presets_of_models() {
  std::vector<std::string> out = model_names();
  for (const std::string_view name : multi_task_model_names) out.emplace_back(name);
  return out;
}

std::vector<std::string> presets_of_clusters() {
  std::vector<std::string> out = cluster_names();
  for (std::string& name : out)
    if (name.starts_with("Nx")) name.replace(0, 1, "8");
  return out;
}

Suggestions suggestions_of(const OptionDescription& option) {
  if (!option.words.empty()) return {option.words, false};
  std::string kind = option.value.substr(0, option.value.find("..."));
  if (kind == "MODEL") return {presets_of_models(), true};
  if (kind == "CLUSTER") return {presets_of_clusters(), true};
  if (kind == "NAME|FILE") return {cost::trainer_names(), true};
  for (const std::string_view files : {"FILE", "DIR", "PATH", "CONFIG"})
    if (kind == files) return {{}, true};
  return {};
}

// The beginning of an explanation, for a menu.
std::string brief(const std::string& help) {
  std::size_t end = help.size();
  for (const std::string_view mark : {"; ", " (", ". "}) end = std::min(end, help.find(mark));
  return help.substr(0, end);
}

// In single quotes, as bash and zsh read it.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// In single quotes, as fish reads it.
std::string fish_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
  return out + "'";
}

bool has_verbs(const DescribedCommand& one) {
  return one.descriptions.size() > 1 || one.descriptions.front().name != one.command->name;
}

// `plan` of `hetu plan`.
std::string verb_of(const Description& command) { return command.name.substr(command.name.find(' ') + 1); }

// What stands behind no option: the words of the first argument that has some, and files.
Suggestions arguments_of(const Description& command) {
  Suggestions out;
  for (const OptionDescription& option : command.options) {
    const Suggestions here = suggestions_of(option);
    if (option.is_argument && out.words.empty()) out.words = here.words;
    out.files = out.files || here.files;
  }
  return out;
}

std::string bash_script(const std::vector<DescribedCommand>& all) {
  const std::string names = joined(all, " ", [](const DescribedCommand& one) { return one.command->name; });
  std::string verb_cases;
  std::string with_verbs;
  std::string option_cases;
  std::map<Suggestions, std::vector<std::string>> places;
  for (const DescribedCommand& one : all) {
    if (has_verbs(one)) {
      verb_cases += text_of("    2:", one.command->name,
                            ") words=", shell_quoted(joined(one.descriptions, " ", verb_of)), " ;;\n");
      with_verbs += text_of(with_verbs.empty() ? "" : " | ", one.command->name);
    }
    for (const Description& command : one.descriptions) {
      std::string options;
      for (const OptionDescription& option : command.options) {
        if (option.is_argument) continue;
        for (const std::string& name : option.names) {
          options += (options.empty() ? "" : " ") + name;
          if (!option.value.empty()) places[suggestions_of(option)].push_back(shell_quoted(command.name + " " + name));
        }
      }
      const Suggestions arguments = arguments_of(command);
      option_cases += text_of("        ", shell_quoted(command.name), ") options=", shell_quoted(options));
      if (!arguments.words.empty()) option_cases += " words=" + shell_quoted(joined(arguments.words, " "));
      option_cases += std::string(arguments.files ? " files=yes" : "") + " ;;\n";
    }
  }
  std::string value_cases;
  for (const auto& [suggestions, where] : places)
    value_cases +=
        text_of("        ", joined(where, " | "), ") options= words=", shell_quoted(joined(suggestions.words, " ")),
                " files=", suggestions.files ? "yes" : "", " ;;\n");
  return "# bash completion of galvatron, made by `galvatron completion bash`.\n"
         "_galvatron() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}\n"
         "  local options= words= files=\n"
         "  case $COMP_CWORD:$command in\n"
         "    1:*) words=" +
         shell_quoted(names + " help") + " options='--help --version' ;;\n" +
         "    2:help) words=" + shell_quoted(names) + " ;;\n" + verb_cases +
         "    *)\n"
         "      case $command in " +
         with_verbs +
         ") command+=\" ${COMP_WORDS[2]}\" ;; esac\n"
         "      case $command in\n" +
         option_cases +
         "      esac\n"
         "      case \"$command $before\" in\n" +
         value_cases +
         "      esac\n"
         "      ;;\n"
         "  esac\n"
         "  [[ $word != -* ]] || words=$options files=\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
         "  [ -z \"$files\" ] || compopt -o default 2>/dev/null\n"
         "}\n"
         "complete -F _galvatron galvatron\n";
}

// What zsh's _arguments does for a place. A function behind a space is called as it is written.
std::string zsh_action(const Suggestions& suggestions) {
  if (suggestions.words.empty()) return suggestions.files ? "_files" : " ";
  const std::string words = joined(suggestions.words, " ");
  return suggestions.files ? " _galvatron_names_and_files " + words : "(" + words + ")";
}

std::string zsh_script(const std::vector<DescribedCommand>& all) {
  const auto escaped = [](const std::string& text, std::string_view marks) {
    std::string out;
    for (const char c : text) out += marks.find(c) != std::string_view::npos ? std::string{'\\', c} : std::string(1, c);
    return out;
  };
  const auto described = [&escaped](const std::string& name, const std::string& purpose) {
    return "    " + shell_quoted(name + ":" + escaped(purpose, ":\\")) + "\n";
  };
  std::string commands;
  std::string verb_cases;
  std::string cases;
  for (const DescribedCommand& one : all) {
    commands += described(one.command->name, one.command->purpose);
    if (has_verbs(one)) {
      verb_cases += text_of("    ", one.command->name, ")\n      verbs=(\n");
      for (const Description& verb : one.descriptions) verb_cases += "    " + described(verb_of(verb), verb.clause);
      verb_cases += "      )\n      ;;\n";
    }
    for (const Description& command : one.descriptions) {
      cases += "    " + shell_quoted(command.name) + ")\n      _arguments \\\n";
      for (const OptionDescription& option : command.options) {
        if (option.is_argument) continue;
        std::string others;
        for (const std::string& name : option.names) others += (others.empty() ? "" : " ") + name;
        for (const std::string& name : option.names) {
          std::string spec = (option.names.size() > 1 ? "(" + others + ")" : "") + name + "[" +
                             escaped(brief(option.help), "[]:\\") + "]";
          if (!option.value.empty())
            spec += ":" + escaped(option.value, ":\\") + ":" + zsh_action(suggestions_of(option));
          cases += "        " + shell_quoted(spec) + " \\\n";
        }
      }
      const Suggestions arguments = arguments_of(command);
      cases += "        " + shell_quoted("*:argument:" + zsh_action(arguments)) + "\n      ;;\n";
    }
  }
  return "#compdef galvatron\n"
         "# zsh completion of galvatron, made by `galvatron completion zsh`.\n"
         "_galvatron_names_and_files() {\n"
         "  _alternative \"names:name:($*)\" 'files:file:_files'\n"
         "}\n"
         "_galvatron() {\n"
         "  local command\n"
         "  local -a commands verbs\n"
         "  commands=(\n" +
         commands +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe -t commands command commands\n"
         "    return\n"
         "  fi\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  command=$words[1]\n"
         "  case $command in\n" +
         verb_cases +
         "  esac\n"
         "  if (( $#verbs )); then\n"
         "    if (( CURRENT == 2 )); then\n"
         "      _describe -t verbs verb verbs\n"
         "      return\n"
         "    fi\n"
         "    shift words\n"
         "    (( CURRENT-- ))\n"
         "    command+=\" $words[1]\"\n"
         "  fi\n"
         "  case $command in\n" +
         cases +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] = _galvatron ]]; then\n"
         "  _galvatron \"$@\"\n"
         "else\n"
         "  compdef _galvatron galvatron\n"
         "fi\n";
}

std::string fish_script(const std::vector<DescribedCommand>& all) {
  std::string out =
      "# fish completion of galvatron, made by `galvatron completion fish`.\n"
      "function __galvatron_is --description 'whether the command line begins with these words'\n"
      "    set -l before (commandline -opc)\n"
      "    set -e before[1]\n"
      "    set -l words (count $argv)\n"
      "    test (count $before) -ge $words; or return 1\n"
      "    test $words -eq 0; or test \"$before[1..$words]\" = \"$argv\"\n"
      "end\n"
      "function __galvatron_ends --description 'whether these words are all that is before the cursor'\n"
      "    test (count (commandline -opc)) -eq (math (count $argv) + 1); and __galvatron_is $argv\n"
      "end\n"
      "complete -c galvatron -f\n";
  const auto word = [&out](const std::string& place, const std::string& name, const std::string& purpose) {
    out += "complete -c galvatron -n " + fish_quoted("__galvatron_ends" + (place.empty() ? "" : " " + place)) + " -a " +
           name + " -d " + fish_quoted(purpose) + "\n";
  };
  const auto values = [](const Suggestions& suggestions) {
    return (suggestions.words.empty() ? std::string() : " -a " + fish_quoted(joined(suggestions.words, " "))) +
           (suggestions.files ? " -F" : "");
  };
  for (const DescribedCommand& one : all) {
    word("", one.command->name, one.command->purpose);
    if (has_verbs(one))
      for (const Description& verb : one.descriptions) word(one.command->name, verb_of(verb), verb.clause);
  }
  for (const DescribedCommand& one : all)
    for (const Description& command : one.descriptions) {
      const std::string here = "complete -c galvatron -n " + fish_quoted("__galvatron_is " + command.name);
      if (const Suggestions arguments = arguments_of(command); arguments != Suggestions{})
        out += here + values(arguments) + "\n";
      for (const OptionDescription& option : command.options) {
        if (option.is_argument) continue;
        out += here;
        for (const std::string& name : option.names)
          out += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
        if (!option.value.empty()) {
          const Suggestions suggestions = suggestions_of(option);
          out += suggestions.files ? " -r" : " -x";
          out += values(suggestions);
        }
        out += " -d " + fish_quoted(brief(option.help)) + "\n";
      }
    }
  return out;
}

}  // namespace

void run_completion(const Arguments& arguments, Common& common) {
  Options options(
      "completion",
      "Prints a script that makes a shell complete commands, options, and names of models and clusters. The "
      "packages install it; otherwise let the shell read it when it starts.");
  using Script = std::string (*)(const std::vector<DescribedCommand>&);
  Script script = nullptr;
  options.require(options.choice_of(
      "shell", script,
      std::vector<std::pair<std::string, Script>>{{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}},
      "the shell"));
  options.examples(
      "Examples:\n  source <(galvatron completion bash)      # in ~/.bashrc; of zsh in ~/.zshrc\n  galvatron "
      "completion "
      "fish | source         # in ~/.config/fish/config.fish");
  if (!options.parse(arguments, common)) return;
  print(script(described_commands()));
}

}  // namespace galvatron::tools
