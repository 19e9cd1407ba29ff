// What people do with text around a run: validate, generate, evaluate, make files of tokens.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "../says.hpp"
#include "run.hpp"

namespace {

using galvatron::says;
using nlohmann::json;

const std::string tokenizer_files = (std::filesystem::path(galvatron::test::tests_dir) / "data/tokenizers").string();

}  // namespace

TEST_CASE("a run is validated while it goes on, and its checkpoint writes and scores texts under any plan") {
  const Folder folder;
  folder.write_text();
  std::string held_out;
  for (int i = 400; i < 440; ++i) held_out += "the quick brown fox " + std::to_string(i) + " jumps over the lazy dog\n";
  folder.write("held_out.txt", held_out);
  folder.write("p.json", small_plan(2).dump());
  const Ran train = folder.run(
      "train --plan p.json --data text.txt --steps 40 --validate held_out.txt --validate-every 10 --lr-schedule wsd "
      "--checkpoint saved --metrics m.jsonl --json");
  REQUIRE(train.code == 0);
  const json run = train.json();
  CHECK(run.at("validation_loss") < 5.0);
  CHECK(run.at("validation_bits_per_byte").get<double>() ==
        doctest::Approx(run.at("validation_loss").get<double>() / std::log(2)));
  const std::string metrics = folder.read("m.jsonl");
  std::size_t validated = 0;
  for (std::size_t at = 0; (at = metrics.find("\"validation_loss\"", at)) != std::string::npos; ++at) ++validated;
  CHECK(validated == 4);
  CHECK(metrics.find("\"bits_per_byte\"") != std::string::npos);

  // Its loss on the same windows, as a model on one rank says it.
  const Ran scored = folder.run("evaluate --model gpt2-tiny --checkpoint saved --data held_out.txt --seq 16 --json");
  REQUIRE(scored.code == 0);
  CHECK(scored.json().at("loss").get<double>() ==
        doctest::Approx(run.at("validation_loss").get<double>()).epsilon(0.01));
  CHECK(scored.json().at("bits_per_byte").get<double>() ==
        doctest::Approx(scored.json().at("loss").get<double>() / std::log(2)));
  CHECK(scored.json().at("perplexity").get<double>() ==
        doctest::Approx(std::exp(scored.json().at("loss").get<double>())));

  const std::string writes = "generate --model gpt2-tiny --checkpoint saved --prompt 'the quick ' --tokens 30 --json ";
  const Ran greedy = folder.run(writes + "--temperature 0");
  REQUIRE(greedy.code == 0);
  CHECK(greedy.json().at("tokens").size() == 30);
  CHECK(greedy.json().at("text").get<std::string>().size() > 0);
  CHECK(folder.run(writes + "--temperature 0 --seed 5").json().at("text") == greedy.json().at("text"));
  const Ran drawn = folder.run(writes + "--top-k 40 --top-p 0.9 --seed 5 --samples 2");
  CHECK(folder.run(writes + "--top-k 40 --top-p 0.9 --seed 5").json().at("text") == drawn.json().at("text"));
  CHECK(drawn.json().at("texts").size() == 2);

  folder.write(
      "choices.jsonl",
      R"({"ctx": "the quick brown fox 7 jumps over", "endings": ["zzz qqq xxx", "the lazy dog"], "label": 1})");
  const Ran choices = folder.run("evaluate --checkpoint saved --data choices.jsonl --json");
  REQUIRE(choices.code == 0);
  CHECK(choices.json().at("accuracy") == 1.0);
  CHECK(choices.json().at("tasks") == 1);
  folder.write("words.jsonl", R"({"text": "the quick brown fox 7 jumps over the lazy dog"})");
  CHECK(folder.run("evaluate --checkpoint saved --data words.jsonl --score last-word --json")
            .json()
            .contains("accuracy"));
  check_failure(folder.run("evaluate --checkpoint saved --data choices.jsonl held_out.txt"), 2,
                "give them in two commands");
  check_failure(folder.run("generate --checkpoint saved --prompt a --tokens 100000"), 2, "ask for");
  check_failure(folder.run("generate --checkpoint nothing --prompt a"), 2, "--checkpoint");
  check_failure(folder.run("train --plan p.json --data text.txt --steps 4 --validate-every 2"), 2, "need --validate");
  check_failure(folder.run("train --plan p.json --data text.txt --steps 4 --validate text.txt --metrics text.txt"), 2,
                "text.txt");
}

