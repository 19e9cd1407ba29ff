// Texts that models write, against full forward passes and against transformers (tests/train/pytorch/huggingface.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <galvatron/checkpoint/huggingface.hpp>
#include <galvatron/core/json.hpp>
#include <galvatron/generate/generate.hpp>
#include <galvatron/generate/scores.hpp>
#include <galvatron/model/huggingface.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/train/compiled.hpp>

#include "../folder.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::generate;

const std::filesystem::path checkpoints =
    std::filesystem::path(galvatron::test::tests_dir) / "train/pytorch/huggingface";

ModelSpec short_model(const std::string& name, std::size_t layers) {
  ModelSpec model = value_or_throw(find_model(name));
  model.blocks.resize(layers);
  return model;
}

// Weights that are larger than those of a new model, so that places and positions matter.
runtime::ParameterSource large_values() {
  return [values = runtime::initial_values(5)](int layer, const ParameterTensor& tensor, std::int64_t index,
                                               View<float> to) {
    values(layer, tensor, index, to);
    if (tensor.init == ParameterInit::normal)
      for (float& x : to) x *= 5;
  };
}

std::vector<float> logits_of(LanguageModel& model, std::span<const std::int32_t> tokens) {
  model.restart();
  const auto logits = model.go_on(tokens);
  return {logits.begin(), logits.end()};
}

std::int32_t best(std::span<const float> logits) {
  return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace

TEST_CASE("every token follows as from a full forward pass of what is before it") {
  for (const auto& [name, window] :
       {std::pair{"gpt2-tiny", 0}, {"llama-tiny", 0}, {"moe-tiny", 0}, {"llama-tiny", 4}}) {
    CAPTURE(name);
    CAPTURE(window);
    ModelSpec model = short_model(name, 2);
    model.blocks[0].sliding_window = window;
    Request request{.prompt = {72, 101, 108, 108, 111}, .tokens = 12, .samples = 1, .sampling = {.temperature = 0}};
    const auto cached =
        make_language_model(model, value_or_throw(capacity_for(model, request)), large_values(), Precision::fp32, 1);
    const auto whole =
        make_language_model(model, {.samples = 1, .tokens = 32, .cached = 32}, large_values(), Precision::fp32, 1);
    const auto text = generate::generate(*cached, request).front();
    REQUIRE(text.size() == 12);
    std::vector<std::int32_t> all = request.prompt;
    cached->restart();
    std::span<const float> now = cached->go_on(request.prompt);
    for (const std::int32_t token : text) {
      const std::vector<float> expected = logits_of(*whole, all);
      CHECK(best(expected) == token);
      float difference = 0, largest = 0;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        difference = std::max(difference, std::abs(expected[i] - now[i]));
        largest = std::max(largest, std::abs(expected[i]));
      }
      CHECK(difference <= 1e-5F * largest);
      all.push_back(token);
      if (all.size() < request.prompt.size() + text.size()) now = cached->go_on(std::vector{token});
    }
    // Scores of packed texts are those of the logits.
    const auto scorer = make_language_model(model, {.samples = 1, .tokens = 40}, large_values(), Precision::fp32, 1);
    const std::vector<std::int32_t> other{1, 2, 3};
    const std::vector<std::span<const std::int32_t>> texts{all, other};
    const auto scores = scorer->score(texts);
    REQUIRE(scores.size() == 2);
    CHECK(scores[1].size() == 2);
    for (std::size_t t = 1; t < all.size(); ++t) {
      const auto logits = logits_of(*whole, std::span(all).first(t));
      double sum = 0;
      for (const float x : logits)
        sum += std::exp(static_cast<double>(x - logits[static_cast<std::size_t>(best(logits))]));
      const double loss =
          std::log(sum) + logits[static_cast<std::size_t>(best(logits))] - logits[static_cast<std::size_t>(all[t])];
      CHECK(scores[0][t - 1].loss == doctest::Approx(loss).epsilon(1e-4));
      CHECK(scores[0][t - 1].is_best == (all[t] == best(logits)));
    }
  }
}

