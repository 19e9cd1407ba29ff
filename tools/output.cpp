#include "output.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include <galvatron/core/file.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/core/quantity.hpp>

namespace galvatron::tools {

namespace {

bool output_was_closed = false;

void write_error(std::string_view text) {
  // Nobody is left to tell when this fails.
  static_cast<void>(detail::write_fully(STDERR_FILENO, text.data(), text.size()));
}

// The first `head` and the last `tail` bytes of a text that is longer than both; no letter of UTF-8 is cut in two.
std::string without_middle(std::string_view text, std::size_t head, std::size_t tail) {
  if (text.size() <= head + tail) return std::string(text);
  const auto inside_letter = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  std::size_t rest = text.size() - tail;
  while (head > 0 && inside_letter(head)) --head;
  while (rest < text.size() && inside_letter(rest)) ++rest;
  return std::string(text.substr(0, head)) + "..." + std::string(text.substr(rest));
}

// One line whatever was thrown, in UTF-8. Long words (paths) and messages lose their middle: cause and way out remain.
std::string on_one_line(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    out += without_middle(text.substr(at, end - at), 200, 100);
    if (end < text.size()) out += ' ';
    at = end + 1;
  }
  out = without_middle(out, 2200, 800);
  for (char& c : out) c = static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
  return out;
}

nlohmann::ordered_json failure_json(int code, const std::string& message) {
  return {{"error", message}, {"exit_code", code}};
}

std::string line_of_lost_file;  // what the handler of SIGBUS writes
std::string json_of_lost_file;

void end_without_file(int) {
  static std::atomic_flag told;
  while (told.test_and_set()) ::pause();  // another thread does
  static_cast<void>(::write(STDERR_FILENO, line_of_lost_file.data(), line_of_lost_file.size()));
  static_cast<void>(::write(STDOUT_FILENO, json_of_lost_file.data(), json_of_lost_file.size()));
  ::_exit(static_cast<int>(ErrorKind::usage));
}

// Refuses unless a file could be written; what is there stays as it is.
void require_writable(const NamedFile& file) {
  const std::string& path = file.path;
  if (path.empty()) return;
  const auto refuse_file = [&](const auto&... why) {
    refuse(file.option, ": ", why..., "; name a file in a folder that you can write");
  };
  struct stat status{};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {  // a pipe or a device is not opened twice
    if (S_ISDIR(status.st_mode)) refuse_file("cannot write ", path, ": it is a directory");
    if (::access(path.c_str(), W_OK) != 0) refuse_file("cannot write ", path, ": ", detail::reason_of(errno));
    return;
  }
  if (const auto probe = AtomicFile::create(path); !probe) refuse_file(probe.error().message);
}

}  // namespace

std::string percent(double share) { return detail::formatted("%.1f %%", share * 100); }

std::string row_of(std::string label, const std::string& text) {
  if (text.empty()) return {};
  label.resize(std::max<std::size_t>(label.size() + 1, 13), ' ');
  return "  " + label + text + "\n";
}

void add_texts(nlohmann::ordered_json& out, const std::vector<std::pair<const char*, std::string>>& texts) {
  for (const auto& [key, text] : texts)
    if (!text.empty()) out[key] = text;
}

void add_infeasible(nlohmann::ordered_json& out, const std::string& reason, std::optional<Bytes> smallest) {
  out["feasible"] = false;
  out["reason"] = reason;
  out["smallest_feasible_memory_bytes"] = nullptr;
  if (smallest) out["smallest_feasible_memory_bytes"] = smallest->count;
}

