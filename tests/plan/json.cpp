#include <galvatron/plan/json.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <string>

#include <unistd.h>

#include "../says.hpp"

using namespace galvatron;
using nlohmann::json;

namespace {

Plan example() {
  Plan plan;
  plan.model = "llama-tiny";
  plan.cluster = "a \"quoted\" place";
  plan.global_batch = 16;
  plan.sequence_length = 128;
  plan.precision = Precision::bf16;
  plan.microbatches = 2;
  plan.schedule = ScheduleKind::gpipe;
  plan.stages = {{0, 2, 0, 4}, {3, 3, 4, 4}};
  plan.layers = {{.tensor = 2, .sequence = SequenceKind::megatron, .data = 2, .zero = 3},
                 {.data = 4, .zero = 1, .recompute = RecomputeKind::full},
                 {.tensor = 4},
                 {.tensor = 2, .data = 2}};
  plan.embedding = {.tensor = 4};
  plan.head = {.tensor = 1, .data = 4};
  plan.predicted.iteration = {0.1234567890123456};
  plan.predicted.mfu = 1.0 / 3;
  plan.predicted.budget = 16_GiB;
  plan.predicted.stages = {{1_GiB, {0.25}, {0.5}}, {2_GiB, {1e-9}, {3e5}}};
  plan.predicted.alternatives = {{"data parallel", "m1: dp8", true, false, {1}, {2}, {3}, {4}, {5}, 77_GiB}};
  return plan;
}

std::string why(const json& value) {
  const auto plan = plan_from_json(value, "plan.json");
  return plan ? "" : plan.error().message;
}

// The message for the example with one thing changed; it must be one line, name the file, and be a usage error.
std::string why_changed(const std::function<void(json&)>& change) {
  json value = to_json(example());
  change(value);
  const auto plan = plan_from_json(value, "plan.json");
  REQUIRE(!plan);
  CHECK(plan.error().kind == ErrorKind::usage);
  CHECK(plan.error().message.find('\n') == std::string::npos);
  CHECK(plan.error().message.starts_with("plan.json"));
  return plan.error().message;
}

}  // namespace

TEST_CASE("a plan that is written reads back as the same plan") {
  const Plan plan = example();
  CHECK(why_inconsistent(plan) == "");
  const auto value = parse_json(plan_text(plan), "plan.json");
  REQUIRE(value);
  const auto again = plan_from_json(*value, "plan.json");
  REQUIRE(again);
  CHECK(*again == plan);
  CHECK(plan_text(*again) == plan_text(plan));
}

TEST_CASE("a plan overlaps traffic unless it says that it does not") {
  Plan plan = example();
  CHECK(plan_text(plan).find("overlap") == std::string::npos);
  plan.overlap = false;
  const json value = to_json(plan);
  CHECK(value.at("overlap") == false);
  CHECK(value_or_throw(plan_from_json(value, "plan.json")) == plan);
  CHECK(says(why_changed([](json& v) { v["overlap"] = "no"; }), "overlap"));
}

TEST_CASE("the moments of a plan's optimizer are fp32 unless it says that they are bf16") {
  Plan plan = example();
  CHECK(plan_text(plan).find("moments") == std::string::npos);
  plan.moments = Precision::bf16;
  const json value = to_json(plan);
  CHECK(value.at("moments") == "bf16");
  CHECK(value_or_throw(plan_from_json(value, "plan.json")) == plan);
  CHECK(says(why_changed([](json& v) { v["moments"] = "fp8"; }), "known are fp32, bf16"));
}

TEST_CASE("the recipe of 8-bit products is tensorwise unless a plan says another that its trainer has") {
  Plan plan = example();
  plan.precision = Precision::fp8;
  CHECK(plan_text(plan).find("fp8_recipe") == std::string::npos);
  plan.trainer = value_or_throw(cost::load_trainer("megatron-2026"));
  for (const Fp8Recipe recipe : {Fp8Recipe::tensorwise, Fp8Recipe::delayed, Fp8Recipe::mxfp8}) {
    plan.trainer.traits.fp8_recipe = recipe;
    CHECK((plan_text(plan).find("fp8_recipe") != std::string::npos) == (recipe != Fp8Recipe::tensorwise));
    CHECK(value_or_throw(plan_from_json(to_json(plan), "test")) == plan);
  }
  const auto why = [](const Plan& other) { return plan_from_json(to_json(other), "test").error().message; };
  plan.trainer.traits.fp8_recipe = Fp8Recipe::rowwise;
  CHECK(why(plan).find("the FP8 recipe of megatron-2026 is tensorwise, delayed, blockwise or mxfp8, not rowwise") !=
        std::string::npos);
  // This library's runtime.
  plan.trainer = {};
  plan.trainer.traits.fp8_recipe = Fp8Recipe::delayed;
  CHECK(why(plan).find("the FP8 recipe of galvatron is tensorwise, not delayed") != std::string::npos);
  auto value = to_json(plan);
  value["precision"] = "bf16";
  CHECK(plan_from_json(value, "test").error().message.find("a recipe is of") != std::string::npos);
}

