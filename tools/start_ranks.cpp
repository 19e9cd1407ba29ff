// Starting the ranks of a training run with mpirun, and understanding how they ended.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <galvatron/core/error.hpp>
#include <galvatron/core/file.hpp>
#include <galvatron/core/units.hpp>

#include "adaptation.hpp"
#include "launcher.hpp"
#include "signals.hpp"

namespace galvatron::tools {

namespace {

std::vector<std::string> command_line(const std::string& mpirun, int ranks, const Arguments& arguments, bool replaces) {
  std::vector<std::string> line;
  std::istringstream words(mpirun);
  for (std::string word; words >> word;) line.push_back(word);
  const auto add = [&](std::vector<std::string> option) {
    if (std::ranges::find(line, option.front()) == line.end()) line.insert(line.end(), option.begin(), option.end());
  };
  if (::geteuid() == 0) add({"--allow-run-as-root"});
  add({"--oversubscribe"});
  add({"--bind-to", "none"});
  add({"-np", std::to_string(ranks)});
  if (replaces) line.insert(line.end(), {"-x", JobFolder::variable});
  line.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
  line.push_back("train");
  line.insert(line.end(), arguments.begin(), arguments.end());
  return line;
}

// What mpirun and the MPI library say comes in blocks between lines of dashes, and in lines that begin with the name of
// the host in brackets. The rest is the ranks', and passes.
class Messages {
 public:
  void take(std::string_view bytes) {
    for (const char c : bytes) {
      line_ += c;
      if (c == '\n') take_line();
    }
  }
  void end() {
    if (!line_.empty()) take_line();
  }
  /// A rank has told the user about a failure.
  [[nodiscard]] bool told() const { return told_; }
  /// How ranks ended that are lost, as their guards say it.
  [[nodiscard]] const std::map<int, std::string>& lost() const { return lost_; }
  /// mpirun's own words about the end, in one line: those that name a rank, otherwise the first.
  [[nodiscard]] std::string from_mpirun() const {
    const auto with_rank = std::ranges::find_if(
        blocks_, [](const std::string& block) { return block.find("process rank ") != std::string::npos; });
    if (with_rank != blocks_.end()) return *with_rank;
    return blocks_.empty() ? "" : galvatron::detail::one_line(blocks_.front(), 300);
  }

 private:
  void take_line() {
    const std::string line = std::exchange(line_, "");
    if (line.starts_with("----------")) {
      inside_ = !inside_;
      if (inside_) blocks_.emplace_back();
    } else if (inside_) {
      std::istringstream words(line);
      for (std::string word; words >> word;) blocks_.back() += (blocks_.back().empty() ? "" : " ") + word;
    } else if (line.starts_with(lost_rank_word)) {
      std::istringstream words(line.substr(lost_rank_word.size()));
      int rank = 0;
      std::string how;
      if (words >> rank && std::getline(words >> std::ws, how)) lost_[rank] = how;
    } else if (!line.starts_with("[") && !line.starts_with("mpirun: Forwarding signal")) {
      told_ = told_ || line.starts_with("galvatron: ");
      static_cast<void>(galvatron::detail::write_fully(STDERR_FILENO, line.data(), line.size()));
    }
  }

  std::string line_;
  std::vector<std::string> blocks_;  // each in one line
  bool inside_ = false;
  bool told_ = false;
  std::map<int, std::string> lost_;
};

// Ends a job that has lost ranks, as soon as the others have left what they have, or could not.
class EndOfLoss {
 public:
  EndOfLoss(pid_t mpirun, const Replacement* replacement) : mpirun_(mpirun), replacement_(replacement) {}
  // Now and then.
  void look(const Messages& messages) {
    if (replacement_ == nullptr || messages.lost().empty()) return;
    const double now = steady_seconds();
    if (since_ == 0) {
      since_ = now;
      ::kill(mpirun_, SIGUSR2);  // to all ranks
    } else if (ended_ == 0 && (now - since_ > 4 || replacement_->is_ready(static_cast<int>(messages.lost().size())))) {
      ended_ = now;
      ::kill(mpirun_, SIGTERM);
    } else if (ended_ > 0 && now - ended_ > 3) {
      ::kill(mpirun_, SIGKILL);  // guards end when it is gone
    }
  }
  [[nodiscard]] int patience() const { return since_ > 0 ? 20 : 1000; }  // milliseconds
  [[nodiscard]] double since() const { return since_; }

