// train, profile and what they refuse.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "../sanitized.hpp"
#include "run.hpp"

namespace {

using nlohmann::json;

/// A .bin token file.
std::string token_file(std::int32_t magic, std::int32_t version, std::int32_t count,
                       const std::vector<std::uint16_t>& tokens) {
  std::int32_t header[256] = {magic, version, count};
  std::string out(reinterpret_cast<const char*>(header), sizeof header);
  out.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  return out;
}

void check_outcome(const json& report, std::size_t ranks) {
  CAPTURE(report.dump());
  for (const char* key : {"first_loss", "last_loss", "tokens_per_second", "measured_iteration_seconds"})
    CHECK(report.at(key).get<double>() > 0);
  CHECK(report.contains("predicted_iteration_seconds"));
  REQUIRE(report.at("predicted_peak_bytes").size() == ranks);
  CHECK(report.at("predicted_peak_bytes") == report.at("measured_peak_bytes"));
  for (const auto& bytes : report.at("measured_peak_bytes")) CHECK(bytes.get<std::int64_t>() > 0);
}

}  // namespace

TEST_CASE("a given plan is trained, measured and written down") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base =
      "train --plan p.json --model gpt2-tiny --data text.txt --steps 12 --global-batch 4 --seq 16 --lr 0.01 ";
  const Ran ran = folder.run(base + "--metrics m.jsonl --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json report = ran.json();
  check_outcome(report, 2);
  CHECK(report.at("last_loss").get<double>() < report.at("first_loss").get<double>());
  CHECK(std::fabs(report.at("first_loss").get<double>() - std::log(256.0)) < 0.5);

  std::istringstream lines(folder.read("m.jsonl"));
  std::string line;
  std::int64_t step = 0;
  while (std::getline(lines, line)) {
    const json entry = json::parse(line);
    CHECK(entry.at("step") == ++step);
    for (const char* key : {"loss", "gradient_norm", "learning_rate", "seconds", "tokens_per_second"})
      CHECK(entry.at(key).is_number());
    if (step == 1) CHECK(entry.at("loss") == report.at("first_loss"));
    if (step == 12) CHECK(entry.at("loss") == report.at("last_loss"));
  }
  CHECK(step == 12);

  const Ran again = folder.run(base + "--quiet");
  CHECK(again.code == 0);
  CHECK(again.err.empty());
  for (const char* words : {"loss", "tokens/s", "predicted", "measured", "equal to the byte", "p.json"})
    CHECK(again.out.find(words) != std::string::npos);
  REQUIRE(report.contains("others_share"));
  CHECK(report.contains("slowest_rank"));
  if (report.at("others_share").is_number()) CHECK(report.at("others_share").get<double>() <= 1);
  const json same = folder.run(base + "--json").json();
  CHECK(same.at("last_loss") == report.at("last_loss"));
}

