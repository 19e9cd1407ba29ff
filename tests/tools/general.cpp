// The command line itself: help, versions, unknown things, streams.
#include <string>

#include "run.hpp"

namespace {

void check_width(const std::string& text) {
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    REQUIRE(end != std::string::npos);
    CAPTURE(text.substr(begin, end - begin));
    CHECK(end - begin <= 80);
    begin = end + 1;
  }
}

}  // namespace

TEST_CASE("help names every command and option and fits 80 columns") {
  const Folder folder;
  const Ran general = folder.run("--help");
  CHECK(general.code == 0);
  CHECK(general.err.empty());
  check_width(general.out);
  for (const std::string command :
       {"profile", "plan", "cost", "simulate", "train", "explain", "export", "hetu", "list"}) {
    CAPTURE(command);
    CHECK(general.out.find("  " + command + " ") != std::string::npos);
    const Ran ran = folder.run(command + " --help");
    CHECK(ran.code == 0);
    CHECK(ran.err.empty());
    CHECK(ran.out.starts_with("Usage: galvatron " + command));
    check_width(ran.out);
    CHECK(folder.run("help " + command).out == ran.out);
  }
  const Ran plan = folder.run("plan --help");
  for (const std::string option : {"--model", "--cluster", "--global-batch", "--seq", "--memory", "--precision",
                                   "--space", "--schedule", "--microbatches", "--threads", "--out", "--json"})
    CHECK(plan.out.find("  " + option + " ") != std::string::npos);
  const Ran train = folder.run("train --help");
  for (const std::string option :
       {"--plan",   "--auto",   "--model",        "--data",     "--steps",      "--global-batch",
        "--seq",    "--ranks",  "--memory",       "--device",   "--launcher",   "--lr",
        "--warmup", "--min-lr", "--weight-decay", "--rounding", "--cuda-graph", "--tune",
        "--clip",   "--seed",   "--metrics",      "--trace",    "--report",     "--json"})
    CHECK(train.out.find("  " + option + " ") != std::string::npos);
  for (const std::string constant : {"beta1 0.9,", "beta2 0.95,", "epsilon 1e-08"})
    CHECK(train.out.find(constant) != std::string::npos);
}

TEST_CASE("the version is printed") {
  const Ran ran = Folder().run("--version");
  CHECK(ran.code == 0);
  CHECK(ran.out.starts_with("galvatron 0."));
  CHECK(ran.err.empty());
}

TEST_CASE("an unknown command is bad usage and the commands are listed") {
  const Folder folder;
  const std::string list = "profile, plan, cost, simulate, train, explain, export, hetu, list";
  check_failure(folder.run("frobnicate"), 2, list);
  check_failure(folder.run(""), 2, list);
  check_failure(folder.run("--frobnicate"), 2, list);
  check_failure(folder.run("''"), 2, list);
}

TEST_CASE("unknown options, stray words and missing values are bad usage") {
  const Folder folder;
  check_failure(folder.run("plan --model gpt2-tiny --cluster host --global-batch 4 --bogus"), 2, "--bogus");
  check_failure(folder.run("plan --model gpt2-tiny --cluster host --global-batch 4 --glob 5"), 2, "--glob");
  check_failure(folder.run("plan --model gpt2-tiny --cluster host --global-batch 4 stray"), 2, "stray");
  check_failure(folder.run("plan --model gpt2-tiny --cluster host --global-batch"), 2, "--global-batch needs a value");
  check_failure(folder.run("plan --model gpt2-tiny --cluster host"), 2, "--global-batch is missing");
  check_failure(folder.run("plan --model gpt2-tiny --cluster host --global-batch 4 --global-batch 8"), 2,
                "give it once");
  check_failure(folder.run("train --data x --steps 1 --plan p --resume d"), 2, "--resume");
  check_failure(folder.run("explain"), 2, "plan is missing");
  check_failure(folder.run("list nonsense"), 2, "models|clusters|strategies|schedules");
}

TEST_CASE("numbers out of range and other than numbers are bad usage") {
  const Folder folder;
  const std::string plan = "plan --model gpt2-tiny --cluster 8xa100-80g ";
  for (const std::string value : {"0", "-4", "4.5", "1e3", "four", "''", "99999999999999999999999", "0x10", "'4 '"}) {
    CAPTURE(value);
    check_failure(folder.run(plan + "--global-batch " + value), 2, "--global-batch");
    check_failure(folder.run(plan + "--global-batch 4 --microbatches " + value), 2, "--microbatches");
    check_failure(folder.run("profile --ranks " + value), 2, "--ranks");
    check_failure(folder.run("train --plan p --data d --steps " + value), 2, "--steps");
  }
  for (const std::string value : {"0", "-1GiB", "16XB", "GiB", "''", "99999999999EiB", "1e400"}) {
    CAPTURE(value);
    check_failure(folder.run(plan + "--global-batch 4 --memory " + value), 2, "--memory");
  }
  for (const std::string value : {"-1", "nan", "inf", "1e999", "x", "''"}) {
    CAPTURE(value);
    check_failure(folder.run("train --plan p --data d --steps 1 --lr " + value), 2, "--lr");
  }
}

