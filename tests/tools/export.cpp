// export: plans for other trainers, and as headers.
#include <cstdint>
#include <string>
#include <utility>

#include "run.hpp"

namespace {

using nlohmann::json;

// A plan that no target lacks anything of.
json whole_plan(int ranks = 2) {
  json plan = small_plan(ranks);
  for (json& layer : plan["layers"]) layer["keep_outputs"] = true;
  return plan;
}

// A plan that every target lacks something of: two stages, ZeRO 1 in one layer.
json mixed_plan() {
  json plan = whole_plan(2);
  plan["global_batch"] = 8;
  plan["microbatches"] = 2;
  plan["stages"] = {{{"first_layer", 0}, {"last_layer", 1}, {"ranks", {0, 2}}},
                    {{"first_layer", 2}, {"last_layer", 3}, {"ranks", {2, 2}}}};
  plan["layers"][1]["zero"] = 1;
  plan["layers"][2]["recompute"] = "full";
  plan["layers"][2].erase("keep_outputs");
  return plan;
}

}  // namespace

TEST_CASE("every target gets a text, and JSON has the same one") {
  const Folder folder;
  folder.write("p.json", whole_plan().dump());
  for (const std::string target : {"megatron", "torchtitan", "deepspeed", "accelerate", "hetu", "header"}) {
    CAPTURE(target);
    const Ran text = folder.run("export p.json --to " + target);
    CHECK(text.code == 0);
    CHECK(text.err.find("not expressed") == std::string::npos);
    const Ran ran = folder.run("export p.json --json --to " + target);
    REQUIRE(ran.code == 0);
    const json report = ran.json();
    CHECK(report.at("target") == target);
    CHECK(report.at("text") == text.out);
    CHECK(report.at("not_expressed") == json::array());
    CHECK(report.at("set_elsewhere").is_array());
    CHECK(report.contains("exported") == (target != "header"));
    if (target != "header") CHECK(report["exported"].at("fits") == true);
    CHECK(folder.run("export p.json --strict --quiet --to " + target).err.empty());
    const Ran file = folder.run("export p.json --out f --to " + target);
    CHECK(file.code == 0);
    CHECK(file.out.empty());
    CHECK(folder.read("f") == text.out);
  }
  CHECK(folder.names().size() == 2);
}

TEST_CASE("what a target cannot express is told, and --strict refuses it") {
  const Folder folder;
  folder.write("p.json", mixed_plan().dump());
  for (const std::string target : {"megatron", "torchtitan", "deepspeed", "hetu"}) {
    CAPTURE(target);
    const Ran ran = folder.run("export p.json --json --to " + target);
    REQUIRE(ran.code == 0);
    const json sentences = ran.json().at("not_expressed");
    REQUIRE(sentences.size() >= 1);
    for (const auto& sentence : sentences)
      CHECK(ran.err.find("not expressed: " + sentence.get<std::string>() + "\n") != std::string::npos);
    CHECK(folder.run("export p.json --quiet --to " + target).err.empty());
    check_failure(folder.run("export p.json --strict --out f --to " + target), 2, "--strict: " + target);
    CHECK(!folder.has("f"));
    const Ran failed = folder.run("export p.json --strict --json --to " + target);
    CHECK(failed.code == 2);
    CHECK(failed.json().at("exit_code") == 2);
  }
  CHECK(folder.run("export p.json --strict --to header").code == 0);
}

