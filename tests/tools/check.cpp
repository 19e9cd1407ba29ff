// check: published configurations of other trainers, as a user has them. What the settings are is from public
// documentation; the address is in each file of tests/compat/configs/, or here.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "run.hpp"

namespace {

struct Published {
  const char* file;
  const char* cluster;
  const char* model;  // empty: the file has it
  std::vector<std::string> unknown;
};

const std::vector<Published>& published() {
  // DeepSpeed's are axolotl's deepspeed_configs/zero3_bf16.json and zero2.json, and the example of
  // www.deepspeed.ai/getting-started; JSON has no comments.
  static const std::vector<Published> all{
      {"megatron_gpt3_175b.sh", "1024xa100-80g", "", {}},
      {"megatron_345m_tp2_pp2.sh", "8xa100-80g", "", {}},
      {"megatron_2021_1_7b.sh", "32xa100-80g", "", {}},
      {"megatron_2021_18b.sh", "256xa100-80g", "", {}},
      {"megatron_2021_39b.sh", "512xa100-80g", "", {}},
      {"megatron_2021_145b.sh", "1536xa100-80g", "", {}},
      {"megatron_2021_530b.sh", "2520xa100-80g", "", {}},
      {"megatron_2021_1t.sh", "3072xa100-80g", "", {}},
      {"megatron_2022_22b.sh", "8xa100-80g", "", {}},
      {"megatron_2022_175b.sh", "64xa100-80g", "", {}},
      {"megatron_2022_530b.sh", "280xa100-80g", "", {}},
      {"megatron_2022_1t.sh", "512xa100-80g", "", {}},
      {"megatron_llama3_8b_fp8.sh", "8xh100-80g", "", {"--fp8-param-gather"}},
      {"bloom_176b.slurm",
       "384xa100-80g",
       "",
       {"--abort-on-unmet-fused-kernel-constraints", "--deepspeed-activation-checkpointing"}},
      {"bloom_1b3.slurm",
       "64xa100-80g",
       "",
       {"--abort-on-unmet-fused-kernel-constraints", "--deepspeed-activation-checkpointing"}},
      {"torchtitan_llama3_8b.toml", "64xa100-80g", "", {}},
      {"torchtitan_llama3_70b.toml", "64xa100-80g", "", {}},
      {"torchtitan_llama3_405b.toml", "128xh100-80g", "", {}},
      {"torchtitan_llama3_405b_3d.toml", "512xh100-80g", "", {}},
      {"deepspeed_zero3_bf16.json", "8xh100-80g", "llama2-7b", {}},
      {"deepspeed_zero2_offload.json",
       "8xh100-80g",
       "llama2-7b",
       {"zero_optimization.offload_optimizer.device (what is offloaded is priced as on the device)"}},
      {"deepspeed_zero1.json", "8xa100-80g", "gpt2-1.5b", {}},
      {"accelerate_trl_fsdp2.yaml", "8xh100-80g", "llama3-8b", {}},
      {"accelerate_alignment_handbook.yaml", "8xa100-80g", "llama2-7b", {}},
  };
  return all;
}

std::string path_of(const std::string& file) {
  return std::string(galvatron::test::tests_dir) + "/compat/configs/" + file;
}

}  // namespace

