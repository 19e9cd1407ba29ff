// The command line itself: help, versions, unknown things, streams.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

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
       {"profile", "plan",      "cost", "simulate", "train", "generate", "evaluate", "data", "explain",    "export",
        "check",   "calibrate", "hetu", "flexsp",   "hap",   "spindle",  "moe",      "list", "completion", "manual"}) {
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
  for (const std::string option : {"--beta1", "--beta2", "--epsilon", "--lr-schedule", "--validate", "--tokenizer"})
    CHECK(train.out.find("  " + option + " ") != std::string::npos);
}

TEST_CASE("the version is printed") {
  for (const char* option : {"--version", "-V"}) {
    const Ran ran = Folder().run(option);
    CHECK(ran.code == 0);
    CHECK(ran.out.starts_with("galvatron 0."));
    CHECK(ran.err.empty());
  }
}

TEST_CASE("an unknown command is bad usage and the commands are listed") {
  const Folder folder;
  const std::string list =
      "profile, plan, cost, simulate, train, generate, evaluate, data, explain, export, check, calibrate, hetu, "
      "flexsp, hap, spindle, moe, list";
  check_failure(folder.run("frobnicate"), 2, list);
  check_failure(folder.run(""), 2, list);
  check_failure(folder.run("--frobnicate"), 2, list);
  check_failure(folder.run("''"), 2, list);
}

TEST_CASE("what is nearly a command, an option or a name brings what was meant") {
  const Folder folder;
  const std::string rest = " --cluster 8xa100-80g --global-batch 8";
  const std::string plan = "plan --model gpt2-tiny" + rest;
  check_failure(folder.run("tain --steps 4"), 2, "did you mean train?");
  for (const auto& [option, meant] : std::vector<std::pair<std::string, std::string>>{
           {"--batch 4", "the nearest is --global-batch;"},
           {"--batch-size=4", "the nearest is --global-batch;"},
           {"--global_batch_size 4", "the nearest is --global-batch;"},
           {"--gbs 4", "the nearest is --global-batch;"},
           {"--sequence-length 64", "the nearest is --seq;"},
           {"--mem 4GiB", "the nearest is --memory;"},
           {"--micro-batches 4", "the nearest is --microbatches;"},
           {"--gpus 4", "the nearest is --cluster;"},
           {"--output x", "the nearest is --out;"},
           {"--fp16", "the nearest is --precision;"},
           {"--frobnicate", "unknown option --frobnicate; `galvatron plan --help`"}}) {
    CAPTURE(option);
    check_failure(folder.run(plan + " " + option), 2, meant);
  }
  check_failure(folder.run("train --plan p --data d --steps 1 --gpus 4"), 2, "the nearest is --ranks;");
  check_failure(folder.run("train --plan p --data d --steps 1 --learning-rate 1"), 2, "the nearest is --lr;");
  check_failure(folder.run("train --plan p --data d --steps 1 --check x"), 2,
                "the nearest are --checkpoint, --checkpoint-every and --checkpoint-keep;");
  check_failure(folder.run("plan --model gpt2" + rest), 2, "gpt2-tiny, gpt2-124m, gpt2-350m, gpt2-774m, gpt2-1.5b;");
  check_failure(folder.run("plan --model meta-llama/Llama-3.1-8B" + rest), 2, "llama3-8b, or download https://");
  check_failure(folder.run("plan --model gpt2-tiny --global-batch 8 --cluster A100x8"), 2,
                "did you mean 8xa100-40g or 8xa100-80g?");
  CHECK(folder.run("plan --model GPT2-tiny --global-batch 8 --cluster 8xA100-80G --out p.json").code == 0);
  CHECK(folder.run("cost --plan p.json").code == 0);
}

TEST_CASE("a size without a unit, or with half of one, is told how to be written") {
  const Folder folder;
  const std::string plan = "plan --model gpt2-tiny --cluster 8xa100-80g --global-batch 8 --memory ";
  check_failure(folder.run(plan + "80"), 2, "write 80GiB, or 80B");
  check_failure(folder.run(plan + "40960"), 2, "write 40960MiB, or 40960B");
  check_failure(folder.run(plan + "80G"), 2, "80GiB or 80GB");
  check_failure(folder.run(plan + "80B"), 3, "");
  CHECK(folder.run(plan + "'16 GiB'").code == 0);
  CHECK(folder.run(plan + "17179869184").code == 0);
}

TEST_CASE("all that is missing is told at once") {
  const Folder folder;
  check_failure(folder.run("plan"), 2, "plan: --model, --cluster and --global-batch are missing;");
  check_failure(folder.run("plan --model gpt2-tiny"), 2, "plan: --cluster and --global-batch are missing;");
  check_failure(folder.run("export"), 2, "export: plan and --to are missing;");
  check_failure(folder.run("train"), 2, "train: --plan or --auto, --data and --steps are missing;");
  check_failure(folder.run("train --auto"), 2, "train: --model, --global-batch, --data and --steps are missing;");
  check_failure(folder.run("train --data d --steps 1"), 2, "train: --plan or --auto is missing;");
}

