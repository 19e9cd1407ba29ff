// What others take of the cores, by a counter that is made up.
#include <galvatron/cluster/host.hpp>

#include <galvatron/cluster/host.hpp>

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <unistd.h>

#include "../folder.hpp"

using namespace galvatron;

namespace {

/// The counters of 1024 cores that have been busy for so many ticks.
void write_counters(const std::filesystem::path& root, long ticks) {
  std::filesystem::create_directories(root / "proc");
  std::ofstream file(root / "proc/stat");
  file << "cpu  1 1 1 1\n";
  for (int core = 0; core < 1024; ++core) file << "cpu" << core << " " << ticks << " 0 7 1234567 89 0 0 3 5 5\n";
  file << "intr 12 3\nctxt 7\n";
}

}  // namespace

TEST_CASE("busy time of a core is all but idling and waiting for disks") {
  const auto cores = galvatron::detail::busy_ticks(
      "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 20 300 9999 9999 4000 50000 600000 7 7\ncpu3 1 1 1 1\ncpu4 1\ncpux\nintr "
      "5\ncpu5");
  REQUIRE(cores.size() == 2);
  CHECK(cores[0] == std::pair<std::size_t, double>{0, 654321});
  CHECK(cores[1] == std::pair<std::size_t, double>{3, 3});
}

TEST_CASE("others have what is busy beyond one's own") {
  const test::Folder folder;
  write_counters(folder.path, 1000);
  const CoreWatch watch(folder.path);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const long per_second = ::sysconf(_SC_CLK_TCK);
  write_counters(folder.path, 1000 + per_second / 20);  // 50 ms of each core
  const double before = watch.seconds();
  const double nobody = watch.others(0).value();
  const double after = watch.seconds();
  CHECK(nobody <= 0.05 / before * 1.001);
  CHECK(nobody >= 0.05 / after * 0.999);
  // Nothing but this process: whatever its threads took is no others'.
  CHECK(watch.others(0.05 * 1024).value() == 0);
  write_counters(folder.path, 1000 + 1000 * per_second);
  CHECK(watch.others().value() == 1);
  std::filesystem::remove_all(folder.path / "proc");
  CHECK(!watch.others().has_value());
}

TEST_CASE("a process that computes is not its own disturbance") {
  const CoreWatch watch;
  if (!watch.others(0)) return;  // this system does not say
  const double begin = core_seconds_of_process();
  volatile double sum = 0;
  while (watch.seconds() < 0.5)
    for (int i = 0; i < 1000; ++i) sum = sum + i;
  const double with = watch.others(0).value();
  const double without = watch.others().value();
  const double share = (core_seconds_of_process() - begin) / watch.seconds() / usable_cores();
  CHECK(share > 0);
  CHECK(with >= share - 0.1);  // counted in ticks
  CHECK(with - without <= share + 0.1);
  CHECK((without == 0 || with - without >= share - 0.1));
}