TEST_CASE("scores are the losses of transformers' models") {
  const auto reference = value_or_throw(read_json_file(checkpoints / "losses.json"));
  const std::int64_t batch = reference.at("batch"), sequence = reference.at("sequence");
  CHECK(reference.at("losses").size() >= 17);
  int compared = 0;
  for (const auto& [name, expected] : reference.at("losses").items()) {
    CAPTURE(name);
    const ModelSpec model = value_or_throw(load_model((checkpoints / name / "config.json").string()));
    const auto weights = value_or_throw(train::HuggingFaceWeights::open(checkpoints / name, model));
    const auto reader =
        make_language_model(model, {.samples = 1, .tokens = batch * sequence}, weights.weights(), Precision::fp32, 1);
    std::vector<std::vector<std::int32_t>> texts(static_cast<std::size_t>(batch));
    for (std::int64_t b = 0; b < batch; ++b)  // as tests/train/pytorch/huggingface.py has them
      for (std::int64_t i = 0; i <= sequence; ++i)
        texts[static_cast<std::size_t>(b)].push_back(
            static_cast<std::int32_t>((7 * b + 5 * i + i * i) % model.vocabulary()));
    double sum = 0;
    for (const auto& scores : reader->score(std::vector<std::span<const std::int32_t>>(texts.begin(), texts.end())))
      for (const TokenScore& score : scores) sum += score.loss;
    CHECK(sum / static_cast<double>(batch * sequence) == doctest::Approx(expected.get<double>()).epsilon(1e-6));
    // What follows with keys and values kept is what follows without, and what transformers lets follow.
    const Request request{
        .prompt = {texts[0].begin(), texts[0].begin() + 5}, .tokens = 10, .sampling = {.temperature = 0}};
    const auto writer =
        make_language_model(model, value_or_throw(capacity_for(model, request)), weights.weights(), Precision::fp32, 1);
    const auto whole =
        make_language_model(model, {.samples = 1, .tokens = 20, .cached = 20}, weights.weights(), Precision::fp32, 1);
    std::vector<std::int32_t> all = request.prompt;
    const std::vector<std::int32_t> written = generate::generate(*writer, request).front();
    CHECK(written.size() == 10);
    if (const auto greedy = reference.at("greedy").find(name); greedy != reference.at("greedy").end()) {
      CHECK(written == greedy->get<std::vector<std::int32_t>>());
      ++compared;
    }
    for (const std::int32_t token : written) {
      CHECK(best(logits_of(*whole, all)) == token);
      all.push_back(token);
    }
  }
  CHECK(compared >= 17);
}

TEST_CASE("a T5 reads with its encoder and writes what transformers writes, with keys and values kept") {
  const auto reference = value_or_throw(read_json_file(checkpoints / "losses.json"));
  const std::int64_t sequence = reference.at("sequence");
  CHECK(reference.at("encoder_decoder_greedy").size() == 2);
  for (const auto& [name, expected] : reference.at("encoder_decoder_greedy").items()) {
    CAPTURE(name);
    const ModelSpec model = value_or_throw(load_model((checkpoints / name / "config.json").string()));
    const auto weights = value_or_throw(train::HuggingFaceWeights::open(checkpoints / name, model));
    Request request{.prompt = {}, .tokens = 10, .sampling = {.temperature = 0}};
    for (std::int64_t i = 0; i < sequence; ++i)  // as tests/train/pytorch/huggingface.py has them
      request.prompt.push_back(static_cast<std::int32_t>((5 * i + i * i) % model.vocabulary()));
    const auto writer =
        make_language_model(model, value_or_throw(capacity_for(model, request)), weights.weights(), Precision::fp32, 1);
    const auto written = generate::generate(*writer, request);
    CHECK(written.front() == expected.get<std::vector<std::int32_t>>());
    CHECK(generate::generate(*writer, request) == written);
    // Another source gives other logits; two texts side by side are each what it is alone.
    const auto logits_after = [&](std::vector<std::int32_t> source, bool reversed) {
      if (reversed) std::ranges::reverse(source);
      writer->restart();
      writer->read(source);
      const std::span<const float> logits = writer->go_on(std::vector{request.start_token});
      return std::vector<float>(logits.begin(), logits.end());
    };
    CHECK(logits_after(request.prompt, true) != logits_after(request.prompt, false));
    request.samples = 2;
    const auto pair =
        make_language_model(model, value_or_throw(capacity_for(model, request)), weights.weights(), Precision::fp32, 2);
    for (const auto& text : generate::generate(*pair, request)) CHECK(text == written.front());
    const std::vector<std::span<const std::int32_t>> texts{request.prompt};
    CHECK_THROWS_WITH(writer->score(texts), doctest::Contains("scores texts"));
    request.start_token = 61;
    CHECK(!capacity_for(model, request).has_value());
    request.start_token = 0;
    request.tokens = 21;
    CHECK(!capacity_for(model, request).has_value());
  }
}

