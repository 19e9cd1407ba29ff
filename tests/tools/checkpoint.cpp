// train --checkpoint and --resume: as users see them, and through sudden deaths.
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "run.hpp"

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// small_plan() with other degrees for every layer.
json plan_of(int tensor, int data, int zero) {
  json plan = small_plan(tensor * data);
  const auto set = [&](json& spec) {
    spec["tensor"] = tensor;
    spec["data"] = data;
    spec["zero"] = zero;
  };
  for (json& layer : plan["layers"]) set(layer);
  set(plan["embedding"]);
  set(plan["head"]);
  return plan;
}

/// Losses by step.
std::vector<double> losses(const std::string& metrics) {
  std::vector<double> out;
  std::istringstream lines(metrics);
  for (std::string line; std::getline(lines, line);) {
    const json value = json::parse(line);
    CHECK(value.at("step") == out.size() + 1);
    out.push_back(value.at("loss"));
  }
  return out;
}

}  // namespace

TEST_CASE("a run goes on with its plan bit for bit, and with others to rounding") {
  const Folder folder;
  folder.write_text();
  folder.write("eight.json", plan_of(2, 4, 1).dump());
  folder.write("four.json", plan_of(4, 1, 0).dump());
  folder.write("two.json", plan_of(1, 2, 3).dump());
  const std::string tail = " --data text.txt --steps 12 --lr 0.003 --warmup 2 --weight-decay 0.2 --seed 9 --json ";
  const Ran whole = folder.run(
      "train --plan eight.json --metrics whole.jsonl --tensorboard tb --checkpoint saved "
      "--checkpoint-every 6 --checkpoint-keep 5" +
      tail);
  CAPTURE(whole.err);
  REQUIRE(whole.code == 0);
  const json report = whole.json();
  CHECK(report.at("checkpoints_written") == 2);
  CHECK(report.at("checkpoint_bytes").size() == 8);
  CHECK(report.at("first_step") == 1);
  CHECK(folder.has("saved/step-00000006/manifest.json"));
  CHECK(folder.has("saved/step-00000012/rank-0007.safetensors"));
  const std::vector<double> curve = losses(folder.read("whole.jsonl"));
  REQUIRE(curve.size() == 12);

  // Neither rate nor seed are given again: the checkpoint has them.
  for (const std::string plan : {"eight", "four", "two"}) {
    CAPTURE(plan);
    const std::string base = "train --plan " + plan + ".json --data text.txt --steps 12 --json --metrics ";
    folder.write("again.jsonl", folder.read("whole.jsonl"));
    const Ran again = folder.run(base + "again.jsonl --resume saved/step-00000006");
    CAPTURE(again.err);
    REQUIRE(again.code == 0);
    CHECK(again.json().at("first_step") == 7);
    CHECK(again.json().at("steps") == 6);
    const std::vector<double> resumed = losses(folder.read("again.jsonl"));
    REQUIRE(resumed.size() == 12);
    for (std::size_t i = 0; i < 12; ++i) {
      if (plan == "eight" || i < 6)
        CHECK(resumed[i] == curve[i]);
      else
        CHECK(std::abs(resumed[i] - curve[i]) < 1e-5 * curve[i]);
    }
  }
  // Weights alone: a new run that begins where the other one ended.
  const Ran fresh = folder.run("train --plan two.json --init-from saved --data text.txt --steps 1 --json");
  CAPTURE(fresh.err);
  REQUIRE(fresh.code == 0);
  CHECK(fresh.json().at("first_loss").get<double>() < curve.front() - 0.5);
}

TEST_CASE("a run that has all its steps is left as it is") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string run = "train --plan p.json --data text.txt --steps 4 --checkpoint saved --metrics m.jsonl ";
  REQUIRE(folder.run(run).code == 0);
  const std::string metrics = folder.read("m.jsonl");
  const Ran words = folder.run(run + "--resume saved");
  CHECK(words.code == 0);
  CHECK(words.out == "Nothing to do: saved has all 4 steps\n");
  const Ran json = folder.run(run + "--resume saved --json");
  CHECK(json.code == 0);
  CHECK(json.json().at("steps") == 0);
  CHECK(json.json().at("last_loss").is_null());
  CHECK(folder.read("m.jsonl") == metrics);
}

