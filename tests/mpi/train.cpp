// galvatron train with ranks that are processes.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "../simulate/trace_check.hpp"
#include "../tools/pipelines_plan.hpp"
#include "training.hpp"

namespace {

using nlohmann::json;

const std::string arguments = "train --plan p.json --data text.txt --steps 5 --lr 0.01 --quiet --json --metrics ";

}  // namespace

TEST_CASE("processes train with the bits of threads, whatever the plan, and use the memory that was predicted") {
  const std::vector<Shape> shapes{
      {.data = 2},
      {.tensor = 2, .data = 2, .zero = 3, .sequence = "megatron"},
      {.stages = 2, .tensor = 2, .microbatches = 2, .sequence = "megatron", .recompute = "full"},
      {.stages = 2, .data = 2, .zero = 2, .microbatches = 2, .schedule = "interleaved"},
      {.stages = 4, .microbatches = 4, .schedule = "zb-h1"},
      {.stages = 2, .tensor = 2, .data = 2, .zero = 1, .microbatches = 2, .schedule = "gpipe"},
      {.stages = 2, .data = 2, .zero = 3, .microbatches = 2, .precision = "bf16"}};
  double one_rank = 0;
  for (const Shape& shape : shapes) {
    const Folder folder;
    folder.write_text();
    folder.write("p.json", plan_of(shape).dump());
    CAPTURE(plan_of(shape).dump());
    const Ran threads = folder.run(arguments + "t.jsonl");
    if (threads.code == 4 && threads.err.find("bf16") != std::string::npos) continue;  // not on this processor
    CAPTURE(threads.err);
    REQUIRE(threads.code == 0);
    const Ran processes = folder.run(arguments + "p.jsonl --launcher mpi");
    CAPTURE(processes.err);
    REQUIRE(processes.code == 0);
    CHECK(processes.err.empty());
    const auto expected = curve(folder.read("t.jsonl"));
    REQUIRE(expected.size() == 5);
    CHECK(curve(folder.read("p.jsonl")) == expected);
    const json report = processes.json();
    CHECK(report.at("measured_peak_bytes").size() == static_cast<std::size_t>(shape.ranks()));
    CHECK(report.at("measured_peak_bytes") == report.at("predicted_peak_bytes"));
    CHECK(report.at("measured_peak_bytes") == threads.json().at("measured_peak_bytes"));
    if (std::string(shape.precision) != "fp32") continue;
    if (one_rank == 0) {
      folder.write("p.json", plan_of({}).dump());
      one_rank = folder.run(arguments + "o.jsonl").json().at("last_loss").get<double>();
    }
    CHECK(std::fabs(report.at("last_loss").get<double>() - one_rank) < 1e-5 * one_rank);
  }
}

TEST_CASE("mpirun starts ranks without an option, and one of them speaks") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.data = 2}).dump());
  const Ran ran = folder.shell(mpirun(2) + "$G " + arguments + "m.jsonl");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.err.empty());
  CHECK(ran.json().at("plan").at("stages")[0].at("ranks")[1] == 2);  // one object, or this would not parse
  CHECK(curve(folder.read("m.jsonl")).size() == 5);
  const Ran words = folder.shell(mpirun(2) + "$G train --plan p.json --data text.txt --steps 2 --quiet");
  CHECK(words.out.starts_with("Trained gpt2-tiny for 2 steps on 2 ranks"));
  CHECK(words.out.find("Trained", 1) == std::string::npos);
  const Ran help = folder.shell(mpirun(2) + "$G train --help");
  CHECK(help.code == 0);
  CHECK(help.out == folder.run("train --help").out);
}

TEST_CASE("processes are traced and reported beside their prediction") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.stages = 2, .data = 2, .microbatches = 2}).dump());
  const Ran ran = folder.run(arguments + "m.jsonl --launcher mpi --trace t.json --report r.html");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("trace") == "t.json");
  const json trace = json::parse(folder.read("t.json"));
  CHECK(check_trace(trace) > 0);
  std::vector<int> forwards(4);
  std::vector<std::string> names(4);
  for (const json& event : trace.at("traceEvents")) {
    const auto process = event.at("pid").get<std::size_t>();
    if (process >= names.size()) continue;
    if (event.at("name") == "process_name") names[process] = event.at("args").at("name");
    if (event.at("ph") == "X" && event.at("cat") == "forward") ++forwards[process];
  }
  for (const std::string& name : names) CHECK(name.find("measured") != std::string::npos);
  CHECK(forwards == std::vector<int>(4, 2));
  CHECK(folder.read("r.html").find("rank 2, measured") != std::string::npos);  // the first of the second stage
}

