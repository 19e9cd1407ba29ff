// galvatron manual: all commands with their options, as a man page or as Markdown.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/core/text.hpp>

#include "commands.hpp"
#include "options.hpp"
#include "output.hpp"

namespace galvatron::tools {

namespace {

// `--model MODEL`, `-h, --help`
std::string names_and_value(const OptionDescription& option) {
  return joined(option.names, ", ") + (option.value.empty() ? "" : " " + option.value);
}

// The lines below `Examples:`, without what they are all indented by.
std::string example_lines(const Description& command) {
  std::string out;
  const std::string& text = command.examples;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.starts_with("  ")) out += text_of(line.substr(2), "\n");
    at = end + 1;
  }
  return out;
}

// ---- troff

// Text in a man page: what it takes for a command is escaped, what stands between backquotes is bold.
std::string troff(std::string_view text) {
  std::string out;
  bool bold = false;
  for (const char c : text) {
    if (c == '`')
      out += (bold = !bold) ? "\\fB" : "\\fR";
    else if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string troff_lines(std::string_view text) {
  std::string out = ".nf\n";
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    out += troff(text.substr(at, end - at)) + "\n";
    at = end + 1;
  }
  return out + ".fi\n";
}

std::string man_page(const std::vector<DescribedCommand>& all) {
  std::string out = text_of(".\\\" Made by `galvatron manual man`.\n.TH GALVATRON 1 \"\" \"galvatron ", version,
                            "\" \"User commands\"\n.SH NAME\ngalvatron \\- search and run hybrid\\-parallel training "
                            "plans\n.SH SYNOPSIS\n.B galvatron\n.I COMMAND\n[options]\n.SH DESCRIPTION\n",
                            troff(what_galvatron_does), "\n.PP\n", troff(where_output_goes), "\n.SH COMMANDS\n");
  for (const DescribedCommand& one : all)
    out += text_of(".TP\n.B ", one.command->name, "\n", troff(one.command->purpose), "\n");
  for (const DescribedCommand& one : all)
    for (const Description& command : one.descriptions) {
      std::string title = "galvatron " + command.name;
      for (char& c : title) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
      out += text_of(".SH ", title, "\n.B ", troff(command.usage), "\n.PP\n", troff(command.purpose), "\n");
      std::string section;
      for (const OptionDescription& option : command.options) {
        if (option.section != section) out += ".SS " + troff(section = option.section) + "\n";
        out += ".TP\n.B " + troff(joined(option.names, ", "));
        if (!option.value.empty()) out += " \\fI" + troff(option.value) + "\\fR";
        out += "\n" + troff(option.help) + "\n";
      }
      if (const std::string examples = example_lines(command); !examples.empty())
        out += ".SS Examples\n" + troff_lines(examples);
    }
  out += ".SH EXIT STATUS\n";
  for (const ExitCode& one : exit_codes) out += text_of(".TP\n.B ", one.code, "\n", one.meaning, "\n");
  return out + ".SH EXAMPLES\nA first run:\n.PP\n" + troff_lines(first_run);
}

// ---- Markdown

// Text in a cell of a table. Between backquotes Markdown reads nothing; elsewhere `<` and `*` are told to be letters.
std::string cell(std::string_view text) {
  std::string out;
  bool code = false;
  for (const char c : text) {
    if (c == '`') code = !code;
    if (c == '|' || (!code && (c == '*' || c == '_' || c == '<' || c == '['))) out += '\\';
    out += c;
  }
  return out;
}

std::string code_cell(std::string_view text) {
  std::string out = "<code>";
  for (const char c : text) out += c == '|' ? "&#124;" : c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out + "</code>";
}

std::string markdown(const std::vector<DescribedCommand>& all) {
  std::string out = text_of("# The command\n\n", what_galvatron_does, " ", where_output_goes,
                            "\n\n```\ngalvatron COMMAND [options]\n```\n\n| Command | |\n|---|---|\n");
  for (const DescribedCommand& one : all) {
    std::string anchor = "galvatron-" + one.descriptions.front().name;
    for (char& c : anchor) c = c == ' ' ? '-' : c;
    out += text_of("| [", one.command->name, "](#", anchor, ") | ", cell(one.command->purpose), " |\n");
  }
  out += "\n| Exit code | |\n|---|---|\n";
  for (const ExitCode& one : exit_codes) out += text_of("| ", one.code, " | ", one.meaning, " |\n");
  for (const DescribedCommand& one : all)
    for (const Description& command : one.descriptions) {
      out += text_of("\n## galvatron ", command.name, "\n\n", command.purpose, "\n\n```\n", command.usage, "\n```\n");
      std::string section;
      for (const OptionDescription& option : command.options) {
        if (option.section != section) {
          section = option.section;
          out += text_of("\n| ", section, " | |\n|---|---|\n");
        }
        out += text_of("| ", code_cell(names_and_value(option)), " | ", cell(option.help), " |\n");
      }
      if (const std::string examples = example_lines(command); !examples.empty())
        out += "\n```sh\n" + examples + "```\n";
    }
  return out;
}

}  // namespace

void run_manual(const Arguments& arguments, Common& common) {
  Options options("manual", "Prints all commands with their options.");
  using Format = std::string (*)(const std::vector<DescribedCommand>&);
  Format format = nullptr;
  options.require(options.choice_of(
      "format", format, std::vector<std::pair<std::string, Format>>{{"man", man_page}, {"markdown", markdown}},
      "man: a page for man(1); markdown: a page of this project's documentation"));
  options.examples("Example:\n  galvatron manual man | man -l -");
  if (!options.parse(arguments, common)) return;
  print(format(described_commands()));
}

}  // namespace galvatron::tools