TEST_CASE("the exported job is priced, and the first line warns when it does not fit") {
  const Folder folder;
  const std::string question = "--model gpt2-1.5b --cluster 8xa100-80g --global-batch 64 --precision fp32 ";
  REQUIRE(folder.run("plan " + question + "--space dp --memory 50GiB --out p.json").code == 0);
  // What the job takes is what `cost` says of the plan that keeps the outputs of norms and activations.
  json kept = json::parse(folder.read("p.json"));
  CHECK(!kept["layers"][0].contains("keep_outputs"));
  for (json& layer : kept["layers"]) layer["keep_outputs"] = true;
  folder.write("kept.json", kept.dump());
  const json cost = folder.run("cost --plan kept.json --json").json();
  const auto peak = cost.at("stages")[0].at("peak_bytes").get<std::int64_t>();
  CHECK(peak > std::int64_t{60} << 30);
  for (const std::string target : {"megatron", "torchtitan", "deepspeed", "accelerate", "hetu"}) {
    CAPTURE(target);
    const Ran ran = folder.run("export p.json --json --to " + target);
    REQUIRE(ran.code == 0);
    const json priced = ran.json().at("exported");
    CHECK(priced.at("peak_bytes") == peak);
    CHECK(priced.at("iteration_seconds") == cost.at("iteration_seconds"));
    CHECK(priced.at("budget_bytes") == std::int64_t{50} << 30);
    CHECK(priced.at("fits") == false);
    CHECK(ran.err.starts_with("galvatron: warning: the exported job takes " + std::to_string(peak) +
                              " bytes (62.0 GiB)"));
    CHECK(ran.err.find("the budget is 50.0 GiB") < ran.err.find('\n'));
    // A script that does not look at the text is told as well.
    CHECK(folder.run("export p.json --quiet --to " + target).err.find("warning") != std::string::npos);
    check_failure(folder.run("export p.json --strict --out f --to " + target), 3, "62.0 GiB");
    CHECK(!folder.has("f"));
    // The command that it gives makes a plan of which nothing is lost, and which fits.
    const std::string command = priced.at("command");
    CHECK(ran.err.find(command) < ran.err.find('\n'));
    CHECK(command.starts_with("galvatron plan " + question + "--memory 50GiB --space uniform"));
    REQUIRE(folder.run(command.substr(std::string("galvatron ").size())).code == 0);
    const Ran again = folder.run("export plan_for_" + target + ".json --strict --json --to " + target);
    REQUIRE(again.code == 0);
    CHECK(again.json().at("exported").at("fits") == true);
    CHECK(again.json().at("not_expressed") == json::array());
  }
  // A budget that holds it: only what is not expressed is left to refuse.
  REQUIRE(folder.run("plan " + question + "--space dp --out p.json").code == 0);
  kept = json::parse(folder.read("p.json"));
  for (json& layer : kept["layers"]) layer["recompute"] = "none";
  kept["predicted"].erase("budget_bytes");
  folder.write("p.json", kept.dump());
  check_failure(folder.run("export p.json --strict --to megatron"), 2, "outputs of norms and activations");
}

TEST_CASE("a uniform plan of a large model loses nothing in any export") {
  const Folder folder;
  const std::string question = "plan --model llama2-70b --cluster 64xh100-80g --global-batch 512 --out p.json --space ";
  REQUIRE(folder.run(question + "uniform").code == 0);
  const Ran ran = folder.run("export p.json --to megatron --strict --json");
  REQUIRE(ran.code == 0);
  CHECK(ran.json().at("not_expressed") == json::array());
  CHECK(ran.json().at("exported").at("fits") == true);
  const json plan = json::parse(folder.read("p.json"));
  for (const json& layer : plan.at("layers")) CHECK(layer == plan.at("embedding"));
  CHECK(plan.at("head") == plan.at("embedding"));
  CHECK(ran.json().at("exported").at("iteration_seconds") == plan.at("predicted").at("iteration_seconds"));
  for (const std::string target : {"megatron", "torchtitan", "deepspeed", "accelerate", "hetu"}) {
    CAPTURE(target);
    REQUIRE(folder.run(question + target).code == 0);
    CHECK(folder.run("export p.json --strict --to " + target).code == 0);
  }
  check_failure(folder.run(question + "uniform --schedule gpipe"), 2, "none of the schedules");
}

TEST_CASE("a job that cannot be priced is told, and refused with --strict") {
  const Folder folder;
  json plan = whole_plan();
  plan["cluster"] = "gone.json";
  folder.write("p.json", plan.dump());
  const Ran ran = folder.run("export p.json --json --to megatron");
  CHECK(ran.code == 0);
  CHECK(ran.json().at("exported").is_null());
  CHECK(ran.json().at("not_priced").get<std::string>().find("gone.json") != std::string::npos);
  CHECK(ran.err.find("the exported job is not priced") == 0);
  check_failure(folder.run("export p.json --strict --to megatron"), 2, "--cluster");
  CHECK(folder.run("export p.json --strict --to megatron --cluster 2xa100-80g").code == 0);
  plan["cluster"] = "2xa100-80g";
  plan["model"] = "gone/config.json";
  folder.write("p.json", plan.dump());
  check_failure(folder.run("export p.json --strict --to megatron"), 2, "--model");
  CHECK(folder.run("export p.json --strict --to megatron --model gpt2-tiny").code == 0);
  check_failure(folder.run("export p.json --to header --cluster host"), 2, "--cluster");
}