TEST_CASE("--auto searches once for all processes") {
  const Folder folder;
  folder.write_text();
  const Ran ran = folder.run(
      "train --auto --profile-seconds 0.02 --on-busy accept --model gpt2-tiny --data text.txt --steps 2 --global-batch "
      "4 --seq 16 "
      "--ranks 2 --precision fp32 --save-plan q.json --launcher mpi --quiet --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("plan") == json::parse(folder.read("q.json")));
  CHECK(ran.json().at("measured_peak_bytes").size() == 2);
  check_failure(folder.run("train --auto --cluster host --model gpt2-tiny --data text.txt --steps 2 --global-batch 4 "
                           "--seq 16 --ranks 2 --memory 1MiB --launcher mpi --quiet"),
                3, "fits 1.00 MiB a device");
}

TEST_CASE("processes are profiled together, and what they write is planned for and trained") {
  const Folder folder;
  folder.write_text();
  const std::string profile = "$G profile --seconds 0.05 --precision fp32 --on-busy accept --quiet --json --out ";
  const Ran ran = folder.shell(mpirun(2) + profile + "c.json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("ranks") == 2);
  CHECK(json::parse(folder.read("c.json")).at("messages").size() > 0);
  const Ran planned =
      folder.run("plan --model gpt2-tiny --cluster c.json --global-batch 4 --seq 16 --out p.json --quiet");
  CAPTURE(planned.err);
  REQUIRE(planned.code == 0);
  CHECK(folder.run(arguments + "m.jsonl --launcher mpi").code == 0);
  const Ran unequal = folder.shell(mpirun(2) + profile + "u.json --unequal");
  CAPTURE(unequal.err);
  REQUIRE(unequal.code == 0);
  const Ran again = folder.run("plan --model gpt2-tiny --cluster u.json --global-batch 4 --seq 16 --quiet --json");
  CHECK(again.code == 0);
  check_failure(folder.shell(mpirun(2, "--quiet") + "$G profile --ranks 3 --quiet"), 2, "2 processes: start as many");
}

TEST_CASE("bad input is told once, with what would fit") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.data = 2}).dump());
  const std::string base = "train --plan p.json --steps 2 --data ";
  for (const int ranks : {1, 3}) {
    const Ran ran = folder.shell(mpirun(ranks, "--quiet") + "$G " + base + "text.txt");
    check_failure(ran, 2, "but the plan has 2 ranks; use mpirun -np 2, or make a plan for " + std::to_string(ranks));
  }
  check_failure(folder.shell(mpirun(2, "--quiet") + "$G " + base + "text.txt --launcher threads"), 2,
                "mpirun has started 2 processes");
  check_failure(folder.run(base + "missing.txt --launcher mpi"), 2, "cannot read missing.txt");
  check_failure(folder.run(base + "text.txt --launcher mpi --ranks 5"), 2, "--ranks says 5");
  check_failure(folder.run(base + "text.txt --launcher mpi --mpirun nobody"), 4, "cannot start nobody");
  const Ran with_json = folder.run(base + "missing.txt --launcher mpi --json");
  CHECK(with_json.code == 2);
  CHECK(with_json.json().at("exit_code") == 2);
}

TEST_CASE("an error on one rank is told with its number") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.data = 2}).dump());
  const std::string base = "$G train --plan p.json --steps 50 --data ";
  const Ran ran = folder.shell(mpirun(1, "--quiet") + base + "text.txt --json : -np 1 " + base + "missing.txt --json");
  CAPTURE(ran.err);
  CHECK(ran.code == 2);
  CHECK(ran.err.find("galvatron: rank 1 failed: cannot read missing.txt") != std::string::npos);
  CHECK(ran.json().at("exit_code") == 2);
}

TEST_CASE("a rank that is killed ends the job, which says so and leaves nothing behind") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.stages = 2, .tensor = 2, .microbatches = 2}).dump());
  const std::string train = "$G train --plan p.json --data text.txt --steps 1000000 --quiet --json --metrics m.jsonl ";
  const std::string kill = R"shell(
"$@" > out.json & job=$!
wait_for m.jsonl
kill -9 $(pid_of 2)
begin=$(date +%s); wait $job; echo "code $?"; echo "seconds $(($(date +%s) - begin))"; echo "left $(left)"; cat out.json
)shell";
  const auto check = [&](const std::string& command, const std::string& script, int code, const std::string& who) {
    folder.write("m.jsonl", "");
    const Ran ran = folder.shell(process_functions + "set -- " + command + script);
    CAPTURE(ran.err);
    CAPTURE(ran.out);
    CHECK(ran.out.starts_with("code " + std::to_string(code) + "\n"));
    const auto after = ran.out.find("seconds ");
    REQUIRE(after != std::string::npos);
    CHECK(std::stoi(ran.out.substr(after + 8)) <= 10);
    CHECK(ran.out.find("left 0\n") != std::string::npos);
    if (code != 4) return;
    const json told = json::parse(ran.out.substr(ran.out.find('{')));
    CHECK(told.at("exit_code") == 4);
    CHECK(told.at("error").get<std::string>().find(who) != std::string::npos);
    CHECK(ran.err.find("galvatron: ") != std::string::npos);
    CHECK(ran.err.find("galvatron: ", ran.err.find("galvatron: ") + 1) == std::string::npos);
  };
  check(train + "--launcher mpi", kill, 4, "rank 2 on ");
  check(mpirun(4) + train, kill, 4, "rank 2 on ");
  check(mpirun(4, "--mca btl tcp,self") + train, kill, 4, "rank 2 on ");
  // The guard of a rank: mpirun itself says which.
  std::string guard = kill;
  guard.replace(guard.find("$(pid_of 2)"), 11, "$(cut -d' ' -f4 /proc/$(pid_of 2)/stat)");
  check(train + "--launcher mpi", guard, 4, "rank 2 ");
  // The command that started mpirun.
  std::string starter = kill;
  starter.replace(starter.find("$(pid_of 2)"), 11, "$job");
  check(train + "--launcher mpi", starter, 137, "");
}

