// What the command says: results on standard output, everything else on standard error.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/error.hpp>
#include <galvatron/core/progress.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/core/units.hpp>

namespace galvatron::tools {

/// Whoever read standard output went away: there is nobody to tell, and nothing went wrong.
struct ReaderGone {};

/// The user has been told why already; the process ends with this exit code.
struct Exited {
  int code = 0;
};

/// No plan fits; `smallest` is the least memory of a device with which one does, if any budget helps.
class Infeasible : public Failure {
 public:
  Infeasible(const std::string& reason, std::optional<Bytes> smallest_memory)
      : Failure(ErrorKind::infeasible, reason), smallest(smallest_memory) {}
  std::optional<Bytes> smallest;
};

/// What an option's value stands for, or a thrown Failure (usage) that begins with the option.
template <class T>
T value_of(const std::string& option, Result<T>&& result) {
  if (!result) refuse(option, ": ", result.error().message);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// A share as words: 0.123 is "12.3 %".
std::string percent(double share);

/// A line of a summary, `  label        text`; nothing without a text.
std::string row_of(std::string label, const std::string& text);
template <class... Parts>
std::string row(const std::string& label, const Parts&... text) {
  return row_of(label, text_of(text...));
}
/// Adds the texts that are not empty under their keys.
void add_texts(nlohmann::ordered_json& out, const std::vector<std::pair<const char*, std::string>>& texts);

/// What JSON says of a plan that does not fit, or where none does.
void add_infeasible(nlohmann::ordered_json& out, const std::string& reason, std::optional<Bytes> smallest);

struct Description;

/// Options that every command has.
struct Common {
  bool json = false;
  bool quiet = false;
  std::vector<Description>* descriptions = nullptr;  ///< not null: a command adds its own, and does nothing else
};

/// From now on descriptors 0 to 2 exist, and no reader that goes away, or limit of files' size, kills the process.
void prepare_streams();
/// From now on an exception that nobody can catch, as of a destructor, ends the process with a line and its exit code.
void prepare_terminations();
/// From now on a file that is cut short while the process has it mapped ends the process with exit code 2 and a line.
void prepare_mapped_files(const Common& common);

/// Writes to standard output at once. Throws ReaderGone, or Failure (usage) when it cannot be written.
void print(std::string_view text);
void print_json(const nlohmann::ordered_json& value);
/// Throws Failure (usage) when a JSON result could not be printed because standard output is closed.
void require_output(const Common& common);

/// Writes `galvatron: message` on a line to standard error.
void complain(std::string_view message);
/// Writes a line to standard error unless quiet.
void note_line(const Common& common, std::string_view message);
template <class... Parts>
void note(const Common& common, const Parts&... message) {
  note_line(common, text_of(message...));
}

/// A progress display on standard error.
Progress error_progress(std::string work, const Common& common);

/// Tells the user about a failure, and in JSON too if that was asked for; the exit code.
int report_failure(const std::exception_ptr& failure, const Common& common);

/// A file that an option names; without a path nothing.
struct NamedFile {
  std::string_view option;
  std::string path;
};

/// Throws Failure (usage) when a file that will be written is also read, or is written twice.
void require_apart(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

/// The same, and throws Failure (usage) unless the files could be written; what is there stays as it is.
void require_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read);

}  // namespace galvatron::tools
