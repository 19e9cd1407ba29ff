// Runs that are killed again and again, and started again by the same line, until they have all their steps.
//
// GALVATRON_KILLS=200 build/release/tests/test_mpi --source-file='*/mpi/kills.cpp' kills so many runs;
// GALVATRON_SEED=N repeats one. A kill is a SIGTERM, SIGINT, SIGHUP or SIGKILL at a random moment, to the run or to one
// of its ranks; the run is one process with rank threads, `--launcher mpi`, or a bare mpirun.
#include <fcntl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "training.hpp"

namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr int steps = 300;
const std::vector<std::string> launchers{"threads", "launcher mpi", "mpirun"};
const std::map<int, std::string> signals{
    {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGKILL, "SIGKILL"}};

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> out;
  for (std::string word; stream >> word;) out.push_back(word);
  return out;
}

/// The one line that begins a run and goes on with it.
std::vector<std::string> command(const std::string& launcher) {
  std::string line = launcher == "mpirun" ? mpirun(2, "--quiet") : "";
  line += GALVATRON_COMMAND
      " train --plan p.json --data text.txt --steps 300 --lr 0.003 --warmup 4 --quiet --metrics m.jsonl --checkpoint "
      "saved --resume saved --checkpoint-every 7";
  if (launcher == "launcher mpi") line += " --launcher mpi";
  return words_of(line);
}

pid_t start(const Folder& folder, const std::string& launcher) {
  std::vector<std::string> words = command(launcher);
  // Until the child has no handlers of the test program, signals wait.
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const pid_t child = ::fork();
  if (child != 0) {
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return child;
  }
  ::setsid();
  for (const auto& [number, name] : signals) std::signal(number, SIG_DFL);  // nohup may have changed them too
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (::chdir(folder.path().c_str()) != 0) ::_exit(99);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(::open("out", O_WRONLY | O_CREAT | O_TRUNC, 0666), STDOUT_FILENO);
  ::dup2(::open("err", O_WRONLY | O_CREAT | O_TRUNC, 0666), STDERR_FILENO);
  std::vector<char*> values;
  for (std::string& word : words) values.push_back(word.data());
  values.push_back(nullptr);
  ::execvp(values.front(), values.data());
  ::_exit(99);
}

/// Processes that were started in the folder; `rank`: ranks that are processes of their own.
std::vector<pid_t> processes(const Folder& folder, bool rank) {
  std::vector<pid_t> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (fs::read_symlink(entry.path() / "cwd", ignored) != folder.path() || ignored) continue;
    std::string comm;
    std::ifstream(entry.path() / "comm") >> comm;
    std::ifstream environment(entry.path() / "environ", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(environment)), {});
    if (rank && (comm != "galvatron" || text.find("OMPI_COMM_WORLD_RANK=") == std::string::npos)) continue;
    out.push_back(static_cast<pid_t>(std::stoi(name)));
  }
  return out;
}

std::size_t lines(const std::string& text) { return static_cast<std::size_t>(std::ranges::count(text, '\n')); }