TEST_CASE("compressed dispatch is planned, trained and told by --auto, and its gains are not exported") {
  const Folder folder;
  folder.write_text();
  const std::string base =
      "train --auto --model moe-tiny --data text.txt --global-batch 4 --seq 16 --ranks 2 --precision fp32 "
      "--cluster c.json --space dp,ep=2 ";
  REQUIRE(folder.run("profile --ranks 2 --seconds 0.02 --on-busy accept --precision fp32 --out c.json").code == 0);
  const Ran plain = folder.run(base + "--steps 3 --json");
  CAPTURE(plain.err);
  REQUIRE(plain.code == 0);
  CHECK(plain.json().at("dispatch_bytes").get<double>() > 0);
  CHECK(!plain.json().contains("lsh_rate"));
  const std::string lsh = base + "--expert-dispatch lsh --lsh-hashes 2 --lsh-width 2 --lsh-most-rate 1 ";
  const Ran ran = folder.run(
      lsh + "--lsh-residual scaled --steps 3 --metrics m.jsonl --report r.html --tensorboard t --checkpoint ck --json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json report = ran.json();
  check_outcome(report, 2);
  CHECK(report.at("dispatch_bytes").get<double>() > 0);
  CHECK(report.at("dispatch_bytes").get<double>() < plain.json().at("dispatch_bytes").get<double>());
  CHECK(report.at("lsh_rate").get<double>() < 1);
  CHECK(report.at("lsh_error").get<double>() > 0);
  CHECK(report.at("hashing_seconds").get<double>() > 0);
  CHECK(report.at("plan").at("lsh").at("residual") == "scaled");
  std::istringstream lines(folder.read("m.jsonl"));
  int steps = 0;
  double bytes = 0;
  for (std::string text; std::getline(lines, text); ++steps) {
    const json line = json::parse(text);
    bytes += line.at("dispatch_bytes").get<double>();
    for (const char* key : {"lsh_rate", "lsh_error", "hashing_seconds"}) {
      CHECK(line.at(key).get<double>() > 0);
      const json& layers = line.at("layer_" + std::string(key));
      REQUIRE(layers.size() == 4);
      for (const json& layer : layers) CHECK(layer.get<double>() > 0);
    }
  }
  CHECK(steps == 3);
  CHECK(bytes / steps == doctest::Approx(report.at("dispatch_bytes").get<double>()));
  CHECK(folder.read("r.html").find("<h2>Compressed dispatch</h2>") != std::string::npos);

  // The weights go to Hugging Face without the gains, and come back: experts that get tokens need none.
  const Ran exported = folder.run("export ck --to huggingface --out hf --json");
  CAPTURE(exported.err);
  REQUIRE(exported.code == 0);
  CHECK(folder.run(base + "--steps 3 --init-from hf").code == 0);
  CHECK(folder.run(lsh + "--lsh-residual scaled --steps 3 --init-from hf").code == 0);
  const std::string resume = "--steps 4 --resume ck";
  check_failure(folder.run(base + resume), 2, "residual_gain");
  CHECK(folder.run(lsh + "--lsh-residual scaled " + resume).code == 0);

  for (const std::string bad : {"--lsh-hashes 0", "--lsh-hashes 65", "--lsh-hashes x", "--lsh-width 0",
                                "--lsh-width 4097", "--lsh-residual maybe", "--lsh-rate 0", "--lsh-rate 1.5",
                                "--lsh-rate nan", "--lsh-most-rate 0", "--lsh-most-rate -1", "--lsh-most-rate 2"}) {
    CAPTURE(bad);
    check_failure(folder.run(base + "--steps 3 --expert-dispatch lsh " + bad), 2, bad.substr(0, bad.find(' ')));
  }
  check_failure(folder.run(base + "--steps 3 --expert-dispatch mean"), 2, "plain|lsh");
  check_failure(folder.run(base + "--steps 3 --lsh-rate 0.5"), 2, "--expert-dispatch lsh");
  check_failure(folder.run(base + "--steps 3 --expert-dispatch plain --lsh-width 2"), 2, "choose lsh");
}

TEST_CASE("profile, plan and train go together, and --auto does all three") {
  const Folder folder;
  folder.write_text();
  const Ran profiled =
      folder.run("profile --ranks 2 --seconds 0.02 --on-busy accept --precision fp32 --out c.json --json");
  CAPTURE(profiled.err);
  REQUIRE(profiled.code == 0);
  CHECK(profiled.json().at("ranks") == 2);
  CHECK(profiled.json().at("cluster") == "c.json");
  const Ran planned = folder.run(
      "plan --model llama-tiny --cluster c.json --global-batch 4 --seq 16 --precision fp32 --out p.json --json");
  REQUIRE(planned.code == 0);
  const Ran trained = folder.run("train --plan p.json --data text.txt --steps 2 --json");
  CAPTURE(trained.err);
  REQUIRE(trained.code == 0);
  check_outcome(trained.json(), 2);
  CHECK(trained.json().at("predicted_iteration_seconds") == planned.json().at("iteration_seconds"));
  CHECK(trained.json().at("predicted_peak_bytes")[0] == planned.json().at("stages")[0].at("peak_bytes"));

  const Ran automatic = folder.run(
      "train --auto --cluster c.json --model llama-tiny --data text.txt --steps 2 --global-batch 4 --seq 16 --ranks 2 "
      "--precision fp32 --save-plan q.json --json");
  CAPTURE(automatic.err);
  REQUIRE(automatic.code == 0);
  check_outcome(automatic.json(), 2);
  CHECK(json::parse(folder.read("q.json")) == automatic.json().at("plan"));

  const Ran fresh = folder.run(
      "train --auto --profile-seconds 0.02 --on-busy accept --model gpt2-tiny --data text.txt --steps 2 --global-batch "
      "4 --seq 16 "
      "--ranks 2 "
      "--precision fp32 --save-plan r.json --save-cluster d.json --json");
  CAPTURE(fresh.err);
  REQUIRE(fresh.code == 0);
  check_outcome(fresh.json(), 2);
  CHECK(fresh.json().at("plan").at("cluster") == "d.json");
  CHECK(folder.run("cost --plan r.json --json").json().at("iteration_seconds") ==
        fresh.json().at("predicted_iteration_seconds"));

  check_failure(folder.run("train --auto --cluster c.json --model gpt2-tiny --data text.txt --steps 2 --global-batch 4 "
                           "--ranks 4"),
                2, "--ranks says 4, but c.json was measured with 2");
}

TEST_CASE("a measurement is said to be slower or faster than predicted, and an MFU that cannot be is called so") {
  const Folder folder;
  folder.write_text();
  REQUIRE(folder.run("profile --ranks 2 --seconds 0.02 --on-busy accept --precision fp32 --out c.json").code == 0);
  // The same tables with a peak that they exceed.
  json slow = json::parse(folder.read("c.json"));
  for (json& rate : slow.at("device").at("rates")) rate["peak_flops"] = 1e7;
  folder.write("slow.json", slow.dump());
  const std::string what = "plan --model gpt2-tiny --global-batch 4 --seq 16 --precision fp32 --cluster ";
  const auto remarks = [](const Ran& ran) { return ran.out.find("more than the devices can do") != std::string::npos; };
  CHECK(!remarks(folder.run(what + "c.json --out p.json")));
  CHECK(!folder.run(what + "c.json --json").json().contains("mfu_remark"));
  CHECK(remarks(folder.run(what + "slow.json --out q.json")));
  const json planned = folder.run(what + "slow.json --json").json();
  CHECK(planned.at("mfu") > 1);
  CHECK(planned.at("mfu_remark").get<std::string>().find("more than the devices can do") == 0);
  for (const std::string command : {"cost --plan q.json", "simulate --plan q.json"})
    CHECK_MESSAGE(remarks(folder.run(command)), command);
  CHECK(folder.run("explain q.json").out.find("(more than") != std::string::npos);  // lines are broken
  for (const std::string command : {"cost --plan q.json --json", "simulate --plan q.json --json"})
    CHECK(folder.run(command).json().contains("mfu_remark"));

  json plan = json::parse(folder.read("q.json"));
  const auto trained = [&](double predicted) {
    plan["predicted"]["iteration_seconds"] = predicted;
    folder.write("q.json", plan.dump());
    return folder.run("train --plan q.json --data text.txt --steps 3 --quiet").out;
  };
  CHECK(trained(1e6).find(": 100 % faster than predicted") != std::string::npos);
  const std::string slower = trained(1e-7);
  CHECK(slower.find(" times as long as predicted") != std::string::npos);
  plan["predicted"]["mfu"] = 1e9;
  CHECK(trained(1.0).find("of peak (more than the devices can do") != std::string::npos);
}

TEST_CASE("a profile that others disturb is refused, and accepted when that is asked for") {
  const Folder folder;
  // Four programs on each core; they end by themselves when the folder is gone.
  const Ran ran = folder.shell(
      "touch go; for i in $(seq $((4 * $(nproc)))); do while [ -e go ]; do :; done & done; "
      "$G profile --ranks 1 --seconds 2 --precision fp32 --out c.json --quiet; code=$?; ls c.json 2> /dev/null; "
      "$G profile --ranks 1 --seconds 1 --precision fp32 --out d.json --on-busy accept --json; "
      "code=$code$?; rm go; wait; exit $code");
  CAPTURE(ran.err);
  CHECK(ran.code == 40);
  CHECK(ran.err.find("galvatron: the profile is not used: ") == 0);
  CHECK(ran.err.find("% of the cores") != std::string::npos);
  CHECK(ran.err.find("--on-busy accept\n") != std::string::npos);
  CHECK(ran.err.find("The profile is doubtful: ") != std::string::npos);
  REQUIRE(ran.out.find("c.json") == std::string::npos);
  CHECK(ran.json().at("others_share").get<double>() > 0.5);
  CHECK(folder.has("d.json"));
}

TEST_CASE("a profile takes little memory of many ranks, and asks before it takes it" *
          doctest::skip(galvatron::test::sanitized)) {
  const Folder folder;
  const std::string limited = "ulimit -v 4194304; $G ";
  const Ran many = folder.shell(limited + "profile --ranks 64 --seconds 0.02 --precision fp32 --on-busy accept --json");
  CAPTURE(many.err);
  REQUIRE(many.code == 0);
  CHECK(many.json().at("ranks") == 64);
  CHECK(many.json().at("free_memory").get<std::string>().find("ulimit -v allows 4.00 GiB") != std::string::npos);
  CHECK(many.json().at("rank_memory_bytes").get<std::int64_t>() < (std::int64_t{4} << 30) / 64);
  check_failure(folder.shell(limited + "profile --ranks 1000 --seconds 0.02 --out none.json"), 3,
                "a profile of 1000 ranks takes 13");
  const Ran refused = folder.shell(limited + "profile --ranks 1000 --seconds 0.02 --out none.json");
  for (const char* part : {"MiB a rank, but ", " are free: ulimit -v allows 4.00 GiB", "; profile fewer ranks"})
    CHECK(refused.err.find(part) != std::string::npos);
  CHECK(!folder.has("none.json"));
}

TEST_CASE("8-bit products are profiled, planned and trained where the processor has bf16 to stand for them") {
  const Folder folder;
  folder.write_text();
  const Ran profiled =
      folder.run("profile --ranks 2 --seconds 0.02 --on-busy accept --precision fp8 --out c.json --json");
  CAPTURE(profiled.err);
  if (profiled.code != 0) {
    CHECK(profiled.code == 2);
    CHECK(profiled.json().at("error").get<std::string>().find("no bf16 arithmetic") != std::string::npos);
    return;
  }
  CHECK(profiled.json().at("gemm_flops").contains("fp8"));
  CHECK(profiled.json().at("gemm_flops").contains("bf16"));
  CHECK(folder.run("plan --model gpt2-tiny --cluster c.json --global-batch 4 --seq 16 --json")
            .json()
            .at("plan")
            .at("precision") == "bf16");
  const Ran planned = folder.run(
      "plan --model gpt2-tiny --cluster c.json --global-batch 4 --seq 16 --precision fp8 --out p.json --json");
  CAPTURE(planned.err);
  REQUIRE(planned.code == 0);
  const Ran trained = folder.run("train --plan p.json --data text.txt --steps 2 --checkpoint k --json");
  CAPTURE(trained.err);
  REQUIRE(trained.code == 0);
  check_outcome(trained.json(), 2);
  CHECK(trained.json().at("plan").at("precision") == "fp8");
  CHECK(folder.run("train --plan p.json --data text.txt --steps 3 --resume k/step-00000002 --json").code == 0);
}

TEST_CASE("moments in bf16 are planned, take less memory, and are trained as the plan says") {
  const Folder folder;
  folder.write_text();
  const std::string base = "plan --model gpt2-tiny --cluster host --global-batch 4 --seq 16 --precision fp32 --json ";
  const auto peak = [](const json& plan) { return plan.at("stages")[0].at("peak_bytes").get<std::int64_t>(); };
  const json full = folder.run(base).json();
  const json half = folder.run(base + "--moments bf16 --out p.json").json();
  CHECK(half.at("plan").at("moments") == "bf16");
  CHECK(!full.at("plan").contains("moments"));
  CHECK(peak(half) < peak(full));
  std::size_t ranks = 0;
  for (const json& stage : half.at("stages")) ranks += stage.at("devices").get<std::size_t>();
  check_outcome(folder.run("train --plan p.json --data text.txt --steps 2 --json").json(), ranks);
  CHECK(folder.run("explain p.json").out.find("moments in bf16") != std::string::npos);
  check_failure(folder.run("train --plan p.json --data text.txt --steps 2 --moments fp32"), 2,
                "--moments belongs to --auto");
  check_failure(folder.run(base + "--moments fp8"), 2, "fp32|bf16");
}

TEST_CASE("an impossible budget is told before profiling, with one that works") {
  const Folder folder;
  folder.write_text();
  const std::string base =
      "train --auto --profile-seconds 0.02 --on-busy accept --model gpt2-tiny --data text.txt --steps 1 --global-batch "
      "8 --seq 16 "
      "--ranks 4 "
      "--precision fp32 --json --memory ";
  const Ran none = folder.run(base + "1MiB");
  CHECK(none.code == 3);
  CHECK(none.json().at("feasible") == false);
  const auto smallest = none.json().at("smallest_feasible_memory_bytes").get<std::int64_t>();
  const Ran works = folder.run(base + std::to_string(smallest));
  CAPTURE(works.err);
  REQUIRE(works.code == 0);
  const nlohmann::json outcome = works.json();
  check_outcome(outcome, 4);
  for (const auto& bytes : outcome.at("measured_peak_bytes")) CHECK(bytes.get<std::int64_t>() <= smallest);
  // Data parallelism of 3 does not divide a batch of 4, 3 does not divide 4 heads; a pipeline of 3 stages works.
  check_failure(
      folder.run("train --auto --model gpt2-tiny --data text.txt --steps 1 --global-batch 4 --seq 16 --ranks 7"), 3,
      "7 devices");
}

TEST_CASE("options that contradict the plan are refused with both numbers") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base = "train --plan p.json --data text.txt --steps 1 ";
  check_failure(folder.run(base + "--seq 32"), 2, "--seq says 32, but the plan was made for a sequence length of 16");
  check_failure(folder.run(base + "--global-batch 8"), 2,
                "--global-batch says 8, but the plan was made for a global batch of 4");
  check_failure(folder.run(base + "--ranks 4"), 2, "--ranks says 4, but the plan was made for this number of ranks: 2");
  check_failure(folder.run(base + "--model gpt2-124m"), 2, "the plan has 4 layers and the model gpt2-124m has 12");
  check_failure(folder.run(base + "--model llama-tiny"), 2,
                "the plan was made for the model gpt2-tiny, not for llama-tiny");
  check_failure(folder.run(base + "--auto --global-batch 4 --model gpt2-tiny"), 2, "--plan and --auto");
  check_failure(folder.run("train --data text.txt --steps 1"), 2, "--auto");
  check_failure(folder.run("train --auto --data text.txt --steps 1 --global-batch 4"), 2, "--model");
  check_failure(folder.run("train --auto --data text.txt --steps 1 --model gpt2-tiny"), 2, "--global-batch");
  check_failure(folder.run("train --auto --data text.txt --steps 1 --model gpt2-tiny --global-batch 4 --seq 300"), 2,
                "--seq 300 is longer than the 256 positions");
  check_failure(folder.run(base + "--precision bf16"), 2, "--precision belongs to --auto");
  check_failure(folder.run(base + "--warmup 5"), 2, "--warmup 5 is longer than --steps 1");
  check_failure(folder.run(base + "--lr 0.1 --min-lr 0.2"), 2, "--min-lr 0.2 is larger than --lr 0.1");
  json wide = small_plan();
  wide["sequence_length"] = 512;
  folder.write("p.json", wide.dump());
  check_failure(folder.run(base), 2, "longer than the model's positions");
}