TEST_CASE("models that a target has no program for are refused") {
  const Folder folder;
  for (const auto& [model, family] : {std::pair{"bert-tiny", "BERT"}, std::pair{"vit-tiny", "ViT"},
                                      std::pair{"swin-toy", "Swin"}, std::pair{"t5-tiny", "T5"}}) {
    CAPTURE(model);
    REQUIRE(folder
                .run("plan --model " + std::string(model) +
                     " --cluster 2xa100-80g --global-batch 8 --space uniform,deepspeed --out p.json")
                .code == 0);
    for (const std::string target : {"megatron", "torchtitan", "hetu"})
      for (const std::string option : {" --strict", ""})
        check_failure(folder.run("export p.json --to " + target + option), 2, family);
    CHECK(folder.run("export p.json --strict --to deepspeed").code == 0);
    CHECK(folder.run("export p.json --to header").code == 0);
  }
}

TEST_CASE("a shell reads the arguments for Megatron-LM") {
  const Folder folder;
  json plan = mixed_plan();
  plan["stages"] = {{{"first_layer", 0}, {"last_layer", 0}, {"ranks", {0, 2}}},
                    {{"first_layer", 1}, {"last_layer", 2}, {"ranks", {2, 2}}},
                    {{"first_layer", 3}, {"last_layer", 3}, {"ranks", {4, 2}}}};
  plan["layers"].push_back(plan["layers"][0]);
  plan["layers"].push_back(plan["layers"][0]);
  plan["stages"].push_back({{"first_layer", 4}, {"last_layer", 5}, {"ranks", {6, 2}}});
  plan["model"] = "$(touch injected) `touch injected` \n touch injected";
  folder.write("p.json", plan.dump());
  REQUIRE(folder.run("export p.json --to megatron --out args.sh").code == 0);
  const Ran ran = folder.shell("bash -c '. ./args.sh && printf \"%s\\n\" \"${PLAN_ARGS[@]}\"'");
  CHECK(ran.code == 0);
  CHECK(ran.err.empty());
  CHECK(ran.out.starts_with("--num-layers\n6\n"));
  CHECK(ran.out.find("--pipeline-model-parallel-layout\nEt|t*2|t|t*2L\n") != std::string::npos);
  CHECK(!folder.has("injected"));
}

TEST_CASE("the example's header is what the command writes") {
  const Folder folder;
  const std::string example = std::string(galvatron::test::tests_dir) + "/../examples/05_frozen_plan";
  const Ran ran = folder.run("export " + example + ".json --to header --out frozen.hpp");
  CHECK(ran.code == 0);
  CHECK(folder.shell("diff frozen.hpp " + example + ".hpp").code == 0);
  CHECK(folder.run("export " + example + ".json --to header --name mine").out.find("namespace mine {") !=
        std::string::npos);
}

TEST_CASE("bad usage of export is told and nothing is written") {
  const Folder folder;
  folder.write("p.json", small_plan().dump());
  check_failure(folder.run("export p.json"), 2, "--to is missing");
  check_failure(folder.run("export --to hetu"), 2, "plan is missing");
  check_failure(folder.run("export p.json --to pytorch"), 2, "megatron|torchtitan|deepspeed|accelerate|hetu|header");
  check_failure(folder.run("export missing.json --to hetu"), 2, "missing.json");
  check_failure(folder.run("export p.json --to header --name 1x"), 2, "identifier");
  check_failure(folder.run("export p.json --to header --name class"), 2, "keyword");
  check_failure(folder.run("export p.json --to hetu --name x"), 2, "--name");
  check_failure(folder.run("export p.json --to hetu --release 0.2"), 2, "--release is of torchtitan");
  check_failure(folder.run("export p.json --to torchtitan --release 0.1"), 2, "0.3|0.2");
  folder.write("mixed.json", mixed_plan().dump());
  check_failure(folder.run("export mixed.json --to accelerate"), 2, "a pipeline of 2 stages");
  CHECK(folder.run("export mixed.json --to torchtitan").out.find("def planned(") != std::string::npos);
  CHECK(folder.run("export mixed.json --to torchtitan --release 0.2").out.find("[parallelism]") != std::string::npos);
  check_failure(folder.run("export p.json --to hetu --out missing/f"), 2, "missing/f");
  check_failure(folder.run("export p.json --to hetu --out ."), 2, "directory");
  check_failure(folder.run("export p.json --to hetu > /dev/full"), 2, "standard output");
  folder.write("bad.json", "{");
  check_failure(folder.run("export bad.json --to hetu"), 2, "bad.json: not valid JSON");
  json plan = small_plan();
  plan["layers"][0]["data"] = 4;
  folder.write("bad.json", plan.dump());
  check_failure(folder.run("export bad.json --to megatron --out f"), 2, "layer 0");
  CHECK(folder.names().size() == 3);
}
