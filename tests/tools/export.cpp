// export: plans for other trainers, and as headers.
#include <string>

#include "run.hpp"

namespace {

using nlohmann::json;

// A plan that every target lacks something of: two stages, ZeRO 1 in one layer.
json mixed_plan() {
  json plan = small_plan(2);
  plan["global_batch"] = 8;
  plan["microbatches"] = 2;
  plan["stages"] = {{{"first_layer", 0}, {"last_layer", 1}, {"ranks", {0, 2}}},
                    {{"first_layer", 2}, {"last_layer", 3}, {"ranks", {2, 2}}}};
  plan["layers"][1]["zero"] = 1;
  plan["layers"][2]["recompute"] = "full";
  return plan;
}

}  // namespace

TEST_CASE("every target gets a text, and JSON has the same one") {
  const Folder folder;
  folder.write("p.json", small_plan().dump());
  for (const std::string target : {"megatron", "torchtitan", "deepspeed", "hetu", "header"}) {
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
  check_failure(folder.run("export p.json --to pytorch"), 2, "megatron|torchtitan|deepspeed|hetu|header");
  check_failure(folder.run("export missing.json --to hetu"), 2, "missing.json");
  check_failure(folder.run("export p.json --to header --name 1x"), 2, "identifier");
  check_failure(folder.run("export p.json --to header --name class"), 2, "keyword");
  check_failure(folder.run("export p.json --to hetu --name x"), 2, "--name");
  check_failure(folder.run("export p.json --to hetu --out missing/f"), 2, "missing/f");
  check_failure(folder.run("export p.json --to hetu --out ."), 2, "directory");
  check_failure(folder.run("export p.json --to hetu > /dev/full"), 2, "standard output");
  folder.write("bad.json", "{");
  check_failure(folder.run("export bad.json --to hetu"), 2, "bad.json: not valid JSON");
  json plan = small_plan();
  plan["layers"][0]["data"] = 4;
  folder.write("bad.json", plan.dump());
  check_failure(folder.run("export bad.json --to megatron --out f"), 2, "layer 0");
  CHECK(folder.names().size() == 2);
}