TEST_CASE("of a job on GPUs that cannot run, one process tells, once, and all end with its exit code") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan(2).dump());
  const auto job = [&](const std::string& arguments) {
    return folder.shell(
        "export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000)) CUDA_VISIBLE_DEVICES=; "
        "RANK=0 LOCAL_RANK=0 $G " +
        arguments + " & RANK=1 LOCAL_RANK=1 $G " + arguments +
        "; code=$?; wait $! && exit 99; [ $? = $code ] && exit $code");
  };
  const std::string base = "train --plan p.json --data text.txt --steps 1 --device cuda ";
  check_failure(job(base), 4, "no CUDA");
  check_failure(job("profile --device cuda"), 4, "no CUDA");
  check_failure(job(base + "--stepps 2"), 2, "--stepps");
  check_failure(folder.shell("export RANK=1 WORLD_SIZE=2; $G " + base), 2, "LOCAL_RANK is not set");
}

TEST_CASE("devices, launchers and strategies that are not there are refused") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base = "train --plan p.json --data text.txt --steps 1 ";
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // nor where there is one
  check_failure(folder.run(base + "--device cuda"), 4, "no CUDA");
  check_failure(folder.run("profile --device cuda"), 4, "no CUDA");
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  check_failure(folder.run(base + "--launcher slurm"), 2, "threads|mpi");
  check_failure(folder.run(base + "--device tpu"), 2, "host|cuda");
}

