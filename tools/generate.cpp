// galvatron generate: goes on with a text.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <galvatron/core/file.hpp>
#include <galvatron/core/units.hpp>
#include <galvatron/data/utf8.hpp>
#include <galvatron/generate/generate.hpp>

#include "options.hpp"
#include "output.hpp"
#include "text_model.hpp"

namespace galvatron::tools {

namespace {

struct GenerateArguments {
  TextModelArguments text;
  std::string prompt;
  std::string prompt_file;
  std::int64_t tokens = 100;
  std::int64_t samples = 1;
  generate::Sampling sampling;
  std::int64_t end_token = -2;    // -2: the tokenizer's
  std::int64_t start_token = -1;  // -1: the usual one
};

bool read(const Arguments& arguments, GenerateArguments& a, Common& common) {
  Options options("generate",
                  "Goes on with a text: a model predicts one token after the other, with the keys and values of all "
                  "before kept. A T5 reads the text with its encoder, and writes another.");
  options.section("Model");
  add_text_model_options(options, a.text);
  options.section("Text");
  options.require_one({options.text("--prompt", a.prompt, "TEXT", "what the text begins with"),
                       options.text("--prompt-file", a.prompt_file, "FILE", "the same, in a file")});
  options.integer("--tokens", a.tokens, 0, 1 << 24, "tokens to follow at most (default: 100)");
  options.integer("--samples", a.samples, 1, 1 << 16, "texts that go on from the prompt, side by side (default: 1)");
  options.number("--temperature", a.sampling.temperature, 0, 1e6,
                 "logits are divided by it; 0: always the likeliest token (default: 1)");
  options.integer("--top-k", a.sampling.top_k, 0, 1 << 30,
                  "choose among so many of the likeliest tokens (default: 0, all)");
  options.number("--top-p", a.sampling.top_p, 1e-9, 1,
                 "choose among the likeliest tokens whose probabilities reach this sum (default: 1)");
  options.integer("--seed", a.sampling.seed, 0, std::int64_t{1} << 62,
                  "of what is chosen, a function of seed, text and position (default: 1)");
  options.integer("--end-token", a.end_token, -1, (std::int64_t{1} << 31) - 1,
                  "ends a text; -1: none does (default: the tokenizer's)");
  options.integer("--start-token", a.start_token, 0, (std::int64_t{1} << 31) - 1,
                  "what a T5's text begins with (default: 0, its padding; of a checkpoint that was trained here, to go "
                  "on with the text that the encoder reads, the last token of the prompt, which the encoder then "
                  "leaves out)");
  options.section("Output");
  options.flag("--json", common.json, "print one JSON object instead of text");
  options.flag("--quiet", common.quiet, "show no progress");
  options.examples(
      "Examples:\n  galvatron generate --model gpt2-tiny --checkpoint saved \\\n      --prompt \"The licence\" "
      "--tokens 200\n"
      "  galvatron generate --checkpoint my-llama --prompt \"Once\" --tokens 50 \\\n      --temperature 0.8 --top-k 50 "
      "--top-p 0.95 --seed 7");
  return options.parse(arguments, common);
}

}  // namespace

void run_generate(const Arguments& arguments, Common& common) {
  GenerateArguments a;
  if (!read(arguments, a, common)) return;
  if (!a.prompt.empty() && !a.prompt_file.empty()) refuse("--prompt and --prompt-file exclude each other");
  if (!a.prompt_file.empty()) a.prompt = value_of("--prompt-file", read_text_file(a.prompt_file));
  const TextModel text = text_model(a.text);
  if (!text.tokenizer)
    refuse("the model ", text.model.name, " has a vocabulary of ", text.model.vocabulary(),
           " tokens, and no tokenizer is beside it; give one with --tokenizer");
  const train::Tokenizer& tokenizer = *text.tokenizer;
  generate::Request request{
      .prompt = tokenizer.encode_prompt(a.prompt),
      .tokens = a.tokens,
      .samples = a.samples,
      .end_token = static_cast<std::int32_t>(a.end_token == -2 ? tokenizer.end_token() : a.end_token),
      .sampling = a.sampling};
  if (!text.model.is_encoder_decoder()) {
    if (a.start_token >= 0)
      refuse("--start-token is of a model with an encoder, which ", text.model.name, " has not; leave it out");
  } else if (a.start_token >= 0) {
    request.start_token = static_cast<std::int32_t>(a.start_token);
  } else if (text.trained_here) {
    if (request.prompt.size() < 2)
      refuse("the prompt has ", request.prompt.size(), " tokens: one is for the encoder of ", text.model.name,
             " and one for its decoder; give a longer text, or --start-token");
    request.start_token = request.prompt.back();
    request.prompt.pop_back();
  }
  const generate::Capacity capacity = value_or_throw(generate::capacity_for(text.model, request));
  Progress progress = error_progress("generate", common);
  std::int64_t done = 0;
  request.on_token = [&](std::int32_t) {
    ++done;
    progress.update(static_cast<double>(done) / static_cast<double>(a.tokens), text_of(done, "/", a.tokens));
  };
  std::vector<std::vector<std::int32_t>> texts;
  double seconds = 0;
  text.made(capacity, common, [&](generate::LanguageModel& model) {
    const double began = steady_seconds();
    texts = generate::generate(model, request);
    seconds = steady_seconds() - began;
  });
  progress.finish();
  const auto text_from = [&](const std::vector<std::int32_t>& tokens) {
    return train::valid_utf8(tokenizer.decode(tokens, false));
  };
  std::int64_t count = 0;
  for (const auto& tokens : texts) count += std::ssize(tokens);
  const std::string begins = text.model.is_encoder_decoder() && !text.trained_here ? "" : a.prompt;
  if (!common.json) {
    for (std::size_t i = 0; i < texts.size(); ++i)
      print(text_of(i > 0 ? "---\n" : "", begins, text_from(texts[i]), "\n"));
    return;
  }
  nlohmann::ordered_json out{{"text", text_from(texts.front())},
                             {"tokens", texts.front()},
                             {"prompt", train::valid_utf8(a.prompt)},
                             {"prompt_tokens", request.prompt},
                             {"seconds", seconds},
                             {"tokens_per_second", seconds > 0 ? static_cast<double>(count) / seconds : 0.0}};
  if (texts.size() > 1)
    for (const auto& tokens : texts) out["texts"].push_back({{"text", text_from(tokens)}, {"tokens", tokens}});
  print_json(out);
}

}  // namespace galvatron::tools
