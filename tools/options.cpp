#include "options.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <system_error>

#include <galvatron/core/json.hpp>
#include <galvatron/core/names.hpp>
#include <galvatron/core/quantity.hpp>

namespace galvatron::tools {

namespace {

// Descriptions begin in this column; below the options where a line has not room for both.
constexpr std::size_t wide_column = 24;
constexpr std::size_t narrow_column = 6;
constexpr std::size_t narrow_width = 60;
constexpr std::string_view required_mark = " (required)";

// `galvatron hap case file [options]`
std::string usage_of(const CLI::App& app) {
  std::string out = app.get_name();
  for (const CLI::Option* option : app.get_options())
    if (option->get_positional())
      out += option->get_description().ends_with(required_mark) ? " " + option->get_name(true)
                                                                : " [" + option->get_name(true) + "]";
  return out + " [options]";
}

// The options under their headlines, with descriptions in a column of their own.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string /*name*/, CLI::AppFormatMode /*mode*/) const override {
    const auto width = static_cast<std::size_t>(help_width());
    std::string out =
        wrapped("Usage: " + usage_of(*app), width, 7) + "\n\n" + wrapped(app->get_description(), width, 0) + "\n";
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
    std::string name = "  " + (option->get_positional() ? option->get_name(true) : option->get_name(false, true));
    if (!option->get_type_name().empty()) name += " " + option->get_type_name();
    const std::size_t column = width < narrow_width ? narrow_column : wide_column;
    if (name.size() + 2 > column)
      name += "\n" + std::string(column, ' ');
    else
      name.resize(column, ' ');
    return name + wrapped(std::string(column, ' ') + option->get_description(), width, column).substr(column) + "\n";
  }
};

// A number in [least, most], which `what` says: "a number from 1 to 2".
template <class T>
T number_in(const std::string& name, const std::string& text, T least, T most, const std::string& what) {
  T number{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || end != text.data() + text.size() || !(number >= least && number <= most))
    refuse_value(name, text, what);
  return number;
}

// What other programs call an option, between spaces, and what it is called here.
constexpr std::pair<std::string_view, std::string_view> synonyms[] = {
    {"--ranks", " devices gpus np nproc nproc-per-node world-size "},
    {"--cluster", " devices gpus hardware nodes world-size "},
    {"--global-batch", " bs bsz gbs "},
    {"--microbatches", " accumulate chunks gradient-accumulation-steps "},
    {"--precision", " amp bf16 dtype fp16 fp32 fp8 "},
    {"--space", " dp pp recompute strategy tp zero "},
    {"--steps", " epochs iterations iters max-steps train-iters "},
    {"--checkpoint", " ckpt save "},
    {"--data", " dataset "},
    {"--init-from", " weights "},
    {"--lr", " learning-rate "},
    {"--memory", " vram "},
    {"--out", " o "},
    {"--threads", " jobs "}};

// The options of `known` that `word` (`--batch`) may mean.
std::vector<std::string> meant_options(const std::string& word, const std::vector<std::string>& known) {
  const std::size_t begin = std::min(word.find_first_not_of('-'), word.size());
  std::string bare = detail::lower_case(word.substr(begin, 64));
  std::replace(bare.begin(), bare.end(), '_', '-');
  for (const auto& [name, others] : synonyms)
    if (others.find(" " + bare + " ") != std::string_view::npos && std::ranges::find(known, name) != known.end())
      return {std::string(name)};
  return nearest_names(bare, known);
}

}  // namespace

void refuse_value(const std::string& name, const std::string& value, const std::string& expected) {
  refuse(name, ": \"", detail::one_line(value, 60), "\" is not ", expected, "; choose another value");
}

int help_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::clamp<int>(size.ws_col, 40, 80);
  return 80;
}

Options::Options(std::string name, std::string purpose)
    : app_(std::move(purpose), "galvatron " + name), name_(std::move(name)) {
  app_.formatter(std::make_shared<HelpFormatter>());
  app_.set_help_flag("");
}