TEST_CASE("texts of one prompt are drawn each for itself, and the same again") {
  const ModelSpec model = short_model("llama-tiny", 1);
  Request request{.prompt = {1, 2, 3}, .tokens = 20, .samples = 3, .sampling = {.top_k = 50, .top_p = 0.95, .seed = 3}};
  const auto several =
      make_language_model(model, value_or_throw(capacity_for(model, request)), large_values(), Precision::fp32, 2);
  const auto texts = generate::generate(*several, request);
  CHECK(texts == generate::generate(*several, request));
  CHECK(texts[0] != texts[1]);
  request.samples = 1;
  const auto one =
      make_language_model(model, value_or_throw(capacity_for(model, request)), large_values(), Precision::fp32, 1);
  CHECK(generate::generate(*one, request).front() == texts[0]);
  request.end_token = texts[0][4];
  const auto ended = generate::generate(*one, request).front();
  const auto first = std::ranges::find(texts[0], request.end_token) - texts[0].begin();
  CHECK(std::ssize(ended) == first + 1);
  request.sampling.seed = 4;
  request.end_token = -1;
  CHECK(generate::generate(*one, request).front() != texts[0]);
}

TEST_CASE("what cannot be generated is refused with the way out") {
  const auto message = [](const ModelSpec& model, const Request& request) {
    const auto capacity = capacity_for(model, request);
    return capacity ? "" : capacity.error().message;
  };
  const ModelSpec model = short_model("gpt2-tiny", 1);
  CHECK(message(model, {.prompt = {}, .tokens = 1}).find("the prompt has no token") != std::string::npos);
  CHECK(message(model, {.prompt = {300}, .tokens = 1}).find("--tokenizer") != std::string::npos);
  CHECK(message(model, {.prompt = {1}, .tokens = 1 << 20}).find("positions of gpt2-tiny; ask for") !=
        std::string::npos);
  CHECK(why_not_generative(value_or_throw(find_model("t5-tiny"))).empty());
  CHECK(!why_not_scoring(value_or_throw(find_model("t5-tiny"))).empty());
  CHECK(!why_not_generative(value_or_throw(find_model("bert-tiny"))).empty());
  CHECK(!why_not_generative(value_or_throw(find_model("vit-tiny"))).empty());
  CHECK(why_not_generative(model).empty());
}

TEST_CASE("tokens are drawn by their probabilities among those that are left") {
  const std::vector<float> logits{std::log(0.5F), std::log(0.1F), std::log(0.3F), std::log(0.1F), -INFINITY};
  const auto shares = [&](Sampling sampling) {
    std::vector<double> out(5);
    constexpr int draws = 20000;
    for (int i = 0; i < draws; ++i) out[static_cast<std::size_t>(choose_token(logits, sampling, 0, i))] += 1.0 / draws;
    return out;
  };
  const auto near = [](const std::vector<double>& found, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(std::abs(found[i] - expected[i]) < 4 * std::sqrt(expected[i] * (1 - expected[i]) / 20000) + 1e-12);
  };
  near(shares({}), {0.5, 0.1, 0.3, 0.1, 0});
  near(shares({.top_k = 2}), {0.625, 0, 0.375, 0, 0});
  near(shares({.top_p = 0.85}), {0.5 / 0.9, 0.1 / 0.9, 0.3 / 0.9, 0, 0});
  near(shares({.top_p = 0.3}), {1, 0, 0, 0, 0});
  near(shares({.temperature = 0.5}), {0.25 / 0.36, 0.01 / 0.36, 0.09 / 0.36, 0.01 / 0.36, 0});
  CHECK(choose_token(logits, {.temperature = 0}, 0, 0) == 0);
  CHECK(choose_token(std::vector<float>{NAN, 1, 1}, {.temperature = 0}, 0, 0) == 1);
}

