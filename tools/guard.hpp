// A process beside a rank that says how the rank died, when the rank itself cannot.
//
// mpirun ends a job when one of its processes dies, but its exit code is then 128 and the signal, and its message has
// the words of mpirun. So the process that it starts becomes a guard and the rank its child:
//
//   mpirun --+-- guard of rank 0 --- rank 0        rank 1 gets a SIGKILL: its guard tells so and exits with 4, then
//            +-- guard of rank 1 --- rank 1        mpirun ends all others and exits with 4 too
//
// A guard outlives the signals by which a job is ended in order, and passes them on to its rank.
#pragma once

#include "output.hpp"

namespace galvatron::tools {

class Guard {
 public:
  /// Returns in the rank only: a new child. The guard waits for it and ends as it ended; it tells the user if that was
  /// by a signal. To be called before there are other threads.
  explicit Guard(const Common& common);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard();

  /// The rank will end with an exit code that is not 0, and the user has been told why.
  void conclude();

 private:
  int pipe_ = -1;
};

}  // namespace galvatron::tools
