// Signals to runs whose ranks are processes, and ranks that hang.
#include <cstdint>
#include <string>

#include "training.hpp"

namespace {

const std::string train =
    "$G train --plan p.json --data text.txt --steps 1000000 --quiet --metrics m.jsonl --checkpoint saved "
    "--checkpoint-every 1000 ";

// Starts `command`, does `then` after its first steps, and waits for its end.
Ran disturbed(const Folder& folder, const std::string& command, const std::string& then) {
  folder.write_text();
  folder.write("p.json", plan_of({.stages = 2, .data = 2, .microbatches = 2}).dump());
  return folder.shell(process_functions + "rm -rf saved m.jsonl; set -- " + command + R"shell(
env --default-signal=INT,HUP "$@" > out.txt & job=$!
wait_for m.jsonl
)shell" + then + R"shell(
begin=$(date +%s); wait $job; echo "code $?"; echo "seconds $(($(date +%s) - begin))"; echo "left $(left)"
)shell");
}

void check_ended(const Folder& folder, const std::string& command, const std::string& then, int code) {
  const Ran ran = disturbed(folder, command, then);
  CAPTURE(command);
  CAPTURE(then);
  CAPTURE(ran.out);
  CAPTURE(ran.err);
  CHECK(ran.out.starts_with("code " + std::to_string(code) + "\n"));
  CHECK(ran.out.find("left 0\n") != std::string::npos);
  const auto done = curve(folder.read("m.jsonl")).size();
  const std::string digits = std::to_string(done);
  const std::string name = "saved/step-" + std::string(8 - digits.size(), '0') + digits;
  CHECK(ran.err.find("galvatron: interrupted after step " + digits + " of 1000000; its checkpoint is " + name +
                     ", and --resume saved goes on after it\n") != std::string::npos);
  CHECK(folder.has(name + "/manifest.json"));
  CHECK(folder.has(name + "/rank-0003.safetensors"));
}

}  // namespace

TEST_CASE("signals end ranks that are processes after their step, with a checkpoint") {
  const Folder folder;
  for (const auto& [name, number] : {std::pair("TERM", 15), {"INT", 2}, {"HUP", 1}})
    check_ended(folder, train + "--launcher mpi", "kill -" + std::string(name) + " $job", 128 + number);
  // SIGTERM to the ranks, whose step may take more than the second that mpirun gives them; its own exit code.
  check_ended(folder, mpirun(4, "--mca odls_base_sigkill_timeout 5") + train, "kill -TERM $job", 1);
  check_ended(folder, mpirun(4) + train, "kill -USR1 $job", 138);  // which mpirun forwards
  check_ended(folder, mpirun(4) + train, "kill -TERM $(pid_of 2)", 143);
  // A guard passes it on.
  check_ended(folder, train + "--launcher mpi", "kill -INT $(cut -d' ' -f4 /proc/$(pid_of 1)/stat)", 130);
}

TEST_CASE("a rank that hangs ends the job after --rank-timeout") {
  const Folder folder;
  for (const std::string& command : {train + "--launcher mpi", mpirun(4, "--quiet") + train}) {
    const Ran ran = disturbed(folder, command + " --rank-timeout 1.5", "kill -STOP $(pid_of 1)");
    CAPTURE(ran.out);
    CAPTURE(ran.err);
    CHECK(ran.out.starts_with("code 4\n"));
    CHECK(ran.err.find(" gave up after 1.5 s: rank") != std::string::npos);
    const auto after = ran.out.find("seconds ");
    REQUIRE(after != std::string::npos);
    CHECK(std::stoi(ran.out.substr(after + 8)) <= 15);
    CHECK(ran.out.find("left 0\n") != std::string::npos);
  }
}

TEST_CASE("an mpirun that does not end when its processes have is ended") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.data = 2}).dump());
  folder.write("hanging", "#!/bin/sh\nsleep 2 & wait\nexec sleep 1000\n");
  const Ran ran = folder.shell("chmod +x hanging; timeout 60 " + train + "--launcher mpi --mpirun ./hanging");
  check_failure(ran, 4, "./hanging did not end when all its processes had, and was killed");
}
