// --lora: adapters as users plan, train, resume, use and export them.
#include <initializer_list>
#include <string>
#include <tuple>

#include "run.hpp"

namespace {

using nlohmann::json;

const std::string small = " --cluster host --global-batch 8 --seq 32 --precision fp32 --quiet";
const std::string of_text = " --data text.txt --lr 0.01 --json ";

void check_refusal(const Folder& folder, const std::string& arguments, const std::string& sentence) {
  const Ran ran = folder.run(arguments);
  CAPTURE(arguments);
  CAPTURE(ran.err);
  CHECK(ran.code == 2);
  CHECK(ran.err.find(sentence) != std::string::npos);
}

}  // namespace

TEST_CASE("a plan with adapters takes less memory, and says what is trained") {
  const Folder folder;
  const std::string plan = "plan --model llama2-7b --cluster 2xa100-40g --global-batch 16 --seq 2048 --quiet --json";
  CHECK(folder.run(plan).code == 3);
  const Ran ran = folder.run(plan + " --lora 16 --lora-targets q,k,v,o,gate,up,down --out lora.json");
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  const json lora = ran.json().at("plan").at("lora");
  CHECK(lora.at("rank") == 16);
  CHECK(lora.at("alpha") == 32);
  CHECK(lora.at("targets") == "q,k,v,o,gate,up,down");
  const Ran cost = folder.run("cost --plan lora.json --json");
  CHECK(cost.json().at("iteration_seconds") == ran.json().at("iteration_seconds"));
  CHECK(folder.run("simulate --plan lora.json --json").json().at("peak_bytes") ==
        cost.json().at("stages").at(0).at("peak_bytes"));
  const std::string told = folder.run("explain lora.json").out;
  CHECK(told.find("adapters of rank 16 and alpha 32") != std::string::npos);
  // peft says of these: "trainable params: 39,976,960".
  CHECK(told.find("39976960 of") != std::string::npos);
}

TEST_CASE("adapters train from a base, resume under another plan, and are used merged") {
  const Folder folder;
  folder.write_text();
  folder.write("few.txt", folder.read("text.txt").substr(0, 600));
  REQUIRE(folder.run("plan --model llama-tiny --space dp=2,runnable --out base.json" + small).code == 0);
  REQUIRE(folder.run("train --plan base.json --steps 10 --checkpoint base" + of_text).code == 0);
  const std::string lora = "plan --model llama-tiny --lora 4 --lora-alpha 6 --lora-targets q,v,down";
  REQUIRE(folder.run(lora + " --space dp=2,runnable --out two.json" + small).code == 0);
  REQUIRE(folder.run(lora + " --space tp=2,runnable --out other.json" + small).code == 0);
  const Ran whole = folder.run(
      "train --plan two.json --steps 12 --init-from base --checkpoint whole --checkpoint-every 6 --checkpoint-keep 5" +
      of_text);
  CAPTURE(whole.err);
  REQUIRE(whole.code == 0);
  const Ran half =
      folder.run("train --plan other.json --steps 12 --resume whole/step-00000006 --checkpoint half" + of_text);
  CAPTURE(half.err);
  REQUIRE(half.code == 0);
  CHECK(half.json().at("first_step") == 7);
  CHECK(half.json().at("measured_peak_bytes") == half.json().at("predicted_peak_bytes"));

  const json manifest = json::parse(folder.read("half/step-00000012/manifest.json"));
  CHECK(manifest.at("architecture").at("lora").at("targets") == "q,v,down");
  CHECK(manifest.at("base") == "../../base");
  const auto loss = [&](const std::string& checkpoint) {
    const Ran ran = folder.run("evaluate --checkpoint " + checkpoint + " --data few.txt --seq 32 --json --quiet");
    CAPTURE(ran.err);
    REQUIRE(ran.code == 0);
    return ran.json().at("loss").get<double>();
  };
  CHECK(loss("half") == doctest::Approx(loss("whole")).epsilon(1e-5));
  CHECK(loss("half") < loss("base") - 0.01);
  CHECK(folder.run("generate --checkpoint half --prompt the --tokens 5 --json --quiet").code == 0);
  REQUIRE(folder.run("export half --to huggingface --out merged").code == 0);
  CHECK(loss("merged") == doctest::Approx(loss("half")).epsilon(1e-6));
  REQUIRE(folder.run("export half --to peft --out adapter").code == 0);
  CHECK(json::parse(folder.read("adapter/adapter_config.json")).at("target_modules") ==
        json{"down_proj", "q_proj", "v_proj"});
  // Without a base the frozen weights are those of the seed.
  const Ran alone = folder.run("train --plan other.json --steps 8 --seed 5 --checkpoint alone" + of_text);
  REQUIRE(alone.code == 0);
  REQUIRE(folder.run("export alone --to huggingface --out alone-merged").code == 0);
  CHECK(loss("alone-merged") == doctest::Approx(loss("alone")).epsilon(1e-6));
  CHECK(loss("alone") < alone.json().at("first_loss").get<double>());
  // peft's files are read again: on the base, to go on from, and merged.
  const Ran read = folder.run("evaluate --checkpoint base --adapter adapter --data few.txt --seq 32 --json --quiet");
  CAPTURE(read.err);
  REQUIRE(read.code == 0);
  CHECK(read.json().at("loss").get<double>() == doctest::Approx(loss("half")).epsilon(1e-6));
  const auto text = [&](const std::string& weights) {
    return folder.run("generate --checkpoint " + weights + " --prompt the --tokens 5 --json --quiet")
        .json()
        .at("tokens");
  };
  CHECK(text("base --adapter adapter") == text("half"));
  const Ran merges = folder.run("export base --to huggingface --adapter adapter --out again-merged --json");
  CAPTURE(merges.err);
  REQUIRE(merges.code == 0);
  CHECK(merges.json().at("step") == 10);
  CHECK(folder.read("again-merged/model.safetensors") == folder.read("merged/model.safetensors"));
  REQUIRE(folder.run("export base --to huggingface --out plain").code == 0);
  REQUIRE(folder.run("export plain --to huggingface --adapter adapter --out plain-merged").code == 0);
  CHECK(folder.read("plain-merged/model.safetensors") == folder.read("merged/model.safetensors"));
  const std::string go_on =
      "train --plan other.json --steps 2 --lr 0 --warmup 0 --init-from base --adapter adapter --checkpoint gone-on"
      " --data text.txt --json";
  const Ran goes_on = folder.run(go_on);
  CAPTURE(goes_on.err);
  REQUIRE(goes_on.code == 0);
  CHECK(loss("gone-on") == doctest::Approx(loss("half")).epsilon(1e-6));
  REQUIRE(folder.run("export gone-on --to peft --out adapter-again").code == 0);
  CHECK(folder.read("adapter-again/adapter_model.safetensors") == folder.read("adapter/adapter_model.safetensors"));
  // New adapters begin on what the old ones have learned.
  const Ran again =
      folder.run("train --plan two.json --steps 1 --lr 0 --warmup 0 --init-from half --data text.txt --json");
  REQUIRE(again.code == 0);
}