TEST_CASE("a run of a model of experts shows their loads") {
  const Folder folder;
  folder.write_text();
  json plan = small_plan(4);
  plan["model"] = "moe-tiny";
  for (json& layer : plan["layers"]) layer["expert"] = 4;
  folder.write("p.json", plan.dump());
  const std::string base = "train --plan p.json --data text.txt --steps 2 --json ";
  const Ran ran = folder.run(base + "--metrics m.jsonl --report r.html --tensorboard t");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  std::istringstream lines(folder.read("m.jsonl"));
  int steps = 0;
  for (std::string text; std::getline(lines, text); ++steps) {
    const json line = json::parse(text);
    REQUIRE(line.at("loads").size() == 4);  // layers
    for (std::size_t i = 0; i < 4; ++i) {
      std::int64_t sum = 0;
      for (const json& count : line.at("loads")[i]) sum += count.get<std::int64_t>();
      CHECK(sum == 2 * 4 * 16);  // two experts for each token
      CHECK(line.at("load_imbalance")[i].get<double>() >= 1);
    }
    CHECK(line.at("balance_loss").get<double>() > 0);
  }
  CHECK(steps == 2);
  CHECK(folder.read("r.html").find("<h2>Loads of experts</h2>") != std::string::npos);
  CHECK(folder.run(base).json().at("last_loss") == ran.json().at("last_loss"));  // whether or not they are counted
  const std::string told = folder.run("explain p.json").out;
  CHECK(told.find("8 experts, 2 for a token; ep4") != std::string::npos);
  const auto seconds = [&](const std::string& options) {
    return folder.run("cost --plan p.json --json --cluster 8xh100-80g " + options).json().at("iteration_seconds");
  };
  CHECK(seconds("--expert-imbalance 4") > seconds("--expert-imbalance 1"));
  CHECK(seconds("") == seconds("--expert-imbalance 1.5"));
}