template <class F>
bool wait_until(milliseconds longest, F&& ready) {
  const auto end = std::chrono::steady_clock::now() + longest;
  while (!ready()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

}  // namespace

TEST_CASE("runs that are killed at random moments and started by the same line lose nothing") {
  const char* const wanted = std::getenv("GALVATRON_KILLS");
  const int kills = wanted == nullptr ? 12 : std::atoi(wanted);
  const char* const given = std::getenv("GALVATRON_SEED");
  const auto seed = given == nullptr ? std::random_device{}() : static_cast<unsigned>(std::strtoul(given, nullptr, 10));
  MESSAGE("GALVATRON_SEED=" << seed);
  CAPTURE(seed);
  std::mt19937 random(seed);

  const Folder undisturbed;
  undisturbed.write_text();
  undisturbed.write("p.json", small_plan().dump());
  const Ran whole = undisturbed.run(
      "train --plan p.json --data text.txt --steps 300 --lr 0.003 --warmup 4 --quiet --metrics m.jsonl");
  REQUIRE(whole.code == 0);
  const std::vector<std::string> expected = curve(undisturbed.read("m.jsonl"));
  REQUIRE(expected.size() == steps);

  std::map<std::string, int> done;
  int killed = 0;
  int rounds = 0;
  int graceful = 0;  // that had done a step
  int hung = 0;      // mpirun, killed once more
  while (killed < kills) {
    const Folder folder;
    folder.write_text();
    folder.write("p.json", small_plan().dump());
    bool ended = false;
    for (int attempt = 0; attempt < 400 && !ended; ++attempt) {
      const std::string launcher = launchers[random() % launchers.size()];
      const int signal = std::next(signals.begin(), random() % 4)->first;
      const std::size_t before = lines(folder.read("m.jsonl"));
      const pid_t child = start(folder, launcher);
      REQUIRE(child > 0);
      int status = 0;
      bool is_gone = false;
      const bool early = random() % 5 == 0;  // while it starts, or soon after
      const auto has_ended = [&] { return is_gone = is_gone || ::waitpid(child, &status, WNOHANG) == child; };
      if (killed >= kills) {
        wait_until(std::chrono::minutes(5), has_ended);
      } else if (early) {
        wait_until(milliseconds(random() % 900), has_ended);
      } else {
        wait_until(milliseconds(30'000), [&] {
          // What a killed run has done beyond its checkpoint goes from the file when the next one begins.
          const std::string now = folder.read("m.jsonl");
          return has_ended() || (folder.has("saved/lock") && lines(now) > 0 && lines(now) != before);
        });
        wait_until(milliseconds(random() % 250), has_ended);
      }
      if (is_gone) {
        CAPTURE(folder.read("err"));
        REQUIRE(WIFEXITED(status));
        REQUIRE(WEXITSTATUS(status) == 0);
        ended = true;
        break;
      }
      pid_t target = child;
      if (launcher != "threads" && random() % 4 == 0)
        if (const auto ranks = processes(folder, true); !ranks.empty()) target = ranks[random() % ranks.size()];
      ::kill(target, signal);
      ++killed;
      ++done[launcher + " " + signals.at(signal)];
      if (!wait_until(milliseconds(40'000), has_ended)) {
        // mpirun 4.1 may hang when it ends, with all its processes gone; --launcher mpi sees to it.
        REQUIRE(launcher == "mpirun");
        REQUIRE(processes(folder, true).empty());
        ::kill(child, SIGKILL);
        REQUIRE(wait_until(milliseconds(1000), has_ended));
        ++hung;
      }
      REQUIRE(wait_until(milliseconds(20'000), [&] { return processes(folder, false).empty(); }));
      INFO("kill " << killed << ": " << signals.at(signal) << " to "
                   << std::string(target == child ? "the run" : "a rank") << " of " << launcher << ": "
                   << folder.read("err"));
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (code == 0) {
        ended = true;  // it had all its steps
        break;
      }
      if (signal == SIGKILL) continue;
      if (target == child && launcher != "mpirun") CHECK(code == 128 + signal);
      if (target == child && launcher == "mpirun")
        CHECK((code == 1 || code == 128 + SIGTERM));  // its own, or the ranks'
      // In order: what is in the metrics is in a checkpoint.
      const std::string err = folder.read("err");
      const auto at = err.find("interrupted after step ");
      if (at == std::string::npos) {
        // Neither a process that has not begun nor an mpirun without ranks says anything.
        if (launcher != "mpirun" && !early) CHECK(err.find("interrupted") != std::string::npos);
        continue;
      }
      ++graceful;
      const auto step = static_cast<std::size_t>(std::stoi(err.substr(at + 23)));
      CHECK(lines(folder.read("m.jsonl")) == step);
      char name[64];
      std::snprintf(name, sizeof name, "saved/step-%08d/manifest.json", static_cast<int>(step));
      CHECK(folder.has(name));
      CHECK(err.find(std::string(name).substr(0, 19) + ", and the same command goes on after it") != std::string::npos);
    }
    REQUIRE(ended);
    ++rounds;
    CHECK(curve(folder.read("m.jsonl")) == expected);
    for (const auto& entry : fs::directory_iterator(folder.path() / "saved")) {
      CHECK(entry.path().extension() != ".tmp");
      CHECK(entry.path().filename() != "lock");
    }
  }
  std::string table;
  for (const auto& [what, count] : done) table += "\n  " + what + ": " + std::to_string(count);
  MESSAGE(killed << " kills in " << rounds << " runs of " << steps << " steps, " << graceful
                 << " of them with a checkpoint of their last step, " << hung << " hanging mpiruns:" << table);
  CHECK(graceful > 0);
}
