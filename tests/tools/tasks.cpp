// labels: ranks
// Models of several tasks through the command: plan, cost, simulate, explain, train, and bad input.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "../folder.hpp"
#include "run.hpp"

namespace {

using nlohmann::json;

// A model of two towers and one task as a file.
json lab_model() {
  return {{"format", "galvatron-multi-task"},
          {"version", 1},
          {"name", "lab"},
          {"components",
           {{{"name", "vision"},
             {"kind", "patches"},
             {"layers", 2},
             {"hidden", 48},
             {"heads", 3},
             {"tokens", 10},
             {"patch", 12},
             {"class_token", true},
             {"output", 16}},
            {{"name", "text"},
             {"kind", "text"},
             {"layers", 1},
             {"hidden", 32},
             {"heads", 2},
             {"tokens", 8},
             {"vocabulary", 40},
             {"output", 16}},
            {{"name", "contrast"}, {"kind", "contrastive"}, {"hidden", 16}, {"inputs", {"text", "vision"}}}}},
          {"tasks", {{{"name", "pairs"}, {"inputs", {"text", "vision"}}, {"loss", "contrast"}, {"batch", 8}}}}};
}

// Pairs for that model: image i and line i are of the same of 16 things.
void write_pairs(const Folder& folder, int count) {
  std::string images(1024, '\0');
  const std::int32_t header[] = {20261121, 1, count, 3, 6, 6, 1};
  std::memcpy(images.data(), header, sizeof header);
  std::string texts;
  for (int i = 0; i < count; ++i) {
    const int thing = i * 7 % 16;
    texts += std::string(1, static_cast<char>(20 + thing)) + std::string(2, static_cast<char>(18 + thing / 2)) + "\n";
    for (int k = 0; k < 3 * 6 * 6; ++k) images.push_back((thing >> (k % 4)) % 2 == 0 ? '\xe0' : '\x10');
  }
  folder.write("pairs/pairs/text.txt", texts);
  folder.write("pairs/pairs/vision.images", images + std::string(static_cast<std::size_t>(2 * count), '\0'));
}

// Every layer of every pass once, and no rank twice in a wave.
void check_task_waves(const json& waves, int ranks) {
  std::map<std::string, int> done;
  for (const json& wave : waves) {
    std::set<int> used;
    CHECK(wave.at("seconds").get<double>() > 0);
    for (const json& part : wave.at("parts")) {
      const std::string pass = part.at("task").get<std::string>() + "/" + part.at("component").get<std::string>();
      CHECK(done[pass] == part.at("layers")[0].get<int>());
      done[pass] += part.at("operators").get<int>();
      CHECK(done[pass] == part.at("layers")[1].get<int>() + 1);
      for (const json& rank : part.at("ranks")) {
        CHECK(rank.get<int>() < ranks);
        CHECK(used.insert(rank.get<int>()).second);
      }
    }
  }
  CHECK(!done.empty());
}

}  // namespace