 private:
  pid_t mpirun_;
  const Replacement* replacement_;
  double since_ = 0;
  double ended_ = 0;
};

struct Streams {
  int out[2] = {-1, -1};
  int err[2] = {-1, -1};
};

[[noreturn]] void become(const std::vector<std::string>& line, const Streams& streams, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  ::setpgid(0, 0);  // Ctrl-C is for the command, which passes it on
  for (const int signal : stop_signals) std::signal(signal, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(streams.out[1], STDOUT_FILENO);
  ::dup2(streams.err[1], STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  std::vector<char*> words;
  for (const std::string& word : line) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  ::execvp(words.front(), words.data());
  ::_exit(127);
}

bool has_processes(pid_t mpirun) {
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(text_of("/proc/", mpirun, "/task"), gone)) {
    std::ifstream children(task.path() / "children");
    for (std::string process; children >> process;) {
      const std::string text = read_text_file("/proc/" + process + "/stat").value_or("");
      const auto end = text.rfind(") ");
      if (end != std::string::npos && text[end + 2] != 'Z') return true;
    }
  }
  return false;
}

// Passes on what the processes write until all have closed their ends. False: mpirun hangs, as Open MPI 4.1.4 may for
// ever when it ends, mostly after a signal: all its processes are gone then, here the ranks, elsewhere their daemons.
bool pass_output(const Streams& streams, Messages& messages, EndOfLoss& loss, pid_t mpirun) {
  std::optional<double> had_processes;  // when it last had some
  std::array<pollfd, 2> ends{{{streams.out[0], POLLIN, 0}, {streams.err[0], POLLIN, 0}}};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    loss.look(messages);
    const int ready = ::poll(ends.data(), ends.size(), loss.patience());
    if (ready == 0 && has_processes(mpirun)) had_processes = steady_seconds();
    if (ready == 0 && had_processes && steady_seconds() - *had_processes > 10) return false;
    if (ready <= 0) continue;  // or a signal
    for (std::size_t i = 0; i < ends.size(); ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(ends[i].fd, buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0)
        ends[i].fd = -1;
      else if (i == 0)
        print({buffer, static_cast<std::size_t>(n)});
      else
        messages.take({buffer, static_cast<std::size_t>(n)});
    }
  }
  return true;
}

}  // namespace

void start_ranks(const std::string& mpirun, int ranks, const Arguments& arguments, const Replacement* replacement) {
  const std::vector<std::string> line = command_line(mpirun, ranks, arguments, replacement != nullptr);
  Streams streams;
  if (::pipe2(streams.out, O_CLOEXEC) != 0 || ::pipe2(streams.err, O_CLOEXEC) != 0)
    throw DeviceFailure(std::string("cannot make a pipe: ") + std::strerror(errno));
  const pid_t self = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) throw DeviceFailure(std::string("cannot start a process: ") + std::strerror(errno));
  if (child == 0) become(line, streams, self);
  const std::atomic<int>& stop_signal = pass_signals_to(child);
  ::close(streams.out[1]);
  ::close(streams.err[1]);
  Messages messages;
  EndOfLoss loss(child, replacement);
  bool hangs = false;
  try {
    hangs = !pass_output(streams, messages, loss, child);
  } catch (...) {  // nobody reads any more
    ::kill(child, SIGTERM);
    ::waitpid(child, nullptr, 0);
    throw;
  }
  messages.end();
  if (hangs) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  for (const int end : {streams.out[0], streams.err[0]}) ::close(end);
  if (loss.since() > 0 && stop_signal == 0) {
    stop_passing_signals();
    return start_ranks(mpirun, replacement->next(messages.lost(), loss.since()), arguments, replacement);
  }
  if (hangs) {
    if (!messages.told())
      complain(line.front() + " did not end when all its processes had, and was killed: how they ended is not known");
    if (stop_signal != 0) end_by_signal(stop_signal);
    throw Exited{static_cast<int>(ErrorKind::machine)};
  }
  stop_passing_signals();
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0) return;
  // mpirun itself ends with 1 when it gets a SIGTERM; ranks with what went wrong, if anything did.
  if (stop_signal != 0 && (code >= 128 || !messages.told())) {
    if (!messages.told()) complain("interrupted");
    end_by_signal(stop_signal);
  }
  const bool interrupted = std::ranges::find(stop_signals, code - 128) != stop_signals.end();  // by a signal to a rank
  if (messages.told()) throw Exited{code <= static_cast<int>(ErrorKind::machine) || interrupted ? code : 4};
  if (code == 127)
    throw Failure(ErrorKind::machine,
                  "cannot start " + line.front() + ": install openmpi-bin, or name it with --mpirun");
  const std::string why = messages.from_mpirun();
  throw Failure(ErrorKind::machine,
                why.empty() ? text_of(line.front(), " ended with exit code ", code, " and said nothing") : why);
}

}  // namespace galvatron::tools
