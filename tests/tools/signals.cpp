// train, when it is told to end, started again, or disturbed by others: signals, locks, full disks, hanging ranks.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "../sanitized.hpp"
#include "run.hpp"

namespace {

using nlohmann::json;

/// A run of many steps, to which `then` happens after its first one.
Ran run_until(const Folder& folder, const std::string& options, const std::string& then) {
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  std::filesystem::remove(folder.path() / "m.jsonl");
  return folder.shell(
      "env --default-signal=INT,HUP $G train --plan p.json --data text.txt --steps 1000000 --metrics m.jsonl --quiet " +
      options + " & until [ -s m.jsonl ] || ! kill -0 $!; do sleep 0.02; done; " + then + "; wait $!");
}

std::int64_t lines(const std::string& text) { return std::ranges::count(text, '\n'); }

std::string checkpoint_name(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return "saved/step-" + std::string(8 - digits.size(), '0') + digits;
}

}  // namespace

TEST_CASE("SIGTERM, SIGINT and SIGHUP end a run after its step, with a checkpoint and a line that is true") {
  for (const auto& [name, number] : {std::pair("TERM", 15), {"INT", 2}, {"HUP", 1}}) {
    CAPTURE(name);
    const Folder folder;
    const Ran ran =
        run_until(folder, "--checkpoint saved --tensorboard tb", "sleep 0.1; kill -" + std::string(name) + " $!");
    CAPTURE(ran.err);
    CHECK(ran.code == 128 + number);
    CHECK(ran.out.starts_with("Trained gpt2-tiny for "));
    const std::int64_t done = lines(folder.read("m.jsonl"));
    CHECK(ran.err.starts_with("galvatron: interrupted after step " + std::to_string(done) +
                              " of 1000000; its checkpoint is " + checkpoint_name(done) +
                              ", and --resume saved goes on after it\n"));
    CHECK(folder.has(checkpoint_name(done) + "/manifest.json"));
    CHECK_FALSE(folder.has("saved/lock"));
    const std::string more = "train --plan p.json --data text.txt --resume saved --json --warmup 0 --steps ";
    const Ran resumed = folder.run(more + std::to_string(done + 2));
    REQUIRE(resumed.code == 0);
    CHECK(resumed.json().at("first_step") == done + 1);
  }
}

TEST_CASE("without --checkpoint an interrupted run says that nothing is kept; --json has what was done") {
  const Folder folder;
  const Ran ran = run_until(folder, "--json", "kill $!");
  CHECK(ran.code == 128 + 15);
  CHECK(ran.json().at("interrupted") == true);
  CHECK(ran.json().at("steps") == lines(folder.read("m.jsonl")));
  CHECK(ran.err.starts_with("galvatron: interrupted after step "));
  CHECK(ran.err.find("; without --checkpoint nothing of it is kept\n") != std::string::npos);
}

TEST_CASE("a run that is interrupted while it begins says so") {
  const Folder folder;
  folder.write_text();
  const Ran ran = folder.shell(
      "$G train --auto --model gpt2-tiny --data text.txt --steps 5 --global-batch 4 --seq 16 --profile-seconds 60 "
      "--json & sleep 1; kill $!; wait $!");
  CHECK(ran.code == 128 + 15);
  CHECK(ran.out.empty());
  CHECK(ran.err.find("galvatron: interrupted before training began\n") != std::string::npos);
}

TEST_CASE("a second signal ends a run in the middle of its step") {
  const Folder folder;
  folder.write_text();
  json plan = small_plan();
  plan["global_batch"] = 40'000;  // minutes
  plan["microbatches"] = 10'000;
  folder.write("p.json", plan.dump());
  const Ran ran = folder.shell(
      "$G train --plan p.json --data text.txt --steps 3 --checkpoint saved & until [ -e saved/lock ] || ! kill -0 $!; "
      "do sleep 0.02; done; sleep 2; kill $!; sleep 1.5; begin=$(date +%s); kill $!; wait $!; code=$?; "
      "echo $(($(date +%s) - begin)); exit $code");
  CAPTURE(ran.err);
  CHECK(ran.code == 128 + 15);
  CHECK(std::stoi(ran.out) <= 2);
  CHECK(ran.err.find("Interrupted: training ends after this step, with a checkpoint; once more ends it at once.\n"
                     "galvatron: interrupted twice, and ended at once\n") != std::string::npos);
}