TEST_CASE("published configurations are read, priced, and improved or confirmed") {
  REQUIRE(published().size() >= 20);
  const Folder folder;
  for (const Published& one : published()) {
    CAPTURE(one.file);
    const std::string model = *one.model == '\0' ? "" : std::string(" --model ") + one.model;
    const Ran ran =
        folder.run("check " + path_of(one.file) + model + " --cluster " + one.cluster + " --time 0.5 --json");
    CAPTURE(ran.err);
    REQUIRE((ran.code == 0 || ran.code == 3));
    const auto json = ran.json();
    CHECK(json.at("fits").get<bool>() == (ran.code == 0));
    CHECK(json.at("unknown").get<std::vector<std::string>>() == one.unknown);
    const double seconds = json.at("iteration_seconds");
    CHECK(json.at("interval").at(0).get<double>() < seconds);
    CHECK(json.at("interval").at(1).get<double>() > seconds);
    CHECK(json.at("mfu").get<double>() > 0.02);
    CHECK(json.at("mfu").get<double>() < 0.75);
    CHECK(json.at("peak_bytes").get<double>() > 1e9);
    if (json.at("best").is_null()) {
      CHECK_FALSE(json.at("best_reason").get<std::string>().empty());
      continue;
    }
    const auto& best = json.at("best");
    CHECK(best.at("peak_bytes").get<double>() <= json.at("budget_bytes").get<double>());
    if (best.at("changes").empty())
      CHECK(best.at("iteration_seconds").get<double>() == seconds);
    else
      CHECK((ran.code == 3 || best.at("iteration_seconds").get<double>() < seconds));
  }
}

TEST_CASE("check says what is wrong with a file") {
  const Folder folder;
  folder.write("none.sh", "ls -l\n");
  folder.write("bad.json", "{\"zero_optimization\": {\"stage\": \"three\"}}");
  folder.write("bad.yaml", "a: [1\n");
  folder.write("bad.toml", "[training\n");
  for (const auto& [file, what] : {std::pair("none.sh", "no arguments of Megatron-LM"),
                                   {"bad.json --model llama2-7b", "zero_optimization.stage is three"},
                                   {"bad.yaml --model llama2-7b", "YAML"},
                                   {"bad.toml --model llama2-7b", "TOML"}}) {
    const Ran ran = folder.run(std::string("check ") + file);
    CAPTURE(ran.err);
    CHECK(ran.code == 2);
    CHECK(ran.err.find(what) != std::string::npos);
  }
}

TEST_CASE("plans of a trainer keep its reserve, and name it") {
  const Folder folder;
  const std::string plan = "plan --model llama2-7b --cluster 8xa100-80g --global-batch 32 --json ";
  for (const char* const trainer :
       {"galvatron", "megatron", "megatron-2021", "megatron-2022", "megatron-2024", "megatron-2026",
        "megatron-deepspeed", "pytorch-fsdp", "pytorch-fsdp-compiled", "torchtitan", "deepspeed", "mosaicml", "nemo"}) {
    CAPTURE(trainer);
    const Ran ran = folder.run(plan + "--trainer " + trainer + " --out plan.json");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    const auto json = ran.json();
    const double reserve = json.at("reserve_bytes");
    CHECK(reserve > 1e9);
    for (const auto& stage : json.at("stages"))
      CHECK(stage.at("peak_bytes").get<double>() + reserve <= 81251.0 * 1048576);
    CHECK(json.at("interval").size() == 2);
    CHECK(json.at("peak_bytes_interval").size() == 2);
    const Ran cost = folder.run("cost --plan plan.json --json");
    REQUIRE(cost.code == 0);
    CHECK(cost.json().at("trainer") == trainer);
    CHECK(cost.json().at("iteration_seconds") == json.at("iteration_seconds"));
  }
  CHECK(folder.run(plan + "--reserve 20GiB").json().at("reserve_bytes") == 20LL << 30);
  CHECK(folder.run(plan + "--reserve 0").json().at("reserve_bytes") == 0);
  folder.write("ours.json",
               R"({"format": "galvatron-trainer", "version": 1, "name": "ours", "like": "nemo",
                   "memory": {"context": "2GiB"}, "sources": {"memory": "a test"}})");
  const Ran ours = folder.run(plan + "--trainer ours.json --out plan.json");
  CHECK(ours.code == 0);
  CHECK(folder.run("cost --plan plan.json --json").json().at("trainer") == "ours.json");
  const Ran unknown = folder.run(plan + "--trainer megatron-1999");
  CHECK(unknown.code == 2);
  CHECK(unknown.err.find("known are galvatron") != std::string::npos);
  const Ran leaves = folder.run(plan + "--trainer megatron-2021 --space dp,zero3");
  CHECK(leaves.err.find("cannot be told") != std::string::npos);
}
