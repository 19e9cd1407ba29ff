#include "options.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <system_error>
#include <utility>

#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>
#include <galvatron/model/zoo.hpp>

#include "output.hpp"

namespace galvatron::tools {

namespace {

constexpr std::size_t help_column = 24;
constexpr std::string_view required_mark = " (required)";

// The options under their headlines, with descriptions in a column of their own.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string /*name*/, CLI::AppFormatMode /*mode*/) const override {
    const auto width = static_cast<std::size_t>(help_width());
    std::string positional;
    for (const CLI::Option* option : app->get_options())
      if (option->get_positional())
        positional += option->get_description().ends_with(required_mark) ? " " + option->get_name(true)
                                                                         : " [" + option->get_name(true) + "]";
    std::string out =
        "Usage: " + app->get_name() + positional + " [options]\n\n" + wrapped(app->get_description(), width, 0) + "\n";
    for (const std::string& group : app->get_groups()) {
      if (group.empty()) continue;
      out += "\n" + group + ":\n";
      for (const CLI::Option* option : app->get_options())
        if (option->get_group() == group) out += line(option, width);
    }
    if (!app->get_footer().empty()) out += "\n" + app->get_footer() + "\n";
    return out;
  }

 private:
  static std::string line(const CLI::Option* option, std::size_t width) {
    std::string name = "  " + option->get_name(option->get_positional());
    if (!option->get_positional() && option->get_type_size() != 0) name += " " + option->get_type_name();
    if (name.size() + 2 > help_column)
      name += "\n" + std::string(help_column, ' ');
    else
      name.resize(help_column, ' ');
    const std::size_t room = width > help_column + 20 ? width : help_column + 20;
    return name +
           wrapped(std::string(help_column, ' ') + option->get_description(), room, help_column).substr(help_column) +
           "\n";
  }
};

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& expected) {
  throw Failure(ErrorKind::usage, name + ": \"" + galvatron::detail::one_line(value, 60) + "\" is not " + expected +
                                      "; choose another value");
}

std::string short_number(double x) {
  char out[32];
  std::snprintf(out, sizeof out, "%g", x);
  return out;
}

// `--memory` of `-m,--memory`.
std::string long_name(const std::string& names) {
  const auto comma = names.rfind(',');
  return comma == std::string::npos ? names : names.substr(comma + 1);
}

}  // namespace

int help_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::clamp<int>(size.ws_col, 40, 80);
  return 80;
}

std::string wrapped(std::string_view text, std::size_t width, std::size_t indent) {
  std::string out;
  std::size_t column = 0;
  bool first_word = true;
  std::size_t at = 0;
  while (at < text.size() && text[at] == ' ') {  // the first line's own indent
    out += ' ';
    ++column;
    ++at;
  }
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (!first_word && column + 1 + word.size() > width) {
      out += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!first_word) {
      out += ' ';
      ++column;
    }
    out += word;
    column += word.size();
    first_word = false;
    at = end + 1;
  }
  return out;
}

Options::Options(std::string name, std::string purpose)
    : app_(std::move(purpose), "galvatron " + name), name_(std::move(name)) {
  app_.formatter(std::make_shared<HelpFormatter>());
  app_.set_help_flag("");
}

CLI::Option* Options::add(const std::string& names, const std::string& value_name, const std::string& help,
                          std::function<void(const std::string&)> read) {
  const std::string shown = long_name(names);
  auto* option = app_.add_option_function<std::vector<std::string>>(
      names,
      [read = std::move(read), shown](const std::vector<std::string>& values) {
        if (values.size() != 1)
          throw Failure(ErrorKind::usage,
                        shown + " is given " + std::to_string(values.size()) + " times; give it once");
        read(values.front());
      },
      help);
  return option->type_name(value_name)
      ->type_size(1)
      ->allow_extra_args(false)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group(section_);
}

CLI::Option* Options::integer(const std::string& names, std::int64_t& value, std::int64_t least, std::int64_t most,
                              const std::string& help) {
  return add(names, "N", help, [&value, least, most, name = long_name(names)](const std::string& text) {
    std::int64_t number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{} || end != text.data() + text.size() || number < least || number > most)
      refuse(name, text, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    value = number;
  });
}