TEST_CASE("files of tokens are made of texts, split, converted and inspected") {
  const Folder folder;
  folder.write_text();
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  folder.write("documents.jsonl", lines);
  check_failure(folder.run("data --data text.txt --out t.bin"), 2, "--tokenizer");
  const Ran made = folder.run(
      "data --data documents.jsonl --tokenizer bytes --end-token 256 --out t.bin --validation-out v.npy --json");
  REQUIRE(made.code == 0);
  const json out = made.json();
  const std::int64_t held_out = out.at("validation").at("documents");
  CHECK(held_out > 5);
  CHECK(held_out < 50);
  CHECK(out.at("out").at("documents").get<std::int64_t>() + held_out == 200);
  CHECK(out.at("validation").at("format") == "npy");
  const Ran inspected = folder.run("data --data t.bin --end-token 256 --json");
  CHECK(inspected.json().at("tokens") == out.at("out").at("tokens"));
  CHECK(inspected.json().at("documents") == out.at("out").at("documents"));
  CHECK(inspected.json().at("largest_token") == 256);
  REQUIRE(folder.run("data --data t.bin --out n.bin --format nanogpt").code == 0);
  check_failure(folder.run("data --data n.bin"), 2, "--from nanogpt");
  REQUIRE(folder.run("data --data n.bin --from nanogpt --end-token 256 --out m.bin --format megatron").code == 0);
  CHECK(folder.has("m.idx"));
  const Ran back = folder.run("data --data m.bin v.npy --end-token 256 --json");
  CHECK(back.json().at("documents") == 200);
  CHECK(back.json().at("files").at(0).at("format") == "megatron");
}

TEST_CASE("texts are tokenized for a model with a vocabulary of its own") {
  const Folder folder;
  folder.write_text();
  folder.write("m/config.json",
               R"({"model_type": "gpt2", "n_layer": 4, "n_embd": 32, "n_head": 2, "vocab_size": 1000, "n_positions": 64,
                  "activation_function": "gelu_new", "tie_word_embeddings": true})");
  json plan = small_plan(1);
  plan["model"] = "m/config.json";
  folder.write("p.json", plan.dump());
  const std::string train = "train --plan p.json --data text.txt --steps 3 --checkpoint saved --json ";
  check_failure(folder.run("train --plan p.json --data text.txt --steps 3"), 2, "--tokenizer");
  const Ran given = folder.run(train + "--tokenizer " + tokenizer_files + "/gpt2.json");
  if (given.err.find("built without tokenizers") != std::string::npos) return;
  REQUIRE(given.code == 0);
  CHECK(given.json().at("bits_per_byte") > 0.0);
  CHECK(given.json().at("bits_per_byte").get<double>() < given.json().at("last_loss").get<double>() / std::log(2));
  std::filesystem::copy_file(tokenizer_files + "/gpt2.json", folder.path() / "m/tokenizer.json");
  const Ran found = folder.run("train --plan p.json --data text.txt --steps 3 --json");
  REQUIRE(found.code == 0);
  CHECK(found.json().at("last_loss") == given.json().at("last_loss"));
  const Ran text = folder.run("generate --checkpoint saved --prompt 'the software' --tokens 5 --json");
  REQUIRE(text.code == 0);
  CHECK(text.json().at("prompt_tokens").size() < 12);
  const Ran made = folder.run("data --data text.txt --tokenizer m --out t.bin --json");
  REQUIRE(made.code == 0);
  CHECK(folder.run("evaluate --checkpoint saved --data t.bin --json").json().at("tokens").get<std::int64_t>() ==
        made.json().at("out").at("tokens").get<std::int64_t>() - 1);
}