CLI::Option* Options::add(const std::string& name, const std::string& value_name, const std::string& help,
                          std::function<void(const std::string&)> read) {
  auto* option = app_.add_option_function<std::vector<std::string>>(
      name,
      [read = std::move(read), name](const std::vector<std::string>& values) {
        if (values.size() != 1) refuse(name, " is given ", values.size(), " times; give it once");
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

std::int64_t Options::integer_in(const std::string& name, const std::string& text, std::int64_t least,
                                 std::int64_t most) {
  return number_in(name, text, least, most, text_of("an integer from ", least, " to ", most));
}

CLI::Option* Options::number(const std::string& name, double& value, double least, double most,
                             const std::string& help) {
  return add(name, "X", help, [&value, least, most, name](const std::string& text) {
    value = number_in(name, text, least, most, detail::formatted("a number from %g to %g", least, most));
  });
}

CLI::Option* Options::size(const std::string& name, Bytes& value, const std::string& help) {
  return add(name, "SIZE", help, [&value, name](const std::string& text) {
    const Bytes bytes = value_of(name, parse_bytes(text));
    const std::int64_t n = bytes.count;
    if (n < 1) refuse_value(name, text, "a size of at least 1 byte");
    constexpr std::int64_t smallest_without_unit = 1 << 20;
    if (text.find_first_not_of("0123456789") == std::string::npos && n < smallest_without_unit)
      refuse(name, ": \"", n, "\" has no unit and is that many bytes; write ", n, n <= 4096 ? "GiB" : "MiB", ", or ", n,
             "B if bytes are meant");
    value = bytes;
  });
}

CLI::Option* Options::text(const std::string& name, std::string& value, const std::string& value_name,
                           const std::string& help) {
  return add(name, value_name, help, [&value, name](const std::string& text) {
    if (text.empty()) refuse_value(name, text, "a name: it is empty");
    value = text;
  });
}

CLI::Option* Options::texts(const std::string& name, std::vector<std::string>& value, const std::string& value_name,
                            const std::string& help) {
  return app_
      .add_option_function<std::vector<std::string>>(
          name,
          [&value, name](const std::vector<std::string>& all) {
            for (const std::string& one : all)
              if (one.empty()) refuse_value(name, one, "a name: it is empty");
            value = all;
          },
          help)
      ->type_name(value_name)
      ->expected(1, 1 << 20)
      ->group(section_);
}

CLI::Option* Options::flag(const std::string& name, bool& value, const std::string& help) {
  return app_.add_flag(name, value, help)
      ->disable_flag_override()
      ->group(section_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

Description Options::description() const {
  Description out{name_, {}, usage_of(app_), app_.get_description(), {}, app_.get_footer()};
  for (const std::string& group : app_.get_groups())
    for (const CLI::Option* option : app_.get_options()) {
      if (group.empty() || option->get_group() != group) continue;
      OptionDescription one;
      one.section = group;
      one.is_argument = option->get_positional();
      if (one.is_argument) one.names.push_back(option->get_name(true));
      for (const std::string& name : option->get_snames()) one.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) one.names.push_back("--" + name);
      one.value = option->get_type_name();
      if (const auto words = words_.find(option); words != words_.end()) one.words = words->second;
      one.help = option->get_description();
      out.options.push_back(std::move(one));
    }
  return out;
}

bool Options::parse(std::vector<std::string> arguments, const Common& common) {
  // Help wins over anything that is wrong or missing.
  const bool help = std::any_of(arguments.begin(), std::ranges::find(arguments, "--"),
                                [](const std::string& argument) { return argument == "--help" || argument == "-h"; });
  bool ignored = false;
  section("Other");
  flag("-h,--help", ignored, "show this text and end");
  if (common.descriptions != nullptr) {
    common.descriptions->push_back(description());
    return false;
  }
  if (help) {
    print(app_.help());
    return false;
  }
  const auto refuse_all = [this](const auto&... why) {
    refuse(name_, ": ", why..., "; `galvatron ", name_, " --help` shows the options");
  };
  try {
    std::reverse(arguments.begin(), arguments.end());
    app_.parse(arguments);
  } catch (const CLI::ExtrasError&) {
    const std::string first = app_.remaining().empty() ? "" : app_.remaining().front();
    const std::string word = first.substr(0, first.find('='));
    if (!word.starts_with("-")) refuse_all("unexpected argument \"", detail::one_line(first, 60), "\"");
    std::vector<std::string> known;
    for (const CLI::Option* option : app_.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    const auto near = meant_options(word, known);
    refuse_all("unknown option ", detail::one_line(word, 60),
               near.empty()       ? ""
               : near.size() == 1 ? "; the nearest is "
                                  : "; the nearest are ",
               joined(near, ", ", std::identity{}, " and "));
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string_view why = e.what();
    if (why.find("flag override") != std::string_view::npos)
      refuse_all("--" + detail::one_line(why.substr(0, why.find(' ')), 60) + " takes no value");
    refuse_all(detail::one_line(why.substr(0, why.find(':')), 60) + " needs a value after it");
  } catch (const CLI::ParseError& e) {
    refuse_all(detail::one_line(e.what()));
  }
  std::vector<std::string> missing;
  for (const Requirement& requirement : required_) {
    if (requirement.when && !requirement.when()) continue;
    if (std::ranges::any_of(requirement.options, [](const CLI::Option* option) { return option->count() != 0; }))
      continue;
    const auto name = [](const CLI::Option* option) { return option->get_name(option->get_positional()); };
    missing.push_back(joined(requirement.options, ", ", name, " or "));
  }
  if (!missing.empty())
    refuse_all(joined(missing, ", ", std::identity{}, " and "), missing.size() == 1 ? " is missing" : " are missing");
  require_output(common);
  return true;
}

void Options::require(CLI::Option* option) {
  option->description(option->get_description() + std::string(required_mark));
  required_.push_back({{option}, {}});
}

}  // namespace galvatron::tools