CLI::Option* Options::integer(const std::string& names, int& value, std::int64_t least, std::int64_t most,
                              const std::string& help) {
  return add(names, "N", help, [&value, least, most, name = long_name(names)](const std::string& text) {
    int number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{} || end != text.data() + text.size() || number < least || number > most)
      refuse(name, text, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    value = number;
  });
}

CLI::Option* Options::number(const std::string& names, double& value, double least, double most,
                             const std::string& help) {
  return add(names, "X", help, [&value, least, most, name = long_name(names)](const std::string& text) {
    double number = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failure != std::errc{} || end != text.data() + text.size() || !std::isfinite(number) || number < least ||
        number > most)
      refuse(name, text, "a number from " + short_number(least) + " to " + short_number(most));
    value = number;
  });
}

CLI::Option* Options::size(const std::string& names, Bytes& value, const std::string& help) {
  return add(names, "SIZE", help, [&value, name = long_name(names)](const std::string& text) {
    const auto bytes = parse_bytes(text);
    if (!bytes) throw Failure(ErrorKind::usage, name + ": " + bytes.error().message);
    if (bytes->count < 1) refuse(name, text, "a size of at least 1 byte");
    value = *bytes;
  });
}

CLI::Option* Options::text(const std::string& names, std::string& value, const std::string& value_name,
                           const std::string& help) {
  return add(names, value_name, help, [&value, name = long_name(names)](const std::string& text) {
    if (text.empty()) refuse(name, text, "a name: it is empty");
    value = text;
  });
}

CLI::Option* Options::choice(const std::string& names, std::string& value, std::vector<std::string> choices,
                             const std::string& help) {
  std::string listed;
  for (const std::string& one : choices) listed += (listed.empty() ? "" : "|") + one;
  return add(names, listed, help, [&value, name = long_name(names), choices, listed](const std::string& text) {
    if (std::find(choices.begin(), choices.end(), text) == choices.end()) refuse(name, text, "one of " + listed);
    value = text;
  });
}

CLI::Option* Options::texts(const std::string& names, std::vector<std::string>& value, const std::string& value_name,
                            const std::string& help) {
  return app_
      .add_option_function<std::vector<std::string>>(
          names,
          [&value, name = long_name(names)](const std::vector<std::string>& all) {
            for (const std::string& one : all)
              if (one.empty()) refuse(name, one, "a name: it is empty");
            value = all;
          },
          help)
      ->type_name(value_name)
      ->expected(1, 1 << 20)
      ->group(section_);
}

CLI::Option* Options::flag(const std::string& names, bool& value, const std::string& help) {
  return app_.add_flag(names, value, help)->group(section_)->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Options::Outcome Options::parse(std::vector<std::string> arguments) {
  // Help wins over anything that is wrong or missing.
  bool help = false;
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    help = help || argument == "--help" || argument == "-h";
  }
  bool ignored = false;
  section("Other");
  flag("-h,--help", ignored, "show this text and end");
  if (help) {
    print(app_.help());
    return Outcome::help_shown;
  }
  const auto refuse_all = [this](const std::string& why) {
    throw Failure(ErrorKind::usage, name_ + ": " + why + "; `galvatron " + name_ + " --help` shows the options");
  };
  try {
    std::reverse(arguments.begin(), arguments.end());
    app_.parse(arguments);
  } catch (const CLI::ExtrasError&) {
    const std::string first = app_.remaining().empty() ? "" : app_.remaining().front();
    const std::string word = first.substr(0, first.find('='));
    if (!word.starts_with("-")) refuse_all("unexpected argument \"" + galvatron::detail::one_line(first, 60) + "\"");
    std::vector<std::string> known;
    for (const CLI::Option* option : app_.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    const auto near = nearest_names(word, known, 1);
    refuse_all("unknown option " + galvatron::detail::one_line(word, 60) +
               (near.empty() ? "" : ", the nearest one is " + near.front()));
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string_view why = e.what();
    refuse_all(galvatron::detail::one_line(why.substr(0, why.find(':'))) + " needs a value after it");
  } catch (const CLI::ParseError& e) {
    refuse_all(galvatron::detail::one_line(e.what()));
  }
  for (const CLI::Option* option : required_)
    if (option->count() == 0) refuse_all(option->get_name(option->get_positional()) + " is missing");
  return Outcome::run;
}

void Options::require(CLI::Option* option) {
  option->description(option->get_description() + std::string(required_mark));
  required_.push_back(option);
}

}  // namespace galvatron::tools