TEST_CASE("a BERT learns what is hidden, a T5 what was cut out, a ViT tells images apart") {
  const Folder folder;
  folder.write_text();
  const std::string tail = " --steps 30 --global-batch 8 --ranks 2 --precision fp32 --lr 0.003 --json";
  REQUIRE(folder.run("profile --ranks 2 --seconds 0.02 --on-busy accept --precision fp32 --out c.json").code == 0);
  const Ran hidden = folder.run("train --auto --cluster c.json --model bert-tiny --data text.txt --seq 32" + tail);
  CAPTURE(hidden.err);
  REQUIRE(hidden.code == 0);
  check_outcome(hidden.json(), 2);
  CHECK(hidden.json().at("first_loss").get<double>() > 5);
  CHECK(hidden.json().at("last_loss").get<double>() < hidden.json().at("first_loss").get<double>() - 1);
  CHECK(folder.run("train --auto --cluster c.json --model bert-tiny --data text.txt --seq 32 --mask-token 300" + tail)
            .code == 2);

  const Ran cut = folder.run("train --auto --cluster c.json --model t5-tiny --data text.txt --seq 64" + tail);
  CAPTURE(cut.err);
  REQUIRE(cut.code == 0);
  check_outcome(cut.json(), 2);
  CHECK(cut.json().at("first_loss").get<double>() > 5);
  CHECK(cut.json().at("last_loss").get<double>() < cut.json().at("first_loss").get<double>() - 1);

  // An image is bright in the row of patches that is its class.
  const auto images_of = [](int side, int channels) {
    constexpr int images = 64;
    const std::int32_t header[256] = {20261121, 1, images, channels, side, side, 7};
    std::string file(reinterpret_cast<const char*>(header), sizeof header);
    for (int i = 0; i < images; ++i)
      for (int pixel = 0; pixel < channels * side * side; ++pixel)
        file.push_back(static_cast<char>(pixel % (side * side) / (4 * side) == i % 7 ? 220 : (pixel * 37 + i) % 60));
    for (int i = 0; i < images; ++i) file += std::string{static_cast<char>(i % 7), '\0'};
    return file;
  };
  folder.write("a.images", images_of(28, 1));
  const std::string vit = "train --auto --cluster c.json --model vit-tiny --global-batch 8 --ranks 2 --precision fp32";
  const Ran seen = folder.run(vit + " --data a.images --steps 300 --lr 0.001 --json");
  CAPTURE(seen.err);
  REQUIRE(seen.code == 0);
  check_outcome(seen.json(), 2);
  CHECK(std::fabs(seen.json().at("first_loss").get<double>() - std::log(10.0)) < 1);
  CHECK(seen.json().at("last_loss").get<double>() < 0.5);
  check_failure(folder.run(vit + " --data text.txt --steps 1"), 2, "is not an image file");
  folder.write("b.images", images_of(32, 3));
  const Ran windows = folder.run(
      "train --auto --cluster c.json --model swin-toy --global-batch 8 --ranks 2 --precision fp32 --data b.images "
      "--steps 150 --lr 0.001 --json");
  CAPTURE(windows.err);
  REQUIRE(windows.code == 0);
  check_outcome(windows.json(), 2);
  CHECK(std::fabs(windows.json().at("first_loss").get<double>() - std::log(10.0)) < 1);
  CHECK(windows.json().at("last_loss").get<double>() < 0.5);
}

