// What ranks that are processes tell each other when they have ended: one short message, the same bytes on every
// machine of a job; and what all make of these.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

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

/// How a run ended: the same on every rank that took part to the end.
struct Verdict {
  std::exception_ptr failure;  ///< null: well; else what all threw alike, or a Failure "rank 2 failed: ..."
  ErrorKind error = ErrorKind::internal;
  bool reports = false;  ///< this process tells the user

  void rethrow() const {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
};

/// What a rank has heard of how the ranks of its run end.
class News {
 public:
  explicit News(int ranks) : statuses_(static_cast<std::size_t>(ranks)) {}

  /// What a rank has said; `running` warns of a failure.
  void take(int rank, const Status& said) {
    if (said.kind != Status::Kind::running) statuses_[static_cast<std::size_t>(rank)] = said;
    const std::string text = galvatron::detail::one_line(said.message, sizeof said.message);
    if (said.kind == Status::Kind::failed)
      fail("rank " + std::to_string(rank) + " failed: " + text);
    else if (said.kind != Status::Kind::ended)
      fail(text);
  }
  /// Notes a failure; the first one counts.
  void fail(const std::string& text) {
    if (failure_.empty()) failure_ = text;
  }

  [[nodiscard]] Status::Kind of(int rank) const { return statuses_[static_cast<std::size_t>(rank)].kind; }
  /// "rank 2 failed: ..."; empty when nothing failed.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  /// Throws PeerFailure when something failed.
  void check() const {
    if (!failure_.empty()) throw PeerFailure(failure_);
  }

  /// What a rank has to say whose body threw `own` (null: it did not): nothing new if that was check()'s failure.
  [[nodiscard]] Status status_of(const std::exception_ptr& own) const {
    Status status{.kind = Status::Kind::ended};
    if (own == nullptr) return status;
    try {
      std::rethrow_exception(own);
    } catch (...) {
      const Error error = error_of_exception();
      const bool is_old = !failure_.empty() && error.message == failure_;
      status.kind = is_old ? Status::Kind::stopped : Status::Kind::failed;
      status.error = error.kind;
      status.say(error.message);
    }
    return status;
  }

  /// The verdict of a rank whose body threw `own` (null: it did not), from all statuses, when not all have ended well.
  [[nodiscard]] Verdict verdict(int rank, const std::exception_ptr& own) const {
    const auto first_of = [&](auto&& is_so) { return std::ranges::find_if(statuses_, is_so) - statuses_.begin(); };
    auto failed = first_of([](const Status& s) { return s.kind == Status::Kind::failed; });
    Verdict out{.failure = own};
    if (failed < std::ssize(statuses_)) {
      const Status& first = statuses_[static_cast<std::size_t>(failed)];
      const bool alike = std::ranges::all_of(statuses_, [&](const Status& s) {
        return s.kind == first.kind && s.error == first.error && std::string_view(s.message) == first.message;
      });
      out.error = first.error;
      // A user's mistake is no rank's fault.
      if (!alike && (rank != failed || first.error == ErrorKind::machine))
        out.failure = std::make_exception_ptr(
            Failure(first.error, "rank " + std::to_string(failed) + " failed: " + first.message));
    } else {  // somebody died without a word
      failed = first_of([](const Status& s) { return s.kind != Status::Kind::running; });
      out.error = ErrorKind::machine;
    }
    out.reports = of(0) != Status::Kind::running ? rank == 0 : rank == failed;
    return out;
  }

 private:
  std::vector<Status> statuses_;  // by rank
  std::string failure_;           // the first that was heard of
};

}  // namespace galvatron::comm