TEST_CASE("version 2 of plan files has the words of the command line for what is recomputed") {
  Plan plan = example();
  plan.version = 2;
  plan.layers[0].recompute = RecomputeKind::cheap;
  plan.layers[2].recompute = RecomputeKind::none;
  json value = to_json(plan);
  CHECK(value["version"] == 2);
  CHECK(value["layers"][0]["recompute"] == "cheap");
  CHECK(value["layers"][2]["recompute"] == "none");
  CHECK(!value["layers"][2].contains("keep_outputs"));
  CHECK(value_or_throw(plan_from_json(value, "plan.json")) == plan);
  value["version"] = 1;  // which does not know the word
  CHECK(says(plan_from_json(value, "plan.json").error().message, "known are none, selective, full"));
  value["version"] = 2;
  value["layers"][2]["keep_outputs"] = true;
  CHECK(says(plan_from_json(value, "plan.json").error().message, "keep_outputs"));
}

TEST_CASE("a layer that keeps what norms and activations give recomputes none, and says that it keeps them") {
  Plan plan = example();
  plan.layers[2].recompute = RecomputeKind::none;
  const json value = to_json(plan);
  CHECK(value["layers"][2]["recompute"] == "none");
  CHECK(value["layers"][2]["keep_outputs"] == true);
  CHECK(!value["layers"][3].contains("keep_outputs"));
  CHECK(value_or_throw(plan_from_json(value, "plan.json")) == plan);
  CHECK(value_or_throw(plan_from_json(value_or_throw(parse_json(plan_text(plan), "plan.json")), "plan.json")) == plan);
  json said = to_json(example());
  said["layers"][2]["keep_outputs"] = false;
  CHECK(value_or_throw(plan_from_json(said, "plan.json")) == example());
  for (const char* kind : {"selective", "full"})
    CHECK(says(why_changed([&](json& v) { v["head"]["recompute"] = kind, v["head"]["keep_outputs"] = true; }),
               "\"keep_outputs\": true contradicts \"recompute\": \"" + std::string(kind) + "\""));
  CHECK(says(why_changed([](json& v) { v["layers"][2]["keep_outputs"] = "yes"; }), "keep_outputs"));
  CHECK(says(why_changed([](json& v) { v["layers"][2]["recompute"] = "never"; }), "known are none, selective, full"));
}

TEST_CASE("strided tensor ranks are said where a layer has them") {
  Plan plan = example();
  plan.layers[3].strided = true;
  const json value = to_json(plan);
  CHECK(value["layers"][3]["strided"] == true);
  CHECK(!value["layers"][0].contains("strided"));
  CHECK(value_or_throw(plan_from_json(value, "plan.json")) == plan);
  CHECK(value_or_throw(plan_from_json(value_or_throw(parse_json(plan_text(plan), "plan.json")), "plan.json")) == plan);
  CHECK(says(why_changed([](json& v) { v["layers"][3]["strided"] = 1; }), "strided"));
  CHECK(says(why_changed([](json& v) { v["layers"][1]["strided"] = true; }), "tensor degree of at least 2"));
}

TEST_CASE("compressed dispatch is said where a layer has it, and its numbers where they are others") {
  CHECK_FALSE(to_json(example())["layers"][0].contains("dispatch"));
  CHECK_FALSE(to_json(example()).contains("lsh"));
  Plan plan = example();
  plan.layers[2] = {.data = 4, .expert = 4, .dispatch = DispatchKind::lsh};
  plan.lsh = {.hashes = 8, .width = 16, .residual = ResidualKind::off, .rate = 0.25, .seed = 7, .most_rate = 0.75};
  const json written = to_json(plan);
  CHECK(written["layers"][2]["dispatch"] == "lsh");
  CHECK_FALSE(written["layers"][1].contains("dispatch"));
  CHECK(written["lsh"]["residual"] == "off");
  CHECK(value_or_throw(plan_from_json(written, "plan.json")) == plan);
  CHECK(why_changed([](json& value) { value["layers"][2]["dispatch"] = "lsh"; }).find("experts on other ranks") !=
        std::string::npos);
}

