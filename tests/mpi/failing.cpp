// Processes that fail: every job ends, soon, and one process says why.
#include <algorithm>
#include <chrono>
#include <string>

#include "mpirun.hpp"

namespace {

struct Ended {
  int code;
  std::string out;
  double seconds;
};

Ended fail(const std::string& way, int ranks) {
  const Folder folder;
  const auto begin = std::chrono::steady_clock::now();
  const Ran ran = folder.shell(mpirun(ranks) + MPI_FAILURES " " + way);
  CAPTURE(ran.err);
  return {ran.code, ran.out, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()};
}

void check(const std::string& way, int code, const std::string& message, int ranks = 4) {
  const Ended ended = fail(way, ranks);
  CAPTURE(way);
  CHECK(ended.code == code);
  CHECK(ended.out.starts_with(message));
  CHECK(std::ranges::count(ended.out, '\n') == (message.empty() ? 0 : 1));
  CHECK(ended.seconds < 10);
}

}  // namespace

TEST_CASE("a rank that fails ends all, and its message and exit code are those of the job") {
  check("none", 0, "");
  check("throw", 3, "rank 2 failed: the third rank has had enough");
  check("all", 2, "everybody dislikes this");
  check("logic", 1, "rank 0 is confused");
}

TEST_CASE("nobody waits for a rank that computes while another has failed") {
  check("busy", 4, "rank 1 failed: a device melted");
}

TEST_CASE("calls that do not fit together are told with who called what") {
  check("disagree", 1,
        "the members of a group disagree: rank 0 called all_reduce of 12 float, rank 1 called "
        "all_reduce of 30000 float",
        2);
  check("sizes", 1, "rank 1 failed: rank 1 receives a block of 12 bytes, but rank 0 sent one of 10 bytes", 3);
}

TEST_CASE("every wait ends") {
  check(
      "early", 4,
      "rank 0 failed: rank 0 waits in vain: rank 1 did not come to the all_reduce of 12 float of ranks 0 and 1 before "
      "the end",
      2);
  check("late", 4,
        "rank 0 failed: rank 0 gave up after 0.7 s: rank 1 did not come to the all_reduce of 12 float of ranks 0 and 1",
        2);
  check("untaken", 4, "rank 0 failed: rank 0 waits in vain: rank 1 did not take 1 blocks or fewer before the end", 2);
}