TEST_CASE("list shows what there is, for people and as JSON") {
  const Folder folder;
  const Ran text = folder.run("list");
  CHECK(text.code == 0);
  for (const std::string name : {"gpt2-tiny", "llama-tiny", "gpt2-124m", "llama3-405b", "8xtitan-24g", "Nxh100-80g",
                                 "host", "zero3", "megatron", "recompute-full", "gpipe", "1f1b"})
    CHECK(text.out.find(name) != std::string::npos);
  for (const std::string kind : {"models", "clusters", "strategies", "schedules"}) {
    CAPTURE(kind);
    CHECK(folder.run("list " + kind).code == 0);
    const auto json = folder.run("list " + kind + " --json").json();
    CHECK(json.size() == 1);
    CHECK(json.at(kind).size() >= 2);
  }
  const auto models = folder.run("list models --json").json().at("models");
  for (const auto& model : models) {
    CHECK(model.at("parameters").get<std::int64_t>() > 0);
    const auto name = model.at("name").get<std::string>();
    CHECK(model.at("trains") == (name.starts_with("gpt") || name.starts_with("llama") || name.starts_with("bert") ||
                                 name.starts_with("vit") || name.starts_with("swin") || name.starts_with("t5")));
  }
}

TEST_CASE("list tells of a config.json what it tells of presets") {
  const Folder folder;
  folder.write("m/config.json",
               R"({"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
                   "num_key_value_heads": 2, "intermediate_size": 128, "max_position_embeddings": 32,
                   "vocab_size": 256, "tie_word_embeddings": true})");
  const Ran text = folder.run("list models m/config.json llama-tiny");
  CAPTURE(text.out);
  CHECK(text.code == 0);
  CHECK(text.out.find("m/config.json") != std::string::npos);
  CHECK(text.out.find("llama-tiny") != std::string::npos);
  CHECK(text.out.find("gpt2-tiny") == std::string::npos);
  const auto models = folder.run("list models m --json").json().at("models");
  REQUIRE(models.size() == 1);
  // Table, norms, queries and keys and values, output, gate and up and down.
  const int expected = 256 * 64 + 64 + 3 * (2 * 64 + 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128);
  CHECK(models[0].at("parameters") == expected);
  CHECK(models[0].at("layers") == 3);
  CHECK(models[0].at("kv_heads") == 2);
  CHECK(models[0].at("trains") == true);
  check_failure(folder.run("list models missing.json"), 2, "missing.json: No such file");
  check_failure(folder.run("list clusters m/config.json"), 2, "names are of models");
  check_failure(folder.run("list m/config.json"), 2, "models|clusters|strategies|schedules");
}

TEST_CASE("a reader that goes away is no failure, a full disk is one") {
  const Folder folder;
  const Ran gone = folder.shell("{ sleep 0.2; $G list; echo code $? >&2; } | true");
  CHECK(gone.err == "code 0\n");
  check_failure(folder.run("list > /dev/full"), 2, "No space left on device");
  check_failure(folder.run("--help > /dev/full"), 2, "No space left on device");
}

TEST_CASE("closed standard streams do no harm") {
  const Folder folder;
  folder.write("plan.json", small_plan().dump());
  CHECK(folder.run("list >&-").code == 0);
  CHECK(folder.run("list 2>&- <&-").code == 0);
  CHECK(folder.run("frobnicate >&- 2>&-").code == 2);
  // Without care the file would be opened as descriptor 1 and get the text of the result.
  CHECK(folder.run("plan --model gpt2-tiny --cluster 8xa100-80g --global-batch 8 --out p.json >&-").code == 0);
  CHECK(nlohmann::json::parse(folder.read("p.json")).at("version") == 1);
  check_failure(folder.run("cost --plan plan.json --json >&-"), 2, "standard output");
}

TEST_CASE("--json prints an object after a failure too") {
  const Ran ran = Folder().run("plan --model nope --cluster host --global-batch 4 --json");
  CHECK(ran.code == 2);
  CHECK(ran.json().at("exit_code") == 2);
  CHECK(ran.json().at("error").get<std::string>().find("nope") != std::string::npos);
  CHECK(ran.err.starts_with("galvatron: "));
}