TEST_CASE("plan of a multi-task preset: waves, not slower than tasks in sequence, and its file says the same again") {
  const Folder folder;
  const Ran ran = folder.run("plan --model multitask-clip-4 --cluster 8xa100-80g --out plan.json --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json plan = ran.json();
  CHECK(plan.at("feasible").get<bool>());
  const double seconds = plan.at("iteration_seconds");
  CHECK(seconds < plan.at("in_sequence_seconds").get<double>());
  CHECK(seconds < plan.at("by_task_seconds").get<double>());
  CHECK(seconds >= plan.at("bound_seconds").get<double>());
  CHECK(plan.at("mfu").get<double>() > 0);
  CHECK(plan.at("mfu").get<double>() < 1);
  CHECK(plan.at("waves").size() > 1);
  check_task_waves(plan.at("waves"), 8);
  CHECK(plan.at("peak_bytes").size() == 8);
  for (const char* command : {"cost", "simulate"}) {
    const Ran again = folder.run(std::string(command) + " --plan plan.json --json");
    CAPTURE(again.err);
    REQUIRE(again.code == 0);
    for (const char* key : {"iteration_seconds", "waves", "peak_bytes", "plan"})
      CHECK(again.json().at(key) == plan.at(key));
  }
  const json simulated = folder.run("simulate --plan plan.json --json").json();
  double last = 0;
  for (const json& event : simulated.at("events")) {
    CHECK(event.at("begin_seconds").get<double>() <= event.at("moved_seconds").get<double>());
    CHECK(event.at("moved_seconds").get<double>() < event.at("end_seconds").get<double>());
    last = std::max(last, event.at("end_seconds").get<double>());
  }
  CHECK(last == doctest::Approx(simulated.at("passes_seconds").get<double>()));
  const Ran words = folder.run("explain plan.json");
  REQUIRE(words.code == 0);
  for (const char* word : {"Devices over the time", "The step is limited by", "vision", "wave 0", "in sequence"})
    CHECK(words.out.find(word) != std::string::npos);
}

TEST_CASE("a multi-task model from a file, other global batches, and less memory") {
  const Folder folder;
  folder.write("lab.json", lab_model().dump());
  const json plan =
      folder.run("plan --model lab.json --cluster 4xa100-80g --global-batch 12 --precision fp32 --json").json();
  CHECK(plan.at("global_batch") == 12);
  check_task_waves(plan.at("waves"), 4);
  const std::string clip = "plan --model multitask-clip-4 --cluster 8xa100-80g --json --quiet";
  const json all = folder.run(clip).json();
  const auto most = all.at("peak_bytes").get<std::vector<std::int64_t>>();
  const std::int64_t less = *std::ranges::max_element(most) * 3 / 4;
  const json tight = folder.run(clip + " --memory " + std::to_string(less / 1024) + "KiB").json();
  for (const json& peak : tight.at("peak_bytes")) CHECK(peak.get<std::int64_t>() <= less);
  check_failure(folder.run("plan --model multitask-clip-4 --cluster 8xa100-80g --memory 2GiB"), 3, "fits into");
}

TEST_CASE("train of a multi-task model: by a plan and with --auto, and on from a checkpoint under another plan") {
  const Folder folder;
  REQUIRE(folder.run("plan --model clip-tiny --cluster 4xa100-80g --precision fp32 --out plan.json").code == 0);
  const std::string steps = " --data synthetic --steps 6 --quiet --json";
  const Ran ran = folder.run("train --plan plan.json --checkpoint saved" + steps);
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json first = ran.json();
  CHECK(first.at("tasks").size() == 4);
  CHECK(first.at("last_loss").get<double>() < first.at("first_loss").get<double>());
  CHECK(first.at("predicted_peak_bytes").size() == 4);
  // The same run in two halves, of which the second has half of the ranks.
  REQUIRE(folder.run("plan --model clip-tiny --cluster 2xa100-80g --precision fp32 --out two.json").code == 0);
  const std::string halves = "train --data synthetic --quiet --json --lr 0.001 --warmup 0 --min-lr 0.001";
  REQUIRE(folder.run(halves + " --plan plan.json --steps 4 --checkpoint half").code == 0);
  const Ran rest = folder.run(halves + " --plan two.json --steps 6 --resume half");
  CAPTURE(rest.err);
  REQUIRE(rest.code == 0);
  const json whole = folder.run(halves + " --plan plan.json --steps 6").json();
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(rest.json().at("tasks")[i].at("last_loss").get<double>() ==
          doctest::Approx(whole.at("tasks")[i].at("last_loss").get<double>()).epsilon(1e-3));
  const Ran automatic = folder.run(
      "train --auto --model clip-tiny --ranks 2 --precision fp32 --profile-seconds 0.5 --on-busy accept --save-plan "
      "auto.json --metrics metrics.jsonl" +
      steps);
  CAPTURE(automatic.err);
  REQUIRE(automatic.code == 0);
  CHECK(automatic.json().at("predicted_iteration_seconds").get<double>() > 0);
  CHECK(folder.has("auto.json"));
  const json metrics = json::parse(folder.read("metrics.jsonl").substr(0, folder.read("metrics.jsonl").find('\n')));
  CHECK(metrics.at("tasks").size() == 4);
}

TEST_CASE(
    "pairs in a folder: what is held out is found more and more, told in words, JSON, metrics, report and trace") {
  const Folder folder;
  folder.write("lab.json", lab_model().dump());
  write_pairs(folder, 80);
  REQUIRE(folder.run("plan --model lab.json --cluster 2xa100-80g --precision fp32 --task-schedule groups --out p.json")
              .code == 0);
  const std::string train =
      "train --plan p.json --data pairs --held-out 16 --evaluate-every 100 --steps 300 --lr 0.005 --quiet ";
  const Ran ran = folder.run(train + "--json --metrics m.jsonl --report r.html --trace t.json --tensorboard board");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json task = ran.json().at("tasks")[0];
  CHECK(task.at("retrieval").get<double>() > 0.4);  // 0.06 by chance
  CHECK(task.at("held_out_loss").get<double>() > 0);
  std::vector<double> found;
  std::istringstream metrics(folder.read("m.jsonl"));
  for (std::string line; std::getline(metrics, line);)
    if (const json step = json::parse(line); step.contains("held_out"))
      found.push_back(step.at("held_out").at("pairs").at("retrieval"));
  REQUIRE(found.size() == 3);
  CHECK(found.back() == task.at("retrieval").get<double>());
  CHECK(found.back() > found.front());
  const std::string report = folder.read("r.html");
  for (const char* words : {"<svg id=\"retrieval\"", "<svg id=\"losses\"", "Measured in step 300", "vision of pairs"})
    CHECK(report.find(words) != std::string::npos);
  const json trace = json::parse(folder.read("t.json"));
  int measured = 0;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X") measured += event.at("pid").get<int>() < 2 ? 1 : 0;
  CHECK(measured > 4);
  CHECK(folder.run(train).out.find("pairs find each other") != std::string::npos);

  // A folder that is not right.
  folder.write("pairs/pairs/text.txt", "!\n");
  check_failure(folder.run(train), 2, "vision.images has 80 samples");
}

TEST_CASE("a signal ends a run of several tasks after its step, with a checkpoint that it goes on after") {
  const Folder folder;
  REQUIRE(folder.run("plan --model clip-toy --cluster 2xa100-80g --precision fp32 --out plan.json").code == 0);
  const Ran ran = folder.shell(
      "env --default-signal=TERM $G train --plan plan.json --data synthetic --steps 100000 --warmup 0 --quiet "
      "--metrics m.jsonl "
      "--checkpoint saved & job=$!; for i in $(seq 100); do [ -s m.jsonl ] && break; sleep 0.1; done; kill -TERM $job; "
      "wait $job; echo code $?");
  CAPTURE(ran.err);
  CHECK(ran.out.find("code 143") != std::string::npos);
  CHECK(ran.err.find("galvatron: interrupted after step ") != std::string::npos);
  CHECK(ran.err.find("--resume saved goes on after it") != std::string::npos);
  const json manifest = json::parse(folder.shell("cat saved/step-*/manifest.json").out);
  const std::int64_t step = manifest.at("step");
  CHECK(manifest.at("streams").size() == 4);
  CHECK(manifest.at("streams")[0].at("samples") == 8 * step);
  const Ran rest = folder.run("train --plan plan.json --data synthetic --quiet --json --resume saved --steps " +
                              std::to_string(step + 2));
  CAPTURE(rest.err);
  REQUIRE(rest.code == 0);
  CHECK(rest.json().at("first_step") == step + 1);
}

TEST_CASE("bad multi-task models, plans and options end with one line") {
  const Folder folder;
  const auto bad_model = [&](const char* pointer, const json& value, const std::string& words) {
    json model = lab_model();
    model[json::json_pointer(pointer)] = value;
    folder.write("bad.json", model.dump());
    check_failure(folder.run("plan --model bad.json --cluster 4xa100-80g"), 2, words);
  };
  bad_model("/tasks/0/batch", 0, "batch of 0");
  bad_model("/tasks/0/inputs", json::array(), "no data");
  bad_model("/components/2/inputs", {"text", "smell"}, "smell");
  bad_model("/version", 2, "version 2");
  bad_model("/components/0/kind", "sight", "kind");
  check_failure(folder.run("plan --model clip-tiny --cluster 4xa100-80g --seq 4"), 2, "--seq");
  check_failure(folder.run("plan --model clip-tiny --cluster 4xa100-80g --global-batch 3"), 2, "4 tasks");
  check_failure(folder.run("plan --model clip-tiny --cluster 4xa100-80g --global-batch auto"), 2, "--global-batch");
  check_failure(folder.run("plan --model clip-tiny"), 2, "--cluster");
  check_failure(folder.run("plan --model gpt2-tiny --cluster 4xa100-80g"), 2, "--global-batch");
  REQUIRE(folder.run("plan --model clip-tiny --cluster 4xa100-80g --precision fp32 --out plan.json").code == 0);
  const json plan = json::parse(folder.read("plan.json"));
  const auto bad_plan = [&](const char* pointer, const json& value, const std::string& words) {
    json changed = plan;
    changed[json::json_pointer(pointer)] = value;
    folder.write("bad.json", changed.dump());
    for (const char* command : {"cost --plan ", "simulate --plan ", "explain ", "train --steps 1 --plan "})
      check_failure(folder.run(std::string(command) + "bad.json"), 2, words);
  };
  bad_plan("/model", "clip-none", "clip-none");
  bad_plan("/order", "backwards", "order");
  bad_plan("/version", 9, "version 9");
  bad_plan("/waves/0/parts/0/layers", {0, 99}, "layers");
  bad_plan("/waves/0/parts/0/ranks", {7}, "ranks");
  bad_plan("/waves", json::array(), "leaves out");
  check_failure(folder.run("cost --plan plan.json --cluster 2xa100-80g"), 2, "4 ranks");
  check_failure(folder.run("train --plan plan.json --steps 1 --data text.txt"), 2, "text.txt is no folder");
  check_failure(folder.run("train --plan plan.json --steps 1 --data a b"), 2, "one folder");
  check_failure(folder.run("train --plan plan.json --steps 1 --held-out 4"), 2, "--held-out");
  check_failure(folder.run("train --plan plan.json --steps 1 --evaluate-every 4"), 2, "--held-out");
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // nor where there is one
  check_failure(folder.run("train --plan plan.json --steps 1 --device cuda"), 4, "no CUDA");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  check_failure(folder.run("plan --model clip-toy --cluster 2xa100-80g --task-schedule groups"), 3,
                "4 tasks on 2 devices");
  check_failure(folder.run("plan --model gpt2-tiny --cluster 4xa100-80g --global-batch 4 --task-schedule waves"), 2,
                "--task-schedule");
  check_failure(folder.run("train --plan plan.json --steps 1 --ranks 2"), 2, "--ranks");
  check_failure(folder.run("train --plan plan.json --steps 1 --pack"), 2, "--pack");
}

TEST_CASE("the mix of tasks changes while a run goes on, and in one that goes on") {
  const Folder folder;
  const std::string train =
      "train --model clip-toy --cluster 2xa100-80g --precision fp32 --data synthetic --steps 8 --json --metrics "
      "m.jsonl "
      "--checkpoint saved --resume saved --report report.html ";
  const Ran ran = folder.run(train + "--auto --mix-at 6:text-audio=4 3:text-vision=6,vision-depth=2");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json mixes = ran.json().at("mixes");
  REQUIRE(mixes.size() == 2);
  CHECK(mixes[0].at("step") == 3);
  CHECK(mixes[0].at("tasks") == json{{"text-vision", 6}, {"vision-depth", 2}});
  CHECK(mixes[1].at("tasks") == json{{"text-audio", 4}});
  for (const json& mix : mixes) {
    CHECK(mix.at("plan_seconds").get<double>() > 0);
    CHECK(mix.at("moved_bytes").get<std::int64_t>() > 0);
    CHECK(mix.at("seconds").get<double>() >= mix.at("plan_seconds").get<double>());
  }
  CHECK(ran.err.find("Step 3 goes on with text-vision 6, vision-depth 2; planned in") != std::string::npos);
  CHECK(ran.json().at("predicted_peak_bytes").size() == 2);
  CHECK(ran.json().at("plan").at("tasks") == json{{"text-audio", 4}});
  std::istringstream lines(folder.read("m.jsonl"));
  std::vector<json> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(json::parse(line));
  REQUIRE(steps.size() == 8);
  CHECK(steps[1].at("tasks").size() == 4);
  CHECK(steps[2].at("tasks").size() == 2);
  CHECK(steps[2].at("mix").at("tasks").at("text-vision") == 6);
  CHECK_FALSE(steps[3].contains("mix"));
  CHECK(steps[7].at("tasks").size() == 1);
  const std::string report = folder.read("report.html");
  for (const char* word : {"Mixes of tasks", "text-vision 6, vision-depth 2", "text-audio 4"})
    CHECK(report.find(word) != std::string::npos);
  // The same command once more goes on behind step 8, under the mix of that step.
  const std::string longer = std::string(train).replace(train.find("--steps 8"), 9, "--steps 10");
  const Ran goes_on = folder.run(longer + "--auto --mix-at 3:text-vision=6,vision-depth=2 6:text-audio=4");
  CAPTURE(goes_on.err);
  REQUIRE(goes_on.code == 0);
  CHECK(goes_on.json().at("mixes").empty());
  CHECK(goes_on.json().at("steps") == 2);
  // A plan of a mix is a file as any other.
  REQUIRE(folder
              .run("plan --model clip-toy --cluster 2xa100-80g --precision fp32 --tasks text-audio=4,text-vision=2 "
                   "--out mix.json")
              .code == 0);
  const Ran of_mix = folder.run("train --plan mix.json --data synthetic --steps 2 --json --mix-at 2:vision-depth=8");
  CAPTURE(of_mix.err);
  REQUIRE(of_mix.code == 0);
  CHECK(of_mix.json().at("tasks")[1].at("first_loss").is_null());  // vision-audio
  CHECK(of_mix.json().at("tasks")[2].at("first_loss").is_number());
}

TEST_CASE("mixes that make no sense are one line, and end with 2") {
  const Folder folder;
  for (const auto& [mix, word] : std::map<std::string, std::string>{{"3:text-smell=4", "no task \"text-smell\""},
                                                                    {"3:text-vision=0", "batch of 0"},
                                                                    {"11:text-vision=4", "steps 1 to 10"},
                                                                    {"0:text-vision=4", "steps 1 to 10"},
                                                                    {"3:text-vision", "TASK=BATCH"},
                                                                    {"text-vision=4", "STEP:TASK=BATCH"}}) {
    const Ran ran = folder.run(
        "train --auto --model clip-toy --cluster 1xa100-80g --precision fp32 --data synthetic "
        "--steps 10 --quiet --mix-at " +
        mix);
    CAPTURE(ran.err);
    CHECK(ran.code == 2);
    CHECK(ran.err.find(word) != std::string::npos);
    CHECK(std::count(ran.err.begin(), ran.err.end(), '\n') == 1);
  }
  CHECK(folder.run("plan --model clip-toy --cluster 1xa100-80g --tasks text-vision=0").code == 2);
  CHECK(folder.run("plan --model gpt2-tiny --cluster 1xa100-80g --global-batch 4 --tasks a=1").code == 2);
}

TEST_CASE("a checkpoint of a CLIP is exported for Hugging Face, and begins another run with the same weights") {
  const Folder folder;
  const std::string clip = std::string(galvatron::test::tests_dir) + "/train/pytorch/clip/00";
  const std::string run = " --auto --cluster 1xa100-80g --precision fp32 --data synthetic --lr 0 --min-lr 0 --json ";
  const Ran ran = folder.run("train" + run + "--model " + clip + " --init-from text,vision,contrast=" + clip +
                             " --steps 2 --checkpoint saved --global-batch 4");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  for (const char* components : {"", " --components contrast,text,vision="}) {
    const Ran out = folder.run("export saved --to huggingface --out written --json --model " + clip + components +
                               (*components == '\0' ? "" : clip));
    CAPTURE(out.err);
    REQUIRE(out.code == 0);
    CHECK(out.json().at("files").size() == 2);
    const Ran again = folder.run("train" + run +
                                 "--model written --init-from text,vision,contrast=written --steps 1 "
                                 "--global-batch 4");
    CAPTURE(again.err);
    REQUIRE(again.code == 0);
    CHECK(again.json().at("first_loss") == ran.json().at("first_loss"));
  }
  const Ran part =
      folder.run("export saved --to huggingface --out part --model " + clip + " --components text=" + clip);
  CHECK(part.code == 2);
  CHECK(part.err.find("not the parts of this CLIP") != std::string::npos);
  const Ran unnamed = folder.run("export saved --to huggingface --out part --model clip-toy");
  CHECK(unnamed.code == 2);
  CHECK(unnamed.err.find("--components") != std::string::npos);
  const Ran other = folder.run("export saved --to huggingface --out part --model gpt2-tiny --components text=" + clip);
  CHECK(other.code == 2);
}