TEST_CASE("signals that come together are one") {
  const Folder folder;
  const Ran twice = run_until(folder, "--checkpoint saved", "kill $!; kill -INT $!");
  CHECK((twice.code == 128 + 15 || twice.code == 128 + 2));
  CHECK(folder.has(checkpoint_name(lines(folder.read("m.jsonl"))) + "/manifest.json"));
}

TEST_CASE("one command line begins a run, goes on with it and finds it finished") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string line =
      "train --plan p.json --data text.txt --steps 6 --checkpoint saved --resume saved --metrics m.jsonl";
  const Ran first = folder.run(line);
  CAPTURE(first.err);
  CHECK(first.code == 0);
  CHECK(first.err.starts_with("There is no checkpoint in saved yet: a new run begins.\n"));
  const Ran again = folder.run(line);
  CHECK(again.code == 0);
  CHECK(again.out == "Nothing to do: saved has all 6 steps\n");
  std::filesystem::create_directories(folder.path() / "empty");
  CHECK(folder.run("train --plan p.json --data text.txt --steps 2 --checkpoint empty --resume ./empty/").code == 0);
  CHECK(folder.has("empty/step-00000002/manifest.json"));
  // What another folder lacks is no reason to begin anew.
  check_failure(folder.run("train --plan p.json --data text.txt --steps 2 --checkpoint other --resume nothing"), 2,
                "nothing: No such file");
  CHECK_FALSE(folder.has("other"));
  // Weights to begin with, which only the first of these runs reads.
  const std::string tuned =
      "train --plan p.json --data text.txt --init-from saved --checkpoint tuned --resume tuned --json --steps ";
  const Ran begun = folder.run(tuned + "2");
  REQUIRE(begun.code == 0);
  CHECK(begun.json().at("first_step") == 1);
  const Ran gone_on = folder.run(tuned + "4");
  REQUIRE(gone_on.code == 0);
  CHECK(gone_on.json().at("first_step") == 3);
}

TEST_CASE("a damaged checkpoint is passed over, also by a run that was finished") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string line = "train --plan p.json --data text.txt --steps 4 --checkpoint-every 2 --checkpoint saved ";
  REQUIRE(folder.run(line + "--metrics whole.jsonl").code == 0);
  const std::string shard = checkpoint_name(4) + "/rank-0001.safetensors";
  const std::string good = folder.read(shard);
  std::string bytes = good;
  bytes[bytes.size() / 2] ^= 1;
  folder.write(shard, bytes);
  folder.write("m.jsonl", folder.read("whole.jsonl"));
  const Ran ran = folder.run(line + "--resume saved --json --metrics m.jsonl");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(ran.err.starts_with("Passed over a newer checkpoint: " + shard + " is damaged: its checksum is "));
  CHECK(ran.err.find(". The run goes on after " + checkpoint_name(2) + ".\n") != std::string::npos);
  CHECK(ran.json().at("first_step") == 3);
  CHECK(folder.read(shard) == good);  // written again, with the same bits
  CHECK(lines(folder.read("m.jsonl")) == 4);
  CHECK(folder.run(line + "--resume saved").out == "Nothing to do: saved has all 4 steps\n");
}

TEST_CASE("a second run in a folder ends at once and names the first") {
  const Folder folder;
  const Ran ran = run_until(
      folder, "--checkpoint saved",
      "begin=$(date +%s%N); $G train --plan p.json --data text.txt --steps 9 --checkpoint saved --resume saved "
      "2> second; echo \"code $? after $(($(date +%s%N) - begin))\"; echo \"pid $!\"; kill $!");
  CAPTURE(ran.out);
  CHECK(ran.code == 128 + 15);
  CHECK(ran.out.starts_with("code 2 after "));
  const std::string pid =
      ran.out.substr(ran.out.find("pid ") + 4, ran.out.find('\n', ran.out.find("pid ")) - ran.out.find("pid ") - 4);
  const std::string second = folder.read("second");
  CAPTURE(second);
  CHECK(second.starts_with("galvatron: --checkpoint: saved is in use by process " + pid + " on "));
  CHECK(lines(second) == 1);
}

