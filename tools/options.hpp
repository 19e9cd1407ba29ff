// The commands and their options: read strictly, explained in a help text that fits the terminal.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/wrapped.hpp>

#include "output.hpp"

namespace galvatron::tools {

/// Columns for help texts: those of the terminal, at most 80.
int help_width();

/// Throws Failure (usage): the option `name` has a value that is not `expected`.
[[noreturn]] void refuse_value(const std::string& name, const std::string& value, const std::string& expected);

/// An option, or an argument without one, as help texts have it.
struct OptionDescription {
  std::string section;             ///< the headline that it stands under
  std::vector<std::string> names;  ///< `-h` and `--help`; `file` of an argument
  std::string value;               ///< `N`, `FILE...`, `bf16|fp32`; empty: it takes none
  std::vector<std::string> words;  ///< all that the value may be; empty: anything of its kind
  std::string help;
  bool is_argument = false;
};

/// What a command is.
struct Description {
  std::string name;     ///< `hetu plan`
  std::string clause;   ///< as lists of commands have it: "price a plan"
  std::string usage;    ///< `galvatron hetu plan [options]`
  std::string purpose;  ///< sentences
  std::vector<OptionDescription> options;
  std::string examples;  ///< lines; may be empty
};

/// The options of one command. A bad value throws Failure (usage) with the option's name, the value and what is valid.
class Options {
 public:
  /// @param name  of the command: `plan`  @param purpose  what it does, in a sentence
  Options(std::string name, std::string purpose);

  /// Headline of the options that follow.
  void section(std::string headline) { section_ = std::move(headline); }

  template <std::integral T>
  CLI::Option* integer(const std::string& name, T& value, std::int64_t least, std::int64_t most,
                       const std::string& help) {
    return add(name, "N", help, [&value, least, most, name](const std::string& text) {
      value = static_cast<T>(integer_in(name, text, least, most));
    });
  }
  /// A finite number in [least, most].
  CLI::Option* number(const std::string& name, double& value, double least, double most, const std::string& help);
  /// `16GiB`; at least one byte.
  CLI::Option* size(const std::string& name, Bytes& value, const std::string& help);
  /// A text that is not empty.
  CLI::Option* text(const std::string& name, std::string& value, const std::string& value_name,
                    const std::string& help);
  /// One of `choices`: texts, or values that have a name_of.
  template <class Value, class Choice>
  CLI::Option* choice(const std::string& name, Value& value, std::initializer_list<Choice> choices,
                      const std::string& help) {
    std::vector<std::pair<std::string, Value>> words;
    for (const Choice& choice : choices)
      if constexpr (std::is_convertible_v<Choice, std::string>)
        words.emplace_back(choice, choice);
      else
        words.emplace_back(name_of(choice), choice);
    return choice_of(name, value, std::move(words), help);
  }
  /// One of some words, which stand for values.
  template <class Value>
  CLI::Option* choice_of(const std::string& name, Value& value, std::vector<std::pair<std::string, Value>> words,
                         const std::string& help) {
    const std::string listed = joined(words, "|", [](const auto& word) { return word.first; });
    std::vector<std::string> names;
    for (const auto& word : words) names.push_back(word.first);
    CLI::Option* option =
        add(name, listed, help, [&value, words = std::move(words), listed, name](const std::string& text) {
          const auto at = std::ranges::find(words, text, [](const auto& word) { return word.first; });
          if (at == words.end()) refuse_value(name, text, "one of " + listed);
          value = at->second;
        });
    words_[option] = std::move(names);
    return option;
  }
  /// One or more texts.
  CLI::Option* texts(const std::string& name, std::vector<std::string>& value, const std::string& value_name,
                     const std::string& help);
  CLI::Option* flag(const std::string& name, bool& value, const std::string& help);

  /// Lines after the options of the help text.
  void examples(std::string text) { app_.footer(std::move(text)); }

  /// The option must be given. All that are missing are told at once.
  void require(CLI::Option* option);
  /// One of these must be given where `condition` holds after the arguments are read; always without one.
  void require_one(std::vector<CLI::Option*> options, std::function<bool()> condition = {}) {
    required_.push_back({std::move(options), std::move(condition)});
  }

  /// Reads the arguments after the command's name, or prints the help text or describes the command if that is asked
  /// for: false. Throws Failure (usage), also when a JSON result could not be printed because standard output is
  /// closed.
  bool parse(std::vector<std::string> arguments, const Common& common);

 private:
  static std::int64_t integer_in(const std::string& name, const std::string& text, std::int64_t least,
                                 std::int64_t most);
  CLI::Option* add(const std::string& name, const std::string& value_name, const std::string& help,
                   std::function<void(const std::string&)> read);

  [[nodiscard]] Description description() const;

  CLI::App app_;
  std::string name_;
  struct Requirement {
    std::vector<CLI::Option*> options;  // any of them
    std::function<bool()> when;         // always without one
  };
  std::vector<Requirement> required_;
  std::map<const CLI::Option*, std::vector<std::string>> words_;  // that values are chosen from
  std::string section_ = "Options";
};

using Arguments = std::vector<std::string>;

// The commands. Each declares its options, reads the arguments after its name, does its work and prints the result.
// It throws what goes wrong; `common` is filled as soon as the arguments are read.
void run_profile(const Arguments& arguments, Common& common);
void run_plan(const Arguments& arguments, Common& common);
void run_cost(const Arguments& arguments, Common& common);
void run_simulate(const Arguments& arguments, Common& common);
void run_train(const Arguments& arguments, Common& common);
void run_check(const Arguments& arguments, Common& common);
void run_calibrate(const Arguments& arguments, Common& common);
void run_generate(const Arguments& arguments, Common& common);
void run_evaluate(const Arguments& arguments, Common& common);
void run_data(const Arguments& arguments, Common& common);
void run_explain(const Arguments& arguments, Common& common);
void run_export(const Arguments& arguments, Common& common);
void run_hetu(const Arguments& arguments, Common& common);
void run_flexsp(const Arguments& arguments, Common& common);
void run_hap(const Arguments& arguments, Common& common);
void run_spindle(const Arguments& arguments, Common& common);
void run_moe(const Arguments& arguments, Common& common);
void run_list(const Arguments& arguments, Common& common);
void run_completion(const Arguments& arguments, Common& common);
void run_manual(const Arguments& arguments, Common& common);

}  // namespace galvatron::tools