TEST_CASE("a plan that takes more than it may does not begin") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const Ran small = folder.run("train --plan p.json --data text.txt --steps 1 --memory 1MiB --metrics m.jsonl --json");
  CHECK(small.code == 3);
  const auto needed = small.json().at("smallest_feasible_memory_bytes").get<std::int64_t>();
  CHECK(!folder.has("m.jsonl"));
  CHECK(folder.run("train --plan p.json --data text.txt --steps 1 --memory " + std::to_string(needed)).code == 0);
  json huge = small_plan();
  huge["model"] = "llama3-405b";
  huge["layers"] = json::array();
  for (int i = 0; i < 126; ++i) huge["layers"].push_back(huge["head"]);
  huge["stages"][0]["last_layer"] = 125;
  folder.write("p.json", huge.dump());
  folder.write("t.bin", token_file(20240520, 1, 100, std::vector<std::uint16_t>(100, 7)));
  check_failure(folder.run("train --plan p.json --data t.bin --steps 1"), 3, "this machine has");
}

TEST_CASE("bad data are refused before anything is written") {
  const Folder folder;
  folder.write("p.json", small_plan().dump());
  const std::vector<std::uint16_t> tokens(100, 7);
  const auto refused = [&](const std::string& files, const std::string& cause) {
    CAPTURE(files);
    check_failure(folder.run("train --plan p.json --steps 1 --metrics m.jsonl --data " + files), 2, cause);
    CHECK(!folder.has("m.jsonl"));
  };
  refused("missing.txt", "No such file");
  refused(".", "directory");
  folder.write("empty.txt", "");
  refused("empty.txt", "0 tokens");
  folder.write("short.txt", "abc");
  refused("short.txt", "3 tokens");
  folder.write("magic.bin", token_file(1234, 1, 100, tokens));
  refused("magic.bin", "magic number is 1234");
  folder.write("version.bin", token_file(20240520, 9, 100, tokens));
  refused("version.bin", "version 9");
  folder.write("body.bin", token_file(20240520, 1, 101, tokens));
  refused("body.bin", "cut short");
  folder.write("header.bin", "abc");
  refused("header.bin", "not a token file");
  std::vector<std::uint16_t> beyond = tokens;
  beyond[50] = 256;
  folder.write("beyond.bin", token_file(20240520, 1, 100, beyond));
  refused("beyond.bin", "token 256 at position 50 is outside the vocabulary of 256");
  folder.write("good.bin", token_file(20240520, 1, 100, tokens));
  folder.write_text();
  refused("good.bin text.txt", "one kind");
  refused("good.bin missing.bin", "missing.bin");
  CHECK(folder.run("train --plan p.json --steps 1 --data good.bin good.bin").code == 0);
}