TEST_CASE("adapters are said where a plan has some") {
  CHECK_FALSE(to_json(example()).contains("lora"));
  Plan plan = example();
  plan.adapters = {.rank = 16, .alpha = 24.5, .query = true, .value = true, .down = true};
  const json written = to_json(plan);
  CHECK(written["lora"] == json{{"rank", 16}, {"alpha", 24.5}, {"targets", "q,v,down"}});
  CHECK(value_or_throw(plan_from_json(written, "plan.json")) == plan);
  const auto changed = [&](const char* key, const json& to) {
    return why_changed([&](json& value) {
      value["lora"] = {{"rank", 16}, {"alpha", 32}, {"targets", "q,v"}};
      value["lora"][key] = to;
    });
  };
  CHECK(says(changed("rank", 0), "rank"));
  CHECK(says(changed("targets", "q,w"), "no linear layer is named \"w\""));
  CHECK(says(changed("dropout", 0.1), "dropout"));
}

TEST_CASE("nodes of experts are said where tokens go by them") {
  CHECK_FALSE(to_json(example())["layers"][0].contains("expert_nodes"));
  Plan plan = example();
  plan.layers[2] = {.data = 4, .expert = 4, .expert_nodes = 2};
  const json written = to_json(plan);
  CHECK(written["layers"][2]["expert_nodes"] == 2);
  CHECK_FALSE(written["layers"][1].contains("expert_nodes"));
  CHECK(value_or_throw(plan_from_json(written, "plan.json")) == plan);
  CHECK(says(why_changed([](json& value) { value["layers"][2]["expert_nodes"] = 2; }), "divides the expert degree"));
}

TEST_CASE("a plan written by hand needs no prediction") {
  json value = to_json(example());
  value.erase("predicted");
  Plan plain = example();
  plain.predicted = {};
  CHECK(value_or_throw(plan_from_json(value, "plan.json")) == plain);
}

TEST_CASE("the keys of a plan file are those of the contract") {
  const json value = to_json(example());
  for (const char* key : {"version", "model", "cluster", "global_batch", "sequence_length", "precision", "microbatches",
                          "schedule", "virtual_stages", "stages", "layers", "embedding", "head", "predicted"})
    CHECK_MESSAGE(value.contains(key), key);
  CHECK(value.size() == 14);
  CHECK(value["stages"][1]["ranks"] == json::array({4, 4}));
  CHECK(value["stages"][1]["first_layer"] == 3);
  CHECK(value["layers"][0]["sequence"] == "megatron");
  CHECK(value["layers"][1]["recompute"] == "full");
  CHECK(value["schedule"] == "gpipe");
  CHECK(value["predicted"]["stages"].size() == 2);
}

TEST_CASE("every key of a plan but its prediction and of a strategy is needed, and no other is known") {
  const json whole = to_json(example());
  for (const auto& item : whole.items()) {
    INFO(item.key());
    if (item.key() == "predicted") continue;
    json value = whole;
    value.erase(item.key());
    CHECK(says(why(value), "\"" + item.key() + "\" is missing"));
  }
  for (const auto& item : whole["layers"][0].items()) {
    INFO(item.key());
    CHECK(says(why_changed([&](json& v) { v["layers"][2].erase(item.key()); }), "\"" + item.key() + "\" is missing"));
  }
  CHECK(says(why_changed([](json& v) { v["extra"] = 1; }), "unknown key \"extra\""));
  CHECK(says(why_changed([](json& v) { v["head"]["pipeline"] = 1; }), "unknown key \"pipeline\""));
  CHECK(says(why_changed([](json& v) { v["stages"][0]["devices"] = 1; }), "unknown key \"devices\""));
}

TEST_CASE("wrong versions, types and names are refused with what would be right") {
  CHECK(says(why_changed([](json& v) { v["version"] = 3; }), "version 3 is unknown"));
  CHECK(says(why_changed([](json& v) { v["version"] = "1"; }), "expected an integer"));
  CHECK(says(why_changed([](json& v) { v["split_layers"] = true; }),
             "\"split_layers\": plans with attention and MLP as layers of their own are no longer read"));
  CHECK(says(why_changed([](json& v) { v["global_batch"] = 1.5; }), "global_batch"));
  CHECK(says(why_changed([](json& v) { v["global_batch"] = 0; }), "from 1"));
  CHECK(says(why_changed([](json& v) { v["microbatches"] = -1; }), "microbatches"));
  CHECK(says(why_changed([](json& v) { v["precision"] = "int8"; }), "known are fp32, bf16, fp8"));
  CHECK(says(why_changed([](json& v) { v["schedule"] = "pipedream"; }), "gpipe, 1f1b, interleaved, zb-h1"));
  CHECK(says(why_changed([](json& v) { v["layers"] = 3; }), "expected an array"));
  CHECK(says(why_changed([](json& v) { v["layers"][1] = nullptr; }), "layers[1]"));
  CHECK(says(why_changed([](json& v) { v["layers"][1]["zero"] = 4; }), "from 0 to 3"));
  CHECK(says(why_changed([](json& v) { v["layers"][1]["sequence"] = "both"; }), "known are none, megatron"));
  CHECK(says(why_changed([](json& v) { v["stages"][0]["ranks"] = {0, 4, 1}; }), "[first, count]"));
  CHECK(says(why_changed([](json& v) { v["stages"][0]["ranks"] = {0, -4}; }), "[first, count]"));
  CHECK(says(why_changed([](json& v) { v["predicted"] = 5; }), "expected a JSON object"));
  CHECK(says(why(json::array()), "expected a JSON object"));
}

