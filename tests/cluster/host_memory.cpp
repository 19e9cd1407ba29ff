// What may be taken of a machine's memory, on machines that are made up of files.
#include <galvatron/cluster/host.hpp>

#include <galvatron/cluster/presets.hpp>

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "../folder.hpp"

using namespace galvatron;

namespace {

struct Machine {
  test::Folder folder;

  Machine() {
    write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1000000 kB\nMemAvailable:    8388608 kB\n"
          "CommitLimit:     4194304 kB\nCommitted_AS:    3145728 kB\n");
  }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder.path / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
  }
  [[nodiscard]] UsableMemory memory() const { return usable_memory(0, folder.path); }
};

constexpr const char* mounts_v2 = "35 31 0:32 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* mounts_v1 =
    "20 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    "33 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
    "34 31 0:31 / /sys/fs/cgroup/memory rw,nosuid shared:3 - cgroup cgroup rw,memory\n";

bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("without limits it is what is available, not what is installed") {
  const Machine machine;
  CHECK(machine.memory().bytes == 8_GiB);
  CHECK(has(machine.memory().bound, "8.00 GiB of this machine's 16.0 GiB are available"));
  // Older kernels and other systems do not say; then it is what is installed.
  machine.write("proc/meminfo", "MemTotal: 16777216 kB\n");
  CHECK(machine.memory().bytes > 8_MiB);
  CHECK(has(machine.memory().bound, "this machine has"));
}

TEST_CASE("cgroup v2: the least of the own group and of all above it, page cache not counted") {
  const Machine machine;
  const std::string root = "sys/fs/cgroup/";
  machine.write("proc/self/mountinfo", mounts_v2);
  machine.write("proc/self/cgroup", "0::/system.slice/job.service/step\n");
  machine.write(root + "system.slice/job.service/step/memory.max", "max\n");
  machine.write(root + "system.slice/job.service/memory.max", "4294967296\n");
  machine.write(root + "system.slice/job.service/memory.current", "2147483648\n");
  machine.write(
      root + "system.slice/job.service/memory.stat",
      "anon 1\nfile 1073741824\nactive_file 536870912\ninactive_file 268435456\nslab_reclaimable 268435456\n");
  CHECK(machine.memory().bytes == 3_GiB);
  CHECK(machine.memory().bound == "the control group /system.slice/job.service allows 4.00 GiB and uses 1.00 GiB");
  // Systemd's MemoryHigh is a limit, too: beyond it programs crawl.
  machine.write(root + "system.slice/memory.max", "max\n");
  machine.write(root + "system.slice/memory.high", "2147483648\n");
  CHECK(machine.memory().bytes == 2_GiB);
  CHECK(has(machine.memory().bound, "/system.slice allows 2.00 GiB"));
  // The limit of a group that holds less than the machine has does not count against what others hold.
  machine.write(root + "system.slice/memory.high", "max\n");
  machine.write(root + "system.slice/job.service/memory.max", "1099511627776\n");
  CHECK(machine.memory().bytes == 8_GiB);
  machine.write(root + "system.slice/job.service/memory.max", "1073741824\n");  // less than it uses, for the moment
  CHECK(machine.memory().bytes == Bytes{0});
}

TEST_CASE("cgroup v1: the job of a scheduler") {
  const Machine machine;
  const std::string group = "sys/fs/cgroup/memory/slurm/uid_0/job_7/";
  machine.write("proc/self/mountinfo", mounts_v1);
  machine.write("proc/self/cgroup", "5:cpuset:/elsewhere\n4:memory:/slurm/uid_0/job_7/step_0\n0::/\n");
  machine.write(group + "step_0/memory.limit_in_bytes", "9223372036854771712\n");  // none
  machine.write(group + "memory.limit_in_bytes", "3221225472\n");
  machine.write(group + "memory.usage_in_bytes", "1610612736\n");
  machine.write(group + "memory.stat", "cache 1\ntotal_active_file 268435456\ntotal_inactive_file 268435456\n");
  CHECK(machine.memory().bytes == 2_GiB);
  CHECK(has(machine.memory().bound, "the control group /slurm/uid_0/job_7 allows 3.00 GiB and uses 1.00 GiB"));
}

