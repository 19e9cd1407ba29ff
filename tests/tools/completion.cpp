// What the command says of itself to shells and to man(1), against its help texts.
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "run.hpp"

namespace {

const std::vector<std::string>& commands_with_options() {
  static const std::vector<std::string> all{
      "profile",   "plan",        "cost",        "simulate",  "train",    "generate",    "evaluate", "data",
      "explain",   "export",      "check",       "hetu plan", "list",     "completion",  "manual",   "moe case",
      "hetu cost", "flexsp plan", "flexsp case", "hap plan",  "hap case", "spindle case"};
  return all;
}

// `--model` and the others of a help text.
std::vector<std::string> options_of(const std::string& help) {
  std::vector<std::string> out;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("  --")) out.push_back(line.substr(2, line.find_first_of(" ,", 2) - 2));
  return out;
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

bool there_is(const std::string& program) {
  return std::system(("command -v " + program + " > /dev/null").c_str()) == 0;
}

// What bash offers behind a line, whose last word is being written.
std::string completed_in_bash(const Folder& folder, const std::string& line) {
  const Ran ran = folder.shell(
      "$G completion bash > script && bash -c 'source ./script; eval \"COMP_WORDS=($1)\"; "
      "[[ $1 != *\" \" ]] || COMP_WORDS+=(\"\"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
      "_galvatron; printf \"%s\\n\" \"${COMPREPLY[@]}\"' _ '" +
      line + "'");
  CHECK(ran.code == 0);
  CHECK(ran.err.empty());
  return ran.out;
}

}  // namespace

TEST_CASE("bash completes commands, verbs, options, words and names of presets") {
  const Folder folder;
  for (const auto& [line, words] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"galvatron ", {"plan", "train", "hetu", "list", "completion", "help"}},
           {"galvatron pl", {"plan"}},
           {"galvatron --v", {"--version"}},
           {"galvatron help pl", {"plan"}},
           {"galvatron hetu ", {"plan", "cost"}},
           {"galvatron hetu plan --coa", {"--coarse"}},
           {"galvatron plan --mem", {"--memory"}},
           {"galvatron plan --precision ", {"bf16", "fp32", "fp8"}},
           {"galvatron plan --seq 128 --precision f", {"fp32", "fp8"}},
           {"galvatron plan --model gpt2-ti", {"gpt2-tiny"}},
           {"galvatron plan --model clip-ti", {"clip-tiny"}},
           {"galvatron plan --cluster 8xa100-8", {"8xa100-80g"}},
           {"galvatron list cl", {"clusters"}},
           {"galvatron plan --seq ", {""}}}) {
    CAPTURE(line);
    const std::string offered = completed_in_bash(folder, line);
    CAPTURE(offered);
    for (const std::string& word : words) CHECK(has_line(offered, word));
  }
  CHECK(completed_in_bash(folder, "galvatron pl") == "plan\n");
  CHECK(completed_in_bash(folder, "galvatron nonsense ") == "\n");
}

TEST_CASE("shells, the man page and Markdown have every option of every help text") {
  const Folder folder;
  const std::string bash = folder.run("completion bash").out;
  const std::string zsh = folder.run("completion zsh").out;
  const std::string fish = folder.run("completion fish").out;
  const std::string man = folder.run("manual man").out;
  const std::string markdown = folder.run("manual markdown").out;
  for (const std::string& command : commands_with_options()) {
    CAPTURE(command);
    const Ran help = folder.run(command + " --help");
    REQUIRE(help.code == 0);
    const std::size_t section = markdown.find("## galvatron " + command + "\n");
    REQUIRE(section != std::string::npos);
    const std::string here = markdown.substr(section, markdown.find("\n## ", section) - section);
    const std::size_t line = bash.find("'" + command + "') options='");
    REQUIRE(line != std::string::npos);
    const std::string in_bash = bash.substr(line, bash.find('\n', line) - line);
    for (const std::string& option : options_of(help.out)) {
      CAPTURE(option);
      CHECK((here.find("<code>" + option + " ") != std::string::npos ||
             here.find("<code>" + option + "<") != std::string::npos));
      CHECK(in_bash.find(option) != std::string::npos);
      CHECK(zsh.find("'" + option + "[") != std::string::npos);
      CHECK(fish.find("'__galvatron_is " + command + "' -l " + option.substr(2) + " ") != std::string::npos);
      std::string escaped;
      for (const char c : option) escaped += c == '-' ? std::string("\\-") : std::string(1, c);
      CHECK(man.find("\n.B " + escaped) != std::string::npos);
    }
  }
  check_failure(folder.run("completion tcsh"), 2, "one of bash|zsh|fish");
  check_failure(folder.run("completion"), 2, "shell is missing");
  check_failure(folder.run("manual html"), 2, "one of man|markdown");
}

TEST_CASE("fish and zsh read their completions, man reads the page") {
  const Folder folder;
  if (there_is("fish")) {
    const auto offered = [&](const std::string& line) {
      const Ran ran = folder.shell(
          "export HOME=$PWD; $G completion fish > galvatron.fish && fish -N -c 'source "
          "galvatron.fish; complete -C \"" +
          line + "\"'");
      CHECK(ran.err.empty());
      return ran.out;
    };
    CHECK(offered("galvatron pl").starts_with("plan\t"));
    CHECK(offered("galvatron hetu ").find("cost\tprice a plan") != std::string::npos);
    CHECK(offered("galvatron plan --mem").starts_with("--memory\t"));
    CHECK(offered("galvatron plan --precision ").find("bf16") != std::string::npos);
    CHECK(offered("galvatron hetu plan --coa").starts_with("--coarse\t"));
    CHECK(offered("galvatron plan --coa").empty());
  } else {
    MESSAGE("skipped: fish is not installed");
  }
  if (there_is("zsh")) {
    const Ran ran = folder.shell(
        "$G completion zsh > _galvatron && zsh -n _galvatron && zsh -f -c 'autoload -U compinit; compinit -u -D; "
        "source ./_galvatron; print $_comps[galvatron]; fpath=($PWD $fpath); compinit -u -D; print "
        "$_comps[galvatron]'");
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(ran.out == "_galvatron\n_galvatron\n");
  } else {
    MESSAGE("skipped: zsh is not installed");
  }
  if (there_is("man") && there_is("groff")) {
    const Ran ran =
        folder.shell("$G manual man > page.1 && LC_ALL=C.UTF-8 MANROFFSEQ= man --warnings -E UTF-8 -l page.1 | cat");
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(ran.out.find("GALVATRON HETU PLAN") != std::string::npos);
  } else {
    MESSAGE("skipped: man is not installed");
  }
}