TEST_CASE("gaps and overlaps of stages, and degrees that do not multiply, are refused") {
  CHECK(says(why_changed([](json& v) { v["stages"][1]["first_layer"] = 2; }), "an overlap"));
  CHECK(says(why_changed([](json& v) { v["stages"][0]["last_layer"] = 1; }), "a gap"));
  CHECK(says(why_changed([](json& v) { v["stages"][1]["last_layer"] = 4; }), "layers 0 to 3"));
  CHECK(says(why_changed([](json& v) { v["stages"].erase(1); }), "end with layer 2"));
  CHECK(says(why_changed([](json& v) { v["stages"] = json::array(); }), "no stages"));
  CHECK(says(why_changed([](json& v) { v["stages"][1]["ranks"] = {3, 4}; }), "an overlap"));
  CHECK(says(why_changed([](json& v) { v["stages"][1]["ranks"] = {5, 4}; }), "a gap"));
  CHECK(says(why_changed([](json& v) { v["stages"][1]["ranks"] = {4, 2}; }), "= 4, but its stage has 2 ranks"));
  CHECK(says(why_changed([](json& v) { v["stages"][0]["ranks"] = {0, 0}; }), "no ranks"));
  CHECK(says(why_changed([](json& v) { v["layers"][2]["tensor"] = 2; }), "= 2, but its stage has 4 ranks"));
  CHECK(says(why_changed([](json& v) { v["head"]["data"] = 8; }), "head"));
  CHECK(says(why_changed([](json& v) { v["embedding"]["tensor"] = 1 << 30; }), "embedding"));
  CHECK(says(why_changed([](json& v) { v["layers"][0]["tensor"] = 4, v["layers"][0]["data"] = 1; }), "ZeRO"));
  CHECK(says(why_changed([](json& v) { v["microbatches"] = 3; }), "do not divide"));
  CHECK(says(why_changed([](json& v) { v["microbatches"] = 16; }), "does not divide a micro-batch of 1 samples"));
  CHECK(says(why_changed([](json& v) { v["virtual_stages"] = 2; }), "interleaved"));
}

TEST_CASE("no damage to the text of a plan is more than a message") {
  const std::string text = plan_text(example());
  std::mt19937 random(11);
  int readable = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string damaged = text;
    if (i % 3 == 0)
      damaged.resize(random() % text.size());
    else
      for (unsigned k = 0; k <= random() % 3; ++k)
        damaged[random() % text.size()] =
            static_cast<char>(i % 3 == 1 ? random() % 256 : "0123456789-{}[],\"e."[random() % 20]);
    const auto value = parse_json(damaged, "plan.json");
    if (!value) continue;
    ++readable;
    const auto plan = plan_from_json(*value, "plan.json");
    if (plan)
      CHECK(why_inconsistent(*plan) == "");
    else
      CHECK(plan.error().message.find('\n') == std::string::npos);
  }
  CHECK(readable > 100);
}

TEST_CASE("a plan is saved whole or not at all") {
  const auto folder = std::filesystem::temp_directory_path() / ("galvatron-plan-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto path = folder / "plan.json";
  REQUIRE(save_plan(example(), path));
  const auto again = read_plan(path);
  REQUIRE(again);
  CHECK(*again == example());
  const auto nowhere = save_plan(example(), folder / "missing" / "plan.json");
  REQUIRE(!nowhere);
  CHECK(nowhere.error().kind == ErrorKind::usage);
  const auto missing = read_plan(folder / "other.json");
  REQUIRE(!missing);
  CHECK(says(missing.error().message, "other.json"));
  CHECK(std::distance(std::filesystem::directory_iterator(folder), {}) == 1);
  std::filesystem::remove_all(folder);
}