TEST_CASE("a text is refused for a model of another vocabulary, with the way out") {
  const Folder folder;
  folder.write_text();
  folder.write("m/config.json", R"({"model_type": "gpt2", "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64,
                                    "vocab_size": 50257})");
  json plan = small_plan();
  plan["model"] = "m/config.json";
  folder.write("p.json", plan.dump());
  check_failure(
      folder.run("train --plan p.json --steps 1 --data text.txt"), 2,
      "text.txt is a text, whose 256 bytes are its tokens, and the model m/config.json has the 50257 tokens of "
      "another vocabulary; give the model's tokenizer with --tokenizer");
  check_failure(folder.run("train --auto --model gpt2-124m --global-batch 4 --steps 1 --data text.txt"), 2,
                "tokens of another vocabulary");
  folder.write("t.bin", token_file(20240520, 1, 100, std::vector<std::uint16_t>(100, 50256)));
  CHECK(folder.run("train --plan p.json --steps 1 --data t.bin").code == 0);
}

TEST_CASE("weights to start from are those of the model, as their config.json says it") {
  const Folder folder;
  const auto golden = std::filesystem::path(galvatron::test::tests_dir) / "train/pytorch/huggingface/llama";
  std::filesystem::copy(golden, folder.path() / "weights");
  std::vector<std::uint16_t> tokens(200);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::uint16_t>(i * i % 61);
  folder.write("t.bin", token_file(20240520, 1, 200, tokens));
  json config = json::parse(folder.read("weights/config.json"));
  json plan = small_plan(1);
  plan["layers"] = {plan["head"], plan["head"]};
  plan["stages"][0]["last_layer"] = 1;
  plan["model"] = "weights";
  folder.write("p.json", plan.dump());
  const std::string train = "train --plan p.json --data t.bin --steps 1 --init-from weights --json";
  const Ran good = folder.run(train);
  CAPTURE(good.err);
  REQUIRE(good.code == 0);
  // Another base of the rotary positions changes no shape, but the loss.
  config["rope_parameters"]["rope_theta"] = 10000.0;
  folder.write("other/config.json", config.dump());
  plan["model"] = "other";
  folder.write("p.json", plan.dump());
  const Ran refused = folder.run("train --plan p.json --data t.bin --steps 1 --init-from weights");
  check_failure(refused, 2,
                "--init-from: the weights in weights are of another model: base of the rotary positions 500 in "
                "weights/config.json, 10000 in the model other/config.json");
  // Weights that are no numbers are told by name, and not blamed on the learning rate.
  plan["model"] = "weights";
  folder.write("p.json", plan.dump());
  std::string bytes = folder.read("weights/model-00002-of-00003.safetensors");
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\x7f");
  folder.write("weights/model-00002-of-00003.safetensors", bytes);
  const Ran damaged = folder.run("train --plan p.json --data t.bin --steps 1 --quiet --init-from weights");
  check_failure(damaged, 2, "weights/model-00002-of-00003.safetensors: element ");
  CHECK(damaged.err.find("is not a number") != std::string::npos);
  CHECK(damaged.err.find("learning rate") == std::string::npos);
}

