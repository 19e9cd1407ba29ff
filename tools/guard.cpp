#include "launcher.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <sstream>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>

#include "adaptation.hpp"
#include "signals.hpp"

namespace galvatron::tools {

namespace {

std::string rank_and_host() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  char host[256] = "?";
  ::gethostname(host, sizeof host - 1);
  return "rank " + std::string(rank != nullptr ? rank : "?") + " on " + host;
}

[[noreturn]] void tell(const std::string& what, const Common& common) {
  ::_exit(report_failure(std::make_exception_ptr(PeerFailure(rank_and_host() + " " + what)), common));
}

// What `ps` and `pgrep -f` show, instead of the rank's command line, so that nobody takes the guard for the rank.
void name_process(const std::string& title) {
  ::prctl(PR_SET_NAME, "galvatron-guard");
  const std::string text = read_text_file("/proc/self/stat").value_or("");
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 48; ++field) fields >> skipped;
  std::uintptr_t first = 0;
  std::uintptr_t last = 0;
  if (!(fields >> first >> last) || first == 0 || last <= first) return;
  auto* const line = reinterpret_cast<char*>(first);  // where the kernel put the command line
  const std::size_t size = last - first;
  std::memset(line, 0, size);
  std::memcpy(line, title.data(), std::min(title.size(), size - 1));
}

// Another job takes the place of one that has lost ranks.
bool replaces_ranks() { return std::getenv(JobFolder::variable) != nullptr; }

// The guard waits for these, so they are blocked. mpirun sends those that end a rank in order to the guard.
sigset_t awaited_signals() {
  sigset_t out;
  sigemptyset(&out);
  sigaddset(&out, SIGCHLD);
  for (const int signal : stop_signals) sigaddset(&out, signal);
  if (replaces_ranks()) sigaddset(&out, SIGUSR2);
  return out;
}

// The next signal that arrives within a time; 0: none.
int next_signal(std::chrono::milliseconds longest) {
  const sigset_t awaited = awaited_signals();
  const timespec limit{longest.count() / 1000, longest.count() % 1000 * 1'000'000};
  return std::max(::sigtimedwait(&awaited, nullptr, &limit), 0);
}

// Waits for the rank, and passes on what it is to hear. If whoever started the guard dies, the rank has to end as well.
// @param stopped  set when a signal has asked for the end
int status_of(pid_t rank, bool& stopped) {
  const pid_t starter = ::getppid();
  for (;;) {
    int status = 0;
    const pid_t ended = ::waitpid(rank, &status, WNOHANG);
    if (ended == rank) return status;
    if (ended < 0 && errno != EINTR) return 1 << 8;
    if (::getppid() != starter) ::kill(rank, SIGKILL);
    const int signal = next_signal(std::chrono::milliseconds(500));
    if (signal == 0 || signal == SIGCHLD) continue;
    stopped = stopped || signal != SIGUSR2;
    ::kill(rank, signal);
  }
}

// Tells what has started the job that the rank is lost, and waits for the job's end: mpirun ends all ranks when one of
// its processes ends, and those that are left shall first say what they have.
[[noreturn]] void tell_of_loss(const std::string& how, pid_t starter) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string line = text_of(lost_rank_word, rank != nullptr ? rank : "0", " ", how, "\n");
  static_cast<void>(galvatron::detail::write_fully(STDERR_FILENO, line.data(), line.size()));
  for (int signal = 0; ::getppid() == starter && (signal == 0 || signal == SIGCHLD || signal == SIGUSR2);)
    signal = next_signal(std::chrono::milliseconds(500));
  ::_exit(0);
}

[[noreturn]] void guard(pid_t rank, int concluded, const Common& common) {
  name_process("galvatron-guard of " + rank_and_host());
  bool stopped = false;
  const pid_t starter = ::getppid();
  const int status = status_of(rank, stopped);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  if (WIFEXITED(status) && code == 0) ::_exit(0);
  char byte = 0;
  if (WIFEXITED(status) && ::read(concluded, &byte, 1) == 1) ::_exit(code);
  // mpirun, when it ends a job, sends signals to guards too: a guard that gets none during this wait was not meant. A
  // rank that ended without a word mostly did so because a connection broke, and its peer's guard is the one to tell.
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(WIFSIGNALED(status) ? 100 : 3000);
  for (auto now = std::chrono::steady_clock::now(); !stopped && now < until; now = std::chrono::steady_clock::now()) {
    const int signal = next_signal(std::chrono::ceil<std::chrono::milliseconds>(until - now));
    stopped = signal != 0 && signal != SIGCHLD && signal != SIGUSR2;
  }
  if (stopped) ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : code);
  if (WIFSIGNALED(status)) {
    const int number = WTERMSIG(status);
    const std::string how = text_of("was ended by signal ", number, " (", ::strsignal(number), ")");
    if (std::ranges::find(stop_signals, number) != stop_signals.end()) {  // before training, and this rank alone
      if (!tells_of_interruptions()) complain("interrupted before training began: " + rank_and_host() + " " + how);
      ::_exit(128 + number);
    }
    if (replaces_ranks()) tell_of_loss(how, starter);
    tell(how, common);
  }
  tell("ended without a word, with exit code " + std::to_string(code), common);
}

}  // namespace

Guard::Guard(const Common& common) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw DeviceFailure(std::string("cannot make a pipe: ") + std::strerror(errno));
  const sigset_t awaited = awaited_signals();
  sigset_t before;
  ::sigprocmask(SIG_BLOCK, &awaited, &before);
  if (replaces_ranks()) std::signal(SIGUSR2, SIG_IGN);  // until the rank listens
  const pid_t self = ::getpid();
  const pid_t rank = ::fork();
  if (rank < 0) throw DeviceFailure(std::string("cannot start a process: ") + std::strerror(errno));
  if (rank > 0) {
    ::close(ends[1]);
    guard(rank, ends[0], common);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::close(ends[0]);
  pipe_ = ends[1];
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != self) ::_exit(1);  // the guard died before
}

Guard::~Guard() {
  if (pipe_ >= 0) ::close(pipe_);
}

void Guard::conclude() { static_cast<void>(::write(pipe_, "c", 1)); }

}  // namespace galvatron::tools
