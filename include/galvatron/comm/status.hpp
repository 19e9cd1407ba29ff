// What ranks that are processes tell each other when they have ended: one short message, the same bytes on every
// machine of a job; and what all make of these.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include <galvatron/core/error.hpp>

namespace galvatron::comm {

struct Status {
  enum class Kind : std::int32_t {
    running,  ///< nothing was heard of it
    ended,    ///< the body returned
    failed,   ///< the body threw an error of its own
    stopped,  ///< the body threw because of another rank's failure
  };

  std::int32_t run = 0;
  Kind kind = Kind::running;
  ErrorKind error = ErrorKind::internal;
  char message[1012] = "";  ///< ends with a zero

  void say(std::string_view text) {
    const std::size_t n = std::min(text.size(), sizeof message - 1);
    std::memcpy(message, text.data(), n);
    message[n] = '\0';
  }
  [[nodiscard]] bool same_failure(const Status& other) const {
    return kind == Kind::failed && other.kind == Kind::failed && error == other.error &&
           std::string_view(message) == other.message;
  }
};
static_assert(sizeof(Status) == 1024);

/// How long ranks have to end once one has failed; whoever does not (a long computation) is not waited for.
inline constexpr std::chrono::milliseconds patience{4000};

/// The text of an exception, in one line as its thrower wrote it.
inline std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// The status of a rank whose body threw.
inline Status status_of(const std::exception_ptr& failure) {
  Status status;
  status.kind = Status::Kind::failed;
  try {
    std::rethrow_exception(failure);
  } catch (const Failure& e) {
    status.error = e.kind();
    std::string text = e.what();
    if (e.kind() == ErrorKind::internal)
      text += " (" + std::string(e.where().file_name()) + ":" + std::to_string(e.where().line()) + ")";
    status.say(text);
  } catch (const std::bad_alloc&) {
    status.error = ErrorKind::machine;
    status.say("the memory of its machine is exhausted; use fewer ranks, a smaller model or a smaller batch");
  } catch (const std::system_error& e) {
    status.error = ErrorKind::machine;
    status.say(std::string("the system refused what the run needs: ") + e.what());
  } catch (...) {
    status.say(message_of(failure));
  }
  return status;
}

/// How a run ended: the same on every rank that took part to the end.
struct Verdict {
  std::exception_ptr failure;  ///< null: well; else what all threw alike, or a Failure "rank 2 failed: ..."
  ErrorKind error = ErrorKind::internal;
  bool reports = false;  ///< this process tells the user

  void rethrow() const {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
};

/// The verdict of a rank whose body threw `own` (null: it did not), when not all have ended well.
/// @param statuses  by rank, its own too
inline Verdict verdict_of(std::span<const Status> statuses, int rank, const std::exception_ptr& own) {
  const auto first_of = [&](auto&& is_so) { return std::ranges::find_if(statuses, is_so) - statuses.begin(); };
  auto failed = first_of([](const Status& s) { return s.kind == Status::Kind::failed; });
  Verdict out;
  if (failed < std::ssize(statuses)) {
    const Status& first = statuses[static_cast<std::size_t>(failed)];
    const bool alike = std::ranges::all_of(statuses, [&](const Status& s) { return s.same_failure(first); });
    out.error = first.error;
    // A user's mistake is no rank's fault.
    const bool plain = alike || (rank == failed && first.error != ErrorKind::machine);
    out.failure = plain ? own
                        : std::make_exception_ptr(
                              Failure(first.error, "rank " + std::to_string(failed) + " failed: " + first.message));
  } else {  // somebody died without a word
    failed = first_of([](const Status& s) { return s.kind != Status::Kind::running; });
    out.error = ErrorKind::machine;
    out.failure = own;
  }
  out.reports = statuses[0].kind != Status::Kind::running ? rank == 0 : rank == failed;
  return out;
}

}  // namespace galvatron::comm