TEST_CASE("metrics that cannot be written any more end a run after a checkpoint") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base = "train --plan p.json --data text.txt --steps 1000 --checkpoint saved --quiet --metrics ";
  const Ran full = folder.run(base + "/dev/full");
  check_failure(full, 2, "galvatron: cannot write /dev/full: No space left on device; saved/step-");
  CHECK(full.err.find(" is the newest checkpoint, and --resume saved goes on after it\n") != std::string::npos);
  const Ran more = folder.run("train --plan p.json --data text.txt --steps 1000 --resume saved --json");
  REQUIRE(more.code == 0);
  CHECK(more.json().at("first_step").get<int>() > 1);

  // A limit of the size of files, which the metrics reach first.
  const std::string line = "{\"step\":1,\"loss\":1,\"gradient_norm\":1}\n";
  folder.write("m.jsonl", line + std::string((8 << 20) - 1000, 'x') + "\n");
  const Ran limited = folder.shell("rm -r saved; bash -c \"ulimit -f 8192; exec $G " + base + "m.jsonl\"");
  check_failure(limited, 2, "galvatron: cannot write m.jsonl: File too large; saved/step-");
  CHECK(folder.read("m.jsonl").ends_with("}\n"));
}

TEST_CASE("a limit of the size of files ends a run with one line, and no half of a checkpoint") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string line = "train --plan p.json --data text.txt --checkpoint saved --resume saved --quiet --steps ";
  const Ran first = folder.shell("bash -c \"ulimit -f 64; exec $G " + line + "20\"");
  CHECK(first.code == 2);
  CHECK(first.err.find("galvatron: cannot write saved/step-00000002.tmp/rank-") != std::string::npos);
  CHECK(first.err.ends_with("File too large\n"));
  CHECK_FALSE(folder.has("saved"));
  REQUIRE(folder.run(line + "4").code == 0);
  const Ran second = folder.shell("bash -c \"ulimit -f 64; exec $G " + line + "20\"");
  check_failure(second, 2,
                "File too large; saved/step-00000004 is the newest checkpoint, and the same command goes on");
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() / "saved"))
    CHECK(entry.path().extension() != ".tmp");
  CHECK(folder.run(line + "6").code == 0);
}

TEST_CASE("a file of --metrics that is something else is refused and stays") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  folder.write("notes.txt", "one\ntwo\n");
  check_failure(folder.run("train --plan p.json --data text.txt --steps 2 --metrics notes.txt"), 2,
                "--metrics: notes.txt has 2 lines, which are not metrics of a run");
  CHECK(folder.read("notes.txt") == "one\ntwo\n");
}

TEST_CASE("a machine without memory ends a run with one line, wherever it is noticed" *
          doctest::skip(galvatron::test::sanitized)) {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  // What the libraries map differs from machine to machine, so that the limits go from too little to enough.
  int told = 0;
  for (int mebibytes = 96; mebibytes < 260; mebibytes += 12) {
    const Ran ran = folder.shell("bash -c \"ulimit -v " + std::to_string(mebibytes * 1024) +
                                 "; exec $G train --plan p.json --data text.txt --steps 2 --quiet --checkpoint saved "
                                 "--resume saved\"; code=$?; rm -rf saved; exit $code");
    CAPTURE(mebibytes);
    CAPTURE(ran.err);
    if (ran.code == 0 || ran.err.find("galvatron: ") == std::string::npos) continue;  // the loader may have said it
    ++told;
    CHECK((ran.code == 4 || ran.code == 3));  // 3: the check before the run knows the limit
    CHECK(ran.err.find("galvatron: ") == ran.err.rfind("galvatron: "));
    CHECK(ran.err.find("defect") == std::string::npos);
  }
  CHECK(told > 0);
}
