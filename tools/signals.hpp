// What SIGINT, SIGTERM, SIGHUP and SIGUSR1 do: they end a command at once, or ask training to end after its step.
//
// SIGUSR1 is the one that mpirun forwards to the ranks on all hosts; of the others it leaves them one second.
// Schedulers send it where they are asked to warn a job.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <string>

#include <sys/types.h>

namespace galvatron::tools {

inline constexpr std::array stop_signals{SIGINT, SIGTERM, SIGHUP, SIGUSR1};

/// Of the processes that mpirun has started one, rank 0, tells of an interruption; any other process does.
bool tells_of_interruptions();

/// From now on these signals end the process as they would anyway, after a line. Those that are ignored, as nohup has
/// it, stay so.
/// @param line  `interrupted; ...`; empty: another process tells
void end_on_signals(const std::string& line);

/// From now on the first of these signals is noted only, and another one ends the process at once. One that comes
/// within a second is taken for the same: launchers may send a signal to a process and to its group.
/// @param first   a line for the first; empty: nothing  @param second  for the other; empty: nothing
/// @return the number of the noted signal, or 0
const std::atomic<int>& note_signals(const std::string& first, const std::string& second);

/// From now on the first of these signals is a SIGUSR1 for mpirun, which forwards it to all ranks: they end after their
/// step. Another one is a SIGTERM, of which mpirun leaves them one second.
const std::atomic<int>& pass_signals_to(pid_t mpirun);
/// mpirun has ended; signals are noted only.
void stop_passing_signals();

/// SIGUSR2, which mpirun forwards too, tells ranks that others of their job are gone. From now on it is noted.
/// @return 0 until then
const std::atomic<int>& note_lost_ranks();

/// Ends the process as the signal would have ended it.
[[noreturn]] void end_by_signal(int signal);

}  // namespace galvatron::tools
