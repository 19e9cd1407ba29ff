// Exceptions that end a program: one line, and the exit code that the `galvatron` command has for them.
//
//     int main() try {
//       const auto model = galvatron::value_or_throw(galvatron::find_model("llama2-7b"));
//     } catch (...) {
//       return galvatron::report_exception();
//     }
#pragma once

#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include <galvatron/core/error.hpp>

namespace galvatron {

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
/// ErrorKind. To be called in a handler.
inline int report_exception() noexcept try {
  const Error error = error_of_exception();
  std::fprintf(stderr, "%s\n", error.message.c_str());
  return static_cast<int>(error.kind);
} catch (...) {  // no memory for the words
  return static_cast<int>(ErrorKind::machine);
}

}  // namespace galvatron