// ---- scores

namespace {

// Says of every token the loss `token`, and that it is the likeliest where it is even.
class CountingModel final : public LanguageModel {
 public:
  std::span<const float> go_on(std::span<const std::int32_t>) override { return {}; }
  void restart() override {}
  std::vector<std::vector<TokenScore>> score(std::span<const std::span<const std::int32_t>> texts) override {
    std::vector<std::vector<TokenScore>> out;
    std::int64_t rows = 0;
    for (const auto& text : texts) {
      out.emplace_back();
      for (std::size_t i = 1; i < text.size(); ++i)
        out.back().push_back({static_cast<double>(text[i]), text[i] % 2 == 0});
      rows += std::ssize(out.back());
    }
    most = std::max(most, rows);
    return out;
  }
  [[nodiscard]] std::int64_t vocabulary() const override { return 256; }
  std::int64_t most = 0;
};

}  // namespace

TEST_CASE("perplexity predicts every token but the first once") {
  CountingModel model;
  const train::ByteTokenizer bytes;
  for (const std::int64_t window : {1, 3, 4, 100}) {
    CAPTURE(window);
    PerplexityScorer scorer(model, 8 + (window > 8 ? window : 0), window, &bytes);
    for (const std::int64_t count : {0, 1, 2, 10, 11}) scorer.add(count, [](std::int64_t i) { return i + 1; });
    const Perplexity result = scorer.result();
    CHECK(result.tokens == 0 + 0 + 1 + 9 + 10);
    CHECK(result.bytes == result.tokens);
    CHECK(result.loss_sum == doctest::Approx(2 + 54 + 65));
    CHECK(result.best == 1 + 5 + 5);
    CHECK(result.bits_per_byte() == doctest::Approx(121 / 20.0 / std::log(2)));
    CHECK(result.perplexity() == doctest::Approx(std::exp(121 / 20.0)));
    CHECK(model.most <= 8 + (window > 8 ? window : 0));
  }
}

TEST_CASE("endings are scored by their sum, by token and by character") {
  CountingModel model;
  const train::ByteTokenizer bytes;  // a token is a byte: its loss is its code
  ChoiceScorer scorer(model, 64, 64, bytes);
  // Sums with the space of 32: "!!!" 131, "z" 154, the last "\x01\x01\x01\x01\x01\x01\x01\x01" 40.
  const auto task =
      value_or_throw(parse_choice_task(R"({"ctx": "a", "endings": ["!!!", "z"], "label": "1", "id": 3})", "f"));
  CHECK(task.label == 1);
  CHECK(scorer.add(task, "f").has_value());
  CHECK(scorer.add({"abc", {" AA", " A"}, 1}, "f").has_value());
  const ChoiceScores result = scorer.result();
  CHECK(result.tasks == 2);
  CHECK(result.right == 1);                // 131 < 154; 97 < 162
  CHECK(result.right_per_token == 1);      // 32.75 < 77; 48.5 < 54
  CHECK(result.right_per_character == 0);  // 131 / 3 < 154; 162 / 2 < 97
  CHECK(result.exact == 1);                // " z" is even in both, " A" is not
  CHECK(result.tokens == 4);
  CHECK(result.loss_sum == 32 + 122 + 32 + 65);
  CHECK(result.perplexity() == doctest::Approx(std::exp(251 / 2.0)));

  const auto last = value_or_throw(last_word_task("the cat sat", "f"));
  CHECK(last.context == "the cat");
  CHECK(last.endings == std::vector<std::string>{" sat"});
  CHECK(!last_word_task("word", "f"));
  CHECK(!last_word_task("word ", "f"));
  CHECK(!parse_choice_task(R"({"ctx": "a", "endings": ["b", "c"], "label": 2})", "f"));
  CHECK(!parse_choice_task(R"({"ctx": "a", "endings": ["b"], "label": 0})", "f"));
  CHECK(!parse_choice_task(R"({"endings": ["b", "c"], "label": 0})", "f"));
  // Of long texts the last tokens count.
  ChoiceScorer narrow(model, 3, 3, bytes);
  CHECK(narrow.add({"abcdefg", {" A", " BB"}, 1}, "f").has_value());
  CHECK(narrow.result().tokens == 3);
}
