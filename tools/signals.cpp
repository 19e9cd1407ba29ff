#include "signals.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <string_view>

namespace galvatron::tools {

namespace {

// What the handlers write: set before they are installed.
std::string line_at_end;
std::string line_at_first;
std::string line_at_second;

std::atomic<int> noted{0};
std::atomic<int> lost_ranks{0};
std::atomic<pid_t> child{0};            // 0: this process trains; -1: it has ended
std::atomic<std::int64_t> noted_at{0};  // milliseconds of the steady clock
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<pid_t>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void write_line(const std::string& line) { static_cast<void>(::write(STDERR_FILENO, line.data(), line.size())); }

void take_default(int signal) {
  if (::getpid() == 1) ::_exit(128 + signal);  // the first process of a container is not ended by signals
  std::signal(signal, SIG_DFL);
  ::raise(signal);  // when the handler returns, so that whoever waits for the process sees the signal
}

extern "C" void end_at_once(int signal) {
  write_line(line_at_end);
  take_default(signal);
}

extern "C" void note_signal(int signal) {
  const int before = errno;
  const pid_t other = child;
  int nothing = 0;
  if (noted.compare_exchange_strong(nothing, signal)) {
    noted_at = milliseconds();
    write_line(line_at_first);
    if (other > 0) ::kill(other, SIGUSR1);
  } else if (milliseconds() - noted_at > 1000) {
    write_line(line_at_second);
    if (other == 0) take_default(signal);
    if (other > 0) ::kill(other, SIGTERM);
  }
  errno = before;
}

void install(void (*handler)(int)) {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int signal : stop_signals) sigaddset(&action.sa_mask, signal);
  for (const int signal : stop_signals) {
    struct sigaction before{};
    ::sigaction(signal, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
  }
}

// Below a progress bar on a terminal.
std::string on_its_line(const std::string& line) {
  return line.empty() ? "" : (::isatty(STDERR_FILENO) != 0 ? "\n" : "") + line + "\n";
}

}  // namespace

bool tells_of_interruptions() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  return rank == nullptr || std::string_view(rank) == "0";
}

void end_on_signals(const std::string& line) {
  line_at_end = line.empty() ? "" : on_its_line("galvatron: " + line);
  install(end_at_once);
}

const std::atomic<int>& note_signals(const std::string& first, const std::string& second) {
  line_at_first = on_its_line(first);
  line_at_second = second.empty() ? "" : on_its_line("galvatron: " + second);
  install(note_signal);
  return noted;
}

const std::atomic<int>& pass_signals_to(pid_t other) {
  child = other;
  install(note_signal);
  return noted;
}

const std::atomic<int>& note_lost_ranks() {
  struct sigaction action{};
  action.sa_handler = [](int) { lost_ranks = 1; };
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGUSR2, &action, nullptr);
  return lost_ranks;
}

void stop_passing_signals() { child = -1; }

void end_by_signal(int signal) {
  std::signal(signal, SIG_DFL);
  ::raise(signal);
  ::_exit(128 + signal);  // see take_default()
}

}  // namespace galvatron::tools