void prepare_streams() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` says so
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) != -1) continue;
    if (descriptor == STDOUT_FILENO) output_was_closed = true;
    // The lowest free number is this one: those below are open.
    if (::open("/dev/null", descriptor == STDIN_FILENO ? O_RDONLY : O_WRONLY) != descriptor) return;
  }
}

void print(std::string_view text) {
  const int reason = detail::write_fully(STDOUT_FILENO, text.data(), text.size());
  if (reason == EPIPE) throw ReaderGone{};
  if (reason != 0)
    refuse("cannot write standard output: ", detail::reason_of(reason), "; send it to a file or a terminal");
}

void prepare_mapped_files(const Common& common) {
  const std::string why =
      "a data file became shorter or cannot be read any more; give files that nobody writes to meanwhile";
  line_of_lost_file = (::isatty(STDERR_FILENO) != 0 ? "\n" : "") + ("galvatron: " + why) + "\n";
  if (common.json) json_of_lost_file = failure_json(static_cast<int>(ErrorKind::usage), why).dump(2) + "\n";
  struct sigaction action{};
  action.sa_handler = end_without_file;
  ::sigaction(SIGBUS, &action, nullptr);
}

void print_json(const nlohmann::ordered_json& value) {
  print(value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void require_output(const Common& common) {
  if (common.json && output_was_closed) refuse("--json prints to standard output, which is closed; send it to a file");
}

void complain(std::string_view message) { write_error("galvatron: " + on_one_line(message) + "\n"); }

void note_line(const Common& common, std::string_view message) {
  if (!common.quiet) write_error(on_one_line(message) + "\n");
}

Progress error_progress(std::string work, const Common& common) {
  return {std::move(work), progress_style(STDERR_FILENO, common.quiet), write_error};
}

int report_failure(const std::exception_ptr& failure, const Common& common) {
  int code = static_cast<int>(ErrorKind::internal);
  std::string message;
  nlohmann::ordered_json json;
  try {
    std::rethrow_exception(failure);
  } catch (const ReaderGone&) {
    return 0;
  } catch (const Exited& e) {
    return e.code;
  } catch (const Infeasible& e) {
    code = static_cast<int>(e.kind());
    message = on_one_line(e.what());
    add_infeasible(json, message, e.smallest);
  } catch (...) {
    Error error = error_of_exception();
    code = static_cast<int>(error.kind);
    message = std::move(error.message);
    if (error.kind == ErrorKind::internal) message += "; this is a defect of galvatron, please report it";
  }
  complain(message);
  if (!common.json) return code;
  try {
    print_json(json.is_null() ? failure_json(code, on_one_line(message)) : json);
  } catch (...) {
    // Standard output may be what failed.
  }
  return code;
}

void prepare_terminations() {
  std::set_terminate([] {
    static std::atomic_flag told;
    while (told.test_and_set()) ::pause();  // another thread does
    try {
      if (const auto failure = std::current_exception()) std::rethrow_exception(failure);
    } catch (const std::bad_alloc&) {  // nothing can be allocated
      for (const std::string_view text : {std::string_view("galvatron: "), memory_is_exhausted, std::string_view("\n")})
        write_error(text);
      ::_exit(static_cast<int>(ErrorKind::machine));
    } catch (...) {
      ::_exit(report_failure(std::current_exception(), Common{}));
    }
    std::abort();
  });
}

void require_apart(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  namespace fs = std::filesystem;
  const auto same = [](const std::string& a, const std::string& b) {
    if (a.empty() || b.empty()) return false;
    std::error_code failed;
    if (fs::exists(a, failed) && !fs::is_regular_file(a, failed)) return false;  // a device or a pipe takes everything
    if (fs::equivalent(a, b, failed)) return true;
    const fs::path whole = fs::weakly_canonical(a, failed);
    return !failed && whole == fs::weakly_canonical(b, failed);
  };
  for (std::size_t i = 0; i < written.size(); ++i) {
    const NamedFile& out = written[i];
    for (const NamedFile& in : read)
      if (same(out.path, in.path))
        refuse(out.option, " would overwrite ", out.path, ", which ", in.option, " reads; name another file");
    for (std::size_t j = 0; j < i; ++j)
      if (same(out.path, written[j].path))
        refuse(written[j].option, " and ", out.option, " would both write ", out.path, "; name two files");
  }
}

void require_files(const std::vector<NamedFile>& written, const std::vector<NamedFile>& read) {
  for (const NamedFile& file : written) require_writable(file);
  require_apart(written, read);
}

}  // namespace galvatron::tools