// A long run, to which `then` happens after its first step. The wait ends with the run, too.
Ran disturbed(const Folder& folder, const std::string& options, const std::string& then) {
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  std::filesystem::remove(folder.path() / "m.jsonl");
  return folder.shell("$G train --plan p.json --data text.txt --steps 1000000 --metrics m.jsonl --quiet " + options +
                      " & until [ -s m.jsonl ] || ! kill -0 $!; do sleep 0.02; done; " + then + "; wait $!");
}

TEST_CASE("a text that is emptied while it is read ends the run with one line") {
  const Folder folder;
  check_failure(disturbed(folder, "", ": > text.txt"), 2, "a data file became shorter");
  const Ran json = disturbed(folder, "--json", ": > text.txt");
  CHECK(json.code == 2);
  CHECK(json.json().at("exit_code") == 2);
}

TEST_CASE("unwritable metrics are told before training; a full disk during it") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base = "train --plan p.json --data text.txt --steps 3 --metrics ";
  check_failure(folder.run(base + "missing/m.jsonl"), 2, "missing/m.jsonl");
  check_failure(folder.run(base + "."), 2, "directory");
  const Ran full = folder.run(base + "/dev/full");
  CHECK(full.code == 2);
  CHECK(full.err.find("galvatron: cannot write /dev/full: No space left on device") != std::string::npos);
  CHECK(folder.names().size() == 2);
}

TEST_CASE("a run that diverges ends with one line and whole metrics") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const Ran ran = folder.run(
      "train --plan p.json --data text.txt --steps 200 --lr 1000 --warmup 0 --clip 0 --weight-decay 0 --metrics "
      "m.jsonl --quiet");
  if (ran.code != 0) {  // such a rate makes numbers overflow on most machines, not on all
    check_failure(ran, 4, "diverged");
    std::istringstream lines(folder.read("m.jsonl"));
    std::string line;
    while (std::getline(lines, line)) CHECK(json::parse(line).at("step").is_number_integer());
  }
}

TEST_CASE("progress is plain lines without a terminal, and none when quiet") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", small_plan().dump());
  const std::string base = "train --plan p.json --data text.txt --steps 300 ";
  const Ran ran = folder.run(base);
  CHECK(ran.code == 0);
  CHECK(ran.err.find_first_of("\r\x1b") == std::string::npos);
  if (!ran.err.empty()) CHECK(ran.err.starts_with("train "));
}