TEST_CASE("checkpoints of processes are those of threads, and the last one outlives a killed rank") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of({.stages = 2, .data = 2, .zero = 2, .microbatches = 2}).dump());
  folder.write("q.json", plan_of({.tensor = 2}).dump());
  folder.write("m.jsonl", "");
  const Ran ran = folder.shell(process_functions + R"shell(
$G train --plan p.json --data text.txt --steps 1000000 --lr 0.01 --warmup 0 --quiet --launcher mpi --metrics m.jsonl \
  --checkpoint kept --checkpoint-every 5 & job=$!
for attempt in $(seq 300); do [ -e kept/step-00000010 ] && break; sleep 0.1; done
kill -9 $(pid_of 1)
wait $job; echo "code $?"
ls kept | grep -v tmp | tail -1 | tr -dc 0-9 | sed 's/^0*//'
)shell");
  CAPTURE(ran.err);
  CAPTURE(ran.out);
  REQUIRE(ran.out.starts_with("code 4\n"));
  const std::int64_t done = std::stoll(ran.out.substr(7));
  REQUIRE(done >= 10);
  const std::string more = " --data text.txt --quiet --json --resume kept --steps " + std::to_string(done + 3);
  const Ran threads = folder.run("train --plan q.json" + more + " --metrics t.jsonl");
  CAPTURE(threads.err);
  REQUIRE(threads.code == 0);
  CHECK(threads.json().at("first_step") == done + 1);
  const Ran processes = folder.run("train --plan q.json --launcher mpi" + more + " --metrics u.jsonl");
  CAPTURE(processes.err);
  REQUIRE(processes.code == 0);
  CHECK(curve(folder.read("u.jsonl")) == curve(folder.read("t.jsonl")));
  CHECK(curve(folder.read("u.jsonl")).size() == 3);
}

TEST_CASE("several pipelines train on processes with the bits of threads, in the bytes that were predicted") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", pipelines_plan().dump());
  const Ran threads = folder.run(arguments + "t.jsonl");
  CAPTURE(threads.err);
  REQUIRE(threads.code == 0);
  const Ran processes = folder.run(arguments + "p.jsonl --launcher mpi --checkpoint saved");
  CAPTURE(processes.err);
  REQUIRE(processes.code == 0);
  CHECK(curve(folder.read("t.jsonl")).size() == 5);
  CHECK(curve(folder.read("p.jsonl")) == curve(folder.read("t.jsonl")));
  CHECK(processes.json().at("measured_peak_bytes") == processes.json().at("predicted_peak_bytes"));
  CHECK(folder.has("saved/step-00000005/rank-0003.safetensors"));
}

TEST_CASE("several tasks train on processes with the bits of threads, by a plan and with --auto") {
  const Folder folder;
  REQUIRE(folder.run("plan --model clip-toy --cluster 4xa100-80g --precision fp32 --out plan.json").code == 0);
  const std::string tasks = "train --plan plan.json --data synthetic --steps 5 --quiet --json --metrics ";
  const Ran threads = folder.run(tasks + "t.jsonl");
  CAPTURE(threads.err);
  REQUIRE(threads.code == 0);
  const Ran processes = folder.run(tasks + "p.jsonl --launcher mpi --trace t.json --report r.html --checkpoint saved");
  CAPTURE(processes.err);
  REQUIRE(processes.code == 0);
  CHECK(processes.err.empty());
  CHECK(curve(folder.read("p.jsonl")) == curve(folder.read("t.jsonl")));
  CHECK(processes.json().at("measured_peak_bytes") == threads.json().at("measured_peak_bytes"));
  CHECK(folder.has("saved/step-00000005/rank-0003.safetensors"));
  CHECK(folder.read("r.html").find("Measured in step 5") != std::string::npos);
  const Ran automatic =
      folder.shell(mpirun(2) +
                   "$G train --auto --model clip-toy --precision fp32 --profile-seconds 0.5 --on-busy "
                   "accept --data synthetic --steps 3 --quiet --json");
  CAPTURE(automatic.err);
  REQUIRE(automatic.code == 0);
  CHECK(automatic.json().at("plan").at("ranks") == 2);
  check_failure(folder.shell(mpirun(2, "--quiet") + "$G train --plan plan.json --data synthetic --steps 1 --quiet"), 2,
                "4 ranks");
}
