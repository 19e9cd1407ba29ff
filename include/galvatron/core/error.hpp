// Errors: a value for what data may legitimately bring, an exception for what a machine may do.
#pragma once

#include <cstddef>
#include <cstdio>
#include <exception>
#include <new>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include <tl/expected.hpp>

namespace galvatron {

/// Why something could not be done. The values are the exit codes of the `galvatron` command.
enum class ErrorKind : int {
  internal = 1,    ///< a defect of galvatron itself
  usage = 2,       ///< bad usage or bad input: the caller can mend it
  infeasible = 3,  ///< no plan fits the constraints
  machine = 4,     ///< a device, a rank or a peer failed
};

/// A legitimate failure: `message` is one line that names the cause and the way out.
struct Error {
  ErrorKind kind = ErrorKind::internal;
  std::string message;
};

/// The value or the one-line reason why there is none.
template <class T>
using Result = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> usage_error(std::string message) {
  return tl::unexpected<Error>(Error{ErrorKind::usage, std::move(message)});
}

namespace detail {

/// Printable ASCII on one line and not longer than `limit`: foreign text for messages.
inline std::string one_line(std::string_view text, std::size_t limit = 200) {
  std::string out;
  for (const char c : text.substr(0, limit)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > limit ? out + "..." : out;
}

}  // namespace detail

/// Base of every exception that galvatron throws; carries the exit code and the throwing place.
class Failure : public std::runtime_error {
 public:
  Failure(ErrorKind kind, const std::string& message, std::source_location where = std::source_location::current())
      : std::runtime_error(message), kind_(kind), where_(where) {}
  [[nodiscard]] ErrorKind kind() const noexcept { return kind_; }
  [[nodiscard]] const std::source_location& where() const noexcept { return where_; }

 private:
  ErrorKind kind_;
  std::source_location where_;
};

/// A device refused an operation (out of memory, no device, a library status).
struct DeviceFailure : Failure {
  explicit DeviceFailure(const std::string& message, std::source_location where = std::source_location::current())
      : Failure(ErrorKind::machine, message, where) {}
};

/// A peer rank failed or did not answer in time; `message` names the rank that failed first.
struct PeerFailure : Failure {
  explicit PeerFailure(const std::string& message, std::source_location where = std::source_location::current())
      : Failure(ErrorKind::machine, message, where) {}
};

/// Throws a `Failure` of the error's kind; for code paths where a `Result` cannot travel.
[[noreturn]] inline void throw_error(const Error& error, std::source_location where = std::source_location::current()) {
  throw Failure(error.kind, error.message, where);
}

/// The value of a result, or a thrown `Failure` with its message.
template <class T>
T value_or_throw(Result<T>&& result, std::source_location where = std::source_location::current()) {
  if (!result) throw_error(result.error(), where);
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

/// A failure as a value again: what a function returns that reads by throwing.
[[nodiscard]] inline tl::unexpected<Error> error_of(const Failure& failure) {
  return tl::unexpected<Error>(Error{failure.kind(), failure.what()});
}

inline constexpr std::string_view memory_is_exhausted =
    "this machine's memory is exhausted; use fewer ranks, a smaller model or a smaller batch";

/// The exception that is being handled, as an error: a Failure with its kind and message, and with the place that threw
/// it if it is a defect; exhausted memory and what the system refuses as failures of the machine; any other exception
/// as internal, with what it says. To be called in a handler.
inline Error error_of_exception() {
  try {
    throw;
  } catch (const Failure& failure) {
    std::string message = failure.what();
    if (failure.kind() == ErrorKind::internal)
      message += " (" + std::string(failure.where().file_name()) + ":" + std::to_string(failure.where().line()) + ")";
    return {failure.kind(), message};
  } catch (const std::bad_alloc&) {
    return {ErrorKind::machine, std::string(memory_is_exhausted)};
  } catch (const std::system_error& refused) {
    return {ErrorKind::machine, std::string("the system refused what the program needs: ") + refused.what()};
  } catch (const std::exception& other) {
    return {ErrorKind::internal, other.what()};
  } catch (...) {
    return {ErrorKind::internal, "an unknown exception"};
  }
}

/// Tells the exception that is being handled in a line on standard error. The exit code for it: the value of its
/// ErrorKind. To be called in a handler, that of a program for instance:
///
///     int main() try {
///       const auto model = galvatron::value_or_throw(galvatron::find_model("llama2-7b"));
///     } catch (...) {
///       return galvatron::report_exception();
///     }
inline int report_exception() noexcept try {
  const Error error = error_of_exception();
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return static_cast<int>(error.kind);
} catch (...) {  // no memory for the words
  return static_cast<int>(ErrorKind::machine);
}

}  // namespace galvatron