TEST_CASE("help fits a narrow terminal, and a pipe has 80 columns") {
  const Folder folder;
  if (std::system("command -v script > /dev/null") != 0) {
    MESSAGE("skipped: no command `script` to make a terminal");
    return;
  }
  for (const std::string command : {"", "plan", "train", "hetu plan", "list"})
    for (const int columns : {40, 80}) {
      CAPTURE(command);
      const Ran ran = folder.shell("script -qec 'stty cols " + std::to_string(columns) + "; $G " + command +
                                   " --help' /dev/null | tr -d '\\r'");
      CHECK(ran.code == 0);
      std::string text = ran.out.substr(0, ran.out.find("\nExample"));
      text = text.substr(0, text.find("\nA first run"));
      REQUIRE(text.find("Usage: galvatron") == 0);
      std::istringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        // A word that is longer stays whole, and an option stays beside its value.
        const auto begin = static_cast<std::ptrdiff_t>(std::min(line.find_first_not_of(' '), line.size()));
        const auto spaces = std::count(line.begin() + begin, line.end(), ' ');
        CHECK((static_cast<int>(line.size()) <= columns || spaces <= (begin == 2 ? 1 : 0)));
      }
      if (columns == 80) CHECK(folder.run(command + " --help | cat").out == ran.out);
    }
}

TEST_CASE("no message has a long value whole") {
  const Folder folder;
  folder.write("plan.json", small_plan().dump());
  const auto check_short = [&](const std::string& line) {
    const Ran ran = folder.shell("X=$(head -c 100000 /dev/zero | tr '\\0' x); N=$(echo $X | tr x 9); " + line);
    CAPTURE(line);
    CAPTURE(ran.err.substr(0, 400));
    CHECK(ran.err.size() < 2048);
    CHECK(ran.out.size() < 2048);
    return ran.code;
  };
  for (const std::string command :
       {"plan", "cost", "simulate", "train", "profile", "explain", "export", "hetu plan", "hetu cost", "list"}) {
    const std::string help = folder.run(command + " --help").out;
    int options = 0;
    for (std::size_t at = help.find("\n  --"); at != std::string::npos; at = help.find("\n  --", at + 1)) {
      const std::string option = help.substr(at + 3, help.find_first_of(" \n,", at + 3) - at - 3);
      CHECK(check_short("$G " + command + " " + option + "=$X --json") == 2);
      CHECK(check_short("$G " + command + " " + option + " $N") == 2);
      ++options;
    }
    CHECK((options >= 1 || command == "list"));
    CHECK(check_short("$G " + command + " $X") == 2);
    CHECK(check_short("$G " + command + " --$X") == 2);
  }
  CHECK(check_short("$G $X") == 2);
  CHECK(check_short("$G help $X") == 2);
  for (const std::string value :
       {"--model $X --cluster host", "--model gpt2-tiny --cluster $X", "--model x/$X --cluster host",
        "--model gpt2-tiny --cluster 8x$X", "--model ./$X.json --cluster host"})
    CHECK(check_short("$G plan --global-batch 4 --json " + value) == 2);
  CHECK(check_short("$G cost --plan $X --json") == 2);
  CHECK(check_short("$G train --plan plan.json --steps 1 --data $X") == 2);
  CHECK(check_short("$G train --plan plan.json --steps 1 --data plan.json --init-from $X") == 2);

  // What files say.
  const std::string x(1'000'000, 'x');
  const auto with = [&](const std::string& key, const nlohmann::json& value) {
    nlohmann::json plan = small_plan();
    plan[key] = value;
    folder.write("long.json", plan.dump());
    for (const char* line : {"$G cost --json --plan long.json", "$G explain long.json", "$G simulate --plan long.json"})
      CHECK(check_short(line) == 2);
  };
  for (const char* key : {"model", "cluster", "precision", "schedule", "trainer", "moments", "global_batch", "stages",
                          "layers", "embedding", "predicted", "version"})
    with(key, x);
  with("model", "x/" + x);
  with("model", x + ".json");
  with(x, 1);
  folder.write("long.json", "\"" + x);
  CHECK(check_short("$G cost --plan long.json") == 2);
  folder.write("config.json", nlohmann::json{{"model_type", x}}.dump());
  CHECK(check_short("$G plan --model config.json --cluster host --global-batch 4") == 2);
  folder.write("config.json", nlohmann::json{{"model_type", "gpt2"}, {"n_embd", x}}.dump());
  CHECK(check_short("$G plan --model config.json --cluster host --global-batch 4") == 2);
  for (const nlohmann::json& cluster :
       {nlohmann::json{{"format", x}}, nlohmann::json{{"format", "galvatron-cluster"}, {"version", 1}, {x, 1}},
        nlohmann::json{{"format", "galvatron-cluster"}, {"version", 1}, {"name", x}, {"devices", 8}, {"device", x}}}) {
    folder.write("cluster.json", cluster.dump());
    CHECK(check_short("$G plan --model gpt2-tiny --cluster cluster.json --global-batch 4") == 2);
  }
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
  check_failure(folder.run("plan --json=3"), 2, "--json takes no value");
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
    CHECK(model.at("trains") == true);
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
  CHECK(folder.run("list model m/config.json").out == folder.run("list models m/config.json").out);
  const auto several = folder.run("list model clip-toy m/config.json --json").json().at("models");
  REQUIRE(several.size() == 2);
  CHECK(several.at(1).at("name") == "clip-toy");
  CHECK(several.at(1).at("tasks") == 4);
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