TEST_CASE("in a container the group is the top of what is mounted") {
  const Machine machine;
  machine.write("proc/self/cgroup", "4:memory:/docker/0123\n");
  machine.write("proc/self/mountinfo",
                "34 31 0:31 /docker/0123 /sys/fs/cgroup/memory\\040here ro - cgroup cgroup rw,memory\n");
  machine.write("sys/fs/cgroup/memory here/memory.limit_in_bytes", "1073741824\n");
  CHECK(machine.memory().bytes == 1_GiB);
  // Under a namespace whose top is below, nothing above the mount is looked at.
  machine.write("proc/self/cgroup", "4:memory:/../../secret\n");
  machine.write("proc/self/mountinfo", "34 31 0:31 / /sys/fs/cgroup/memory\\040here ro - cgroup cgroup rw,memory\n");
  machine.write("sys/fs/secret/memory.limit_in_bytes", "1\n");
  CHECK(machine.memory().bytes == 1_GiB);
}

TEST_CASE("a machine that does not overcommit has what is not committed") {
  const Machine machine;
  machine.write("proc/sys/vm/overcommit_memory", "0\n");
  CHECK(machine.memory().bytes == 8_GiB);
  machine.write("proc/sys/vm/overcommit_memory", "2\n");
  CHECK(machine.memory().bytes == 1_GiB);
  CHECK(has(machine.memory().bound, "vm.overcommit_memory"));
}

TEST_CASE("any text in these files gives a figure") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const std::string pieces[] = {"0::/",
                                "4:memory:",
                                "/a",
                                "/..",
                                "\n",
                                " ",
                                "-",
                                " - ",
                                "cgroup2",
                                "cgroup",
                                "memory,",
                                "max",
                                "9223372036854775807",
                                "99999999999999999999",
                                "-1",
                                "MemTotal:",
                                "MemAvailable:",
                                "CommitLimit:",
                                "active_file",
                                "\\040",
                                "\\9",
                                "\\",
                                ":",
                                "kB",
                                std::string(1, '\0'),
                                "\xff"};
  const auto text = [&] {
    std::string out;
    for (int n = static_cast<int>(random() % 40); n > 0; --n) out += pieces[random() % std::size(pieces)];
    return out;
  };
  const Machine machine;
  for (int n = 0; n < 300; ++n) {
    machine.write("proc/meminfo", text());
    machine.write("proc/self/cgroup", (random() % 2 ? "0::/a" : "4:memory:/a") + text());
    machine.write("proc/self/mountinfo", random() % 2 ? text() : random() % 2 ? mounts_v2 : mounts_v1);
    machine.write("proc/sys/vm/overcommit_memory", random() % 2 ? "2" : text());
    for (const std::string group : {"", "/a"})
      for (const std::string file : {"/memory.max", "/memory.current", "/memory.stat"})
        machine.write("sys/fs/cgroup" + group + file, text());
    const UsableMemory memory = machine.memory();
    CHECK(memory.bytes >= Bytes{0});
    CHECK(!memory.bound.empty());
    CHECK(!has(memory.bound, "\n"));
  }
}

TEST_CASE("a host's ranks share what is free, and not quite all of it") {
  const Bytes before = usable_memory(4).bytes;
  const Bytes rank = host_cluster(4, 2).device.memory;
  const Bytes after = usable_memory(4).bytes;
  CHECK(4 * rank.count <= 0.96 * static_cast<double>(max(before, after).count));
  CHECK(4 * rank.count >= 0.94 * static_cast<double>(min(before, after).count) - (4 << 20));
}
