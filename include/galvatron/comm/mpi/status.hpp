// What a rank tells all others when it has ended: one short message, the same bytes on every machine of a job.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>

#include <galvatron/core/error.hpp>

namespace galvatron::comm::mpi {

struct Status {
  enum class Kind : std::int32_t {
    running,
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
  } catch (const std::exception& e) {
    status.say(e.what());
  } catch (...) {
    status.say("an exception that is not a std::exception");
  }
  return status;
}

}  // namespace galvatron::comm::mpi
