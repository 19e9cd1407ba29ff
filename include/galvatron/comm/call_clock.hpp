// How long a thread spends in calls of the communicator: what is left of a step is its rank's own work.
#pragma once

#include <galvatron/core/units.hpp>

namespace galvatron::comm {

/// The seconds that the calling thread has spent in calls of groups and worlds so far: waiting for other ranks, moving
/// data and adding them. Of worlds that only give a device its work, the seconds that giving it takes.
class CallClock {
 public:
  /// One call, from here to the end of the scope; calls within calls count once.
  CallClock() {
    if (depth_++ == 0) began_ = steady_seconds();
  }
  CallClock(const CallClock&) = delete;
  CallClock& operator=(const CallClock&) = delete;
  ~CallClock() {
    if (--depth_ == 0) seconds_ += steady_seconds() - began_;
  }

  [[nodiscard]] static double seconds() { return seconds_; }

 private:
  static inline thread_local double seconds_ = 0;
  static inline thread_local double began_ = 0;
  static inline thread_local int depth_ = 0;
};

/// A thread's own work since the object was made, in seconds: all time but that in calls of the communicator.
class WorkWatch {
 public:
  [[nodiscard]] double seconds() const { return steady_seconds() - began_ - (CallClock::seconds() - calls_); }

 private:
  double began_ = steady_seconds();
  double calls_ = CallClock::seconds();
};

}  // namespace galvatron::comm
