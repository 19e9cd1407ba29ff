// Options of a command: read strictly, explained in a help text that fits the terminal.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/core/wrapped.hpp>

#include "output.hpp"

namespace galvatron::tools {

/// Columns for help texts: those of the terminal, at most 80.
int help_width();

/// The options of one command. Every value is checked where it is read; a bad one throws Failure (usage) with the
/// option's name, the value and what is valid.
class Options {
 public:
  /// @param name     of the command: `plan`
  /// @param purpose  what it does, in a sentence
  Options(std::string name, std::string purpose);

  /// Headline of the options that follow.
  void section(std::string headline) { section_ = std::move(headline); }

  template <std::integral T>
  CLI::Option* integer(const std::string& names, T& value, std::int64_t least, std::int64_t most,
                       const std::string& help) {
    return integer(names, [&value](std::int64_t n) { value = static_cast<T>(n); }, least, most, help);
  }
  /// A finite number in [least, most].
  CLI::Option* number(const std::string& names, double& value, double least, double most, const std::string& help);
  /// `16GiB`; at least one byte.
  CLI::Option* size(const std::string& names, Bytes& value, const std::string& help);
  /// A text that is not empty.
  CLI::Option* text(const std::string& names, std::string& value, const std::string& value_name,
                    const std::string& help);
  /// One of `choices`.
  CLI::Option* choice(const std::string& names, std::string& value, std::vector<std::string> choices,
                      const std::string& help);
  /// One or more texts.
  CLI::Option* texts(const std::string& names, std::vector<std::string>& value, const std::string& value_name,
                     const std::string& help);
  CLI::Option* flag(const std::string& names, bool& value, const std::string& help);

  /// Lines after the options of the help text.
  void examples(std::string text) { app_.footer(std::move(text)); }

  /// The option must be given. All that are missing are told at once.
  void require(CLI::Option* option);
  /// One of these must be given.
  void require_one(std::vector<CLI::Option*> options);
  /// The option must be given where `condition` holds after the arguments are read.
  void require_when(std::function<bool()> condition, CLI::Option* option);

  /// Reads the arguments after the command's name, or prints the help text if it is asked for: false. Throws Failure
  /// (usage), also when a JSON result could not be printed because standard output is closed.
  bool parse(std::vector<std::string> arguments, const Common& common);

 private:
  CLI::Option* integer(const std::string& names, std::function<void(std::int64_t)> take, std::int64_t least,
                       std::int64_t most, const std::string& help);
  CLI::Option* add(const std::string& names, const std::string& value_name, const std::string& help,
                   std::function<void(const std::string&)> read);

  CLI::App app_;
  std::string name_;
  struct Requirement {
    std::vector<CLI::Option*> options;  // any of them
    std::function<bool()> when;         // always without one
  };
  std::vector<Requirement> required_;
  std::string section_ = "Options";
};

}  // namespace galvatron::tools