TEST_CASE("an adapter of peft that is none of this model, or of another kind, is refused with a sentence") {
  const Folder folder;
  folder.write_text();
  const std::string lora = "plan --model llama-tiny --space dp=1,runnable --lora 4 --lora-alpha 6 --lora-targets q,v";
  REQUIRE(folder.run(lora + " --out lora.json" + small).code == 0);
  REQUIRE(folder.run("train --plan lora.json --steps 1 --checkpoint saved" + of_text).code == 0);
  REQUIRE(folder.run("export saved --to peft --out adapter").code == 0);
  REQUIRE(folder.run("export saved --to huggingface --out base").code == 0);
  const json config = json::parse(folder.read("adapter/adapter_config.json"));
  const auto says = [&](const std::string& arguments, const std::string& sentence) {
    check_refusal(folder, arguments, sentence);
  };
  const std::string generate = "generate --checkpoint base --adapter adapter --prompt the --tokens 1 --quiet";
  const auto with = [&](const char* key, const json& value) {
    json changed = config;
    changed[key] = value;
    folder.write("adapter/adapter_config.json", changed.dump());
  };
  for (const auto& [key, value, sentence] : std::initializer_list<std::tuple<const char*, json, const char*>>{
           {"peft_type", "IA3", "supported: LORA"},
           {"use_dora", true, "use_dora"},
           {"bias", "all", "supported: none"},
           {"rank_pattern", {{"q_proj", 8}}, "differ from layer to layer"},
           {"modules_to_save", {"lm_head"}, "whole modules"},
           {"init_lora_weights", "pissa", "changes the base"},
           {"r", 0, "\"r\""},
           {"r", 3, "lora_A"},
           {"lora_alpha", nullptr, "lora_alpha"}}) {
    with(key, value);
    says(generate, sentence);
  }
  with("use_rslora", true);
  CHECK(folder.run(generate).code == 0);
  says("train --plan lora.json --steps 1 --data text.txt --init-from base --adapter adapter",
       "--lora 4 --lora-alpha 12 --lora-targets q,v");
  with("use_rslora", false);
  says("train --plan lora.json --steps 1 --data text.txt --adapter adapter", "--init-from BASE");
  says("generate --checkpoint base --adapter base --prompt the --tokens 1", "adapter_config.json");
  says("export lora.json --to header --adapter adapter", "--adapter is for --to huggingface");
  REQUIRE(folder.run("plan --model gpt2-tiny --space dp=1,runnable --out gpt2.json" + small).code == 0);
  REQUIRE(folder.run("train --plan gpt2.json --steps 1 --checkpoint gpt2" + of_text).code == 0);
  says("generate --checkpoint gpt2 --adapter adapter --prompt the --tokens 1", "name the base that it was trained on");
}

TEST_CASE("adapters that a model cannot have are refused with a sentence") {
  const Folder folder;
  const std::string plan = "plan --cluster 2xa100-40g --global-batch 16 --quiet --model ";
  const auto says = [&](const std::string& arguments, const std::string& sentence) {
    check_refusal(folder, arguments, sentence);
  };
  says(plan + "mixtral-8x7b --lora 8", "adapters are of decoders");
  says(plan + "bert-large --lora 8", "adapters are of decoders");
  says(plan + "t5-3b --lora 8", "adapters are of decoders");
  says(plan + "gpt2-124m --lora 8 --lora-targets gate", "has no gate in its MLP");
  says(plan + "gpt2-124m --lora 8 --lora-targets q,qkv", "one adapter for queries, keys and values");
  says(plan + "gpt2-124m --lora 8 --lora-targets mlp", "no linear layer is named \"mlp\"");
  says(plan + "gpt2-124m --lora-targets q", "add --lora RANK");
  says(plan + "gpt2-124m --lora 8 --trainer megatron", "leave --trainer");
}