TEST_CASE("what cannot go on is refused with one line") {
  const Folder folder;
  folder.write_text();
  folder.write_text("other.txt");
  folder.write("p.json", small_plan().dump());
  const std::string base = "train --plan p.json --data text.txt ";
  REQUIRE(folder.run(base + "--steps 4 --checkpoint saved --checkpoint-every 2").code == 0);
  const std::string resume = "--resume saved ";
  check_failure(folder.run(base + resume + "--steps 3"), 2, "the checkpoint has 4 steps behind it");
  check_failure(folder.run(base + resume + "--steps 8 --seed 3"), 2, "--seed says 3");
  check_failure(folder.run(base + resume + "--steps 8 --init-from saved"), 2, "exclude each other");
  check_failure(folder.run(base + "--steps 8 --checkpoint-every 2"), 2, "--checkpoint-every needs --checkpoint");
  check_failure(folder.run(base + "--steps 8 --resume nothing"), 2, "nothing: No such file");
  check_failure(folder.run(base + "--steps 8 --resume ."), 2, "no complete checkpoint");
  check_failure(folder.run("train --plan p.json --data text.txt other.txt --steps 8 " + resume), 2,
                "give the same --data");
  std::string changed = folder.read("text.txt");
  changed[changed.size() / 2] ^= 1;
  folder.write("changed.txt", changed);
  check_failure(folder.run("train --plan p.json --data changed.txt --steps 8 " + resume), 2,
                "the data are as large as those that the checkpoint was trained on, but others");
  check_failure(folder.run(base + "--steps 8 --checkpoint text.txt"), 2, "cannot write");
  check_failure(folder.run(base + "--steps 8 --init-from text.txt"), 2, "safetensors");
  check_failure(folder.run(base + "--steps 8 --checkpoint saved"), 2, "saved has checkpoints of another run");
  check_failure(folder.run(base + "--steps 8 --checkpoint saved --resume nothing"), 2, "of another run");
  json other = small_plan();
  other["global_batch"] = 8;
  folder.write("q.json", other.dump());
  check_failure(folder.run("train --plan q.json --data text.txt --steps 8 " + resume), 2,
                "a global batch of 8, the checkpoint one of 4");
  other = small_plan();
  other["model"] = "llama-tiny";
  folder.write("q.json", other.dump());
  check_failure(folder.run("train --plan q.json --data text.txt --steps 8 " + resume), 2,
                "it is of the model gpt2-tiny");

  const std::string shard = "saved/step-00000004/rank-0001.safetensors";
  std::string bytes = folder.read(shard);
  bytes[bytes.size() / 2] ^= 1;
  folder.write(shard, bytes);
  const std::string named = "--resume saved/step-00000004 ";
  check_failure(folder.run(base + named + "--steps 8"), 2, "rank-0001.safetensors is damaged: its checksum is");
  check_failure(folder.run(base + named + "--steps 8"), 2, "there is also saved/step-00000002");
  folder.write("saved/step-00000004/manifest.json", "{");
  check_failure(folder.run(base + named + "--steps 8"), 2, "there is also saved/step-00000002");
  CHECK(folder.run(base + "--resume saved/step-00000002 --steps 8").code == 0);
}

TEST_CASE("a run that is killed at any moment goes on after its newest checkpoint") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of(1, 2, 1).dump());
  folder.write("q.json", plan_of(2, 1, 0).dump());
  constexpr int steps = 60;
  const std::string tail = " --data text.txt --steps " + std::to_string(steps) + " --warmup 4 --lr 0.003 ";
  REQUIRE(folder.run("train --plan p.json --metrics whole.jsonl" + tail).code == 0);
  const std::vector<double> curve = losses(folder.read("whole.jsonl"));
  REQUIRE(curve.size() == steps);

  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> arguments{"train",     "--data",    "text.txt",     "--steps", "60",
                                           "--lr",      "0.003",     "--warmup",     "4",       "--quiet",
                                           "--metrics", "cut.jsonl", "--checkpoint", "saved",   "--checkpoint-every",
                                           "1"};
  int kills = 0;
  for (int attempt = 0; attempt < 40 && !folder.has("saved/step-00000060/manifest.json"); ++attempt) {
    std::vector<std::string> words = arguments;
    words.insert(words.end(), {"--plan", attempt % 3 == 2 ? "q.json" : "p.json"});
    if (folder.has("saved")) {
      bool any = false;
      for (const auto& entry : fs::directory_iterator(folder.path() / "saved")) {
        if (entry.path().filename() == "lock") continue;  // of the run that was killed
        // At no moment is there anything but complete checkpoints and unfinished ones.
        const bool complete = entry.path().extension() != ".tmp";
        CHECK((!complete || fs::exists(entry.path() / "manifest.json")));
        any = any || complete;
      }
      if (any) words.insert(words.end(), {"--resume", "saved"});
    }
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      if (::chdir(folder.path().c_str()) != 0) ::_exit(99);
      std::vector<char*> values;
      std::string command = GALVATRON_COMMAND;
      values.push_back(command.data());
      for (std::string& word : words) values.push_back(word.data());
      values.push_back(nullptr);
      ::execv(command.c_str(), values.data());
      ::_exit(99);
    }
    // The last attempts are left alone.
    if (attempt < 12) {
      std::this_thread::sleep_for(std::chrono::microseconds(50'000 + random() % 700'000));
      ::kill(child, SIGKILL);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status)) {
      REQUIRE(WEXITSTATUS(status) == 0);
      break;
    }
    ++kills;
  }
  MESSAGE(kills << " runs were killed");
  CHECK(kills > 0);
  const std::vector<double> cut = losses(folder.read("cut.jsonl"));
  REQUIRE(cut.size() == steps);
  // Every change of plan is a change of rounding, which grows with the steps behind it.
  for (int i = 0; i < steps; ++i)
    CHECK(std::abs(cut[static_cast<std::size_t>(i)] - curve[static_cast<std::size_t>(i)]) <
          2e-4 * curve[static_cast<std::size_t>(i)]);
}

TEST_CASE("steps with NaN are told with layer and rank, or left out") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base =
      "train --plan p.json --data text.txt --steps 200 --lr 1000 --warmup 0 --clip 0 --weight-decay 0 --quiet ";
  const Ran stopped = folder.run(base);
  if (stopped.code == 0) return;  // such a rate makes numbers overflow on most machines, not on all
  check_failure(stopped, 4, "training has diverged");
  for (const char* words : {"galvatron: step ", "first seen in the ", " on rank "})
    CHECK(stopped.err.find(words) != std::string::npos);
  const Ran skipped = folder.run(base + "--on-nan skip --metrics m.jsonl --json");
  CAPTURE(skipped.err);
  REQUIRE(skipped.code == 0);
  CHECK(skipped.json().at("skipped_steps").get<int>() > 0);
  CHECK(folder.read("m.jsonl").find("\"skipped\"") != std::string::npos);
}
