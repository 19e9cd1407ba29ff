// What an encoder-decoder model is to tell of a text.
#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <galvatron/data/data.hpp>
#include <galvatron/model/build.hpp>

using namespace galvatron;
using namespace galvatron::train;
namespace fs = std::filesystem;

namespace {

constexpr std::int64_t source = 64;
constexpr std::int64_t target = 32;
constexpr std::int64_t all_samples = 100;
constexpr std::int64_t vocabulary = 280;

struct SpanText {
  fs::path path = fs::temp_directory_path() / ("galvatron_spans_" + std::to_string(::getpid()) + ".txt");
  SpanText() {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 4000; ++i) file.put(static_cast<char>('a' + i * i % 23));
  }
  ~SpanText() { fs::remove(path); }
};

ModelSpec toy_model(std::int64_t tokens = vocabulary) {
  return t5("toy", {.encoder_layers = 1,
                    .decoder_layers = 1,
                    .hidden = 8,
                    .heads = 1,
                    .ffn = 8,
                    .vocabulary = tokens,
                    .source = source,
                    .target = target});
}

Result<Data> open(const SpanText& text, std::uint64_t seed, std::int64_t tokens = vocabulary,
                  std::int64_t sequence = source) {
  return Data::open(std::vector<fs::path>{text.path}, toy_model(tokens), {.sequence = sequence, .seed = seed});
}

// A sample's tokens, from rows.
using TokenIds = std::vector<std::int32_t>;
template <class F>
std::vector<TokenIds> samples_of(std::int64_t tokens, std::int64_t first, std::int64_t count, const F& fill) {
  TokenIds rows(static_cast<std::size_t>(tokens * count));
  fill(first, count, SequenceRange{0, tokens}, View<std::int32_t>(rows.data(), tokens * count));
  std::vector<TokenIds> out(static_cast<std::size_t>(count));
  for (std::size_t row = 0; row < rows.size(); ++row) out[row % out.size()].push_back(rows[row]);
  return out;
}
std::vector<TokenIds> inputs(BatchSource& b, std::int64_t step, std::int64_t first = 0, std::int64_t n = all_samples) {
  return samples_of(source, first, n, [&](auto... at) { b.inputs(step, at...); });
}
std::vector<TokenIds> decoder_inputs(BatchSource& b, std::int64_t step) {
  return samples_of(target, 0, all_samples, [&](auto... at) { b.decoder_inputs(step, at...); });
}
std::vector<TokenIds> targets(BatchSource& b, std::int64_t step) {
  return samples_of(target, 0, all_samples, [&](auto... at) { b.targets(step, at...); });
}

}  // namespace

TEST_CASE("spans take 15 of 100 tokens, and a text becomes as long as the encoder") {
  for (std::int64_t sequence = least_corrupted_sequence; sequence < 700; ++sequence) {
    const SpanCorruption c = span_corruption(sequence);
    CHECK(c.inputs() <= sequence);
    CHECK(span_corruption(sequence + 1).text >= c.text);
    CHECK(c.spans >= 1);
    CHECK(c.spans <= c.noise);
    CHECK(c.spans <= c.text - c.noise);
    if (sequence < 50) continue;
    CHECK(c.inputs() >= sequence - 1);
    CHECK(static_cast<double>(c.noise) / static_cast<double>(c.text) == doctest::Approx(0.15).epsilon(0.07));
    CHECK(static_cast<double>(c.noise) / static_cast<double>(c.spans) == doctest::Approx(3).epsilon(0.25));
  }
  // As T5 was trained: 568 tokens of text for 512 of the encoder, 114 for the decoder.
  CHECK(span_corruption(512).text == 568);
  CHECK(span_corruption(512).inputs() == 512);
  CHECK(span_corruption(512).targets() == 114);
  CHECK(predictions(toy_model(), source) == span_corruption(source).targets());
  CHECK(predictions(t5("short", {.encoder_layers = 1, .decoder_layers = 1, .hidden = 8, .heads = 1, .target = 64}),
                    512) == 64);
}

TEST_CASE("what the encoder and the targets have together is the text") {
  const SpanText text;
  const auto data = open(text, 3);
  REQUIRE(data.has_value());
  const auto batches = data->batches(all_samples);
  const SpanCorruption c = span_corruption(source);
  const auto original =
      TokenSource::open(std::vector<fs::path>{text.path}, {.sequence = c.text, .vocabulary = 256, .seed = 3});
  REQUIRE(original.has_value());
  std::vector<int> noise_at(static_cast<std::size_t>(c.text));
  for (std::int64_t step = 0; step < 10; ++step) {
    const auto in = inputs(*batches, step);
    const auto before = decoder_inputs(*batches, step);
    const auto out = targets(*batches, step);
    for (std::size_t i = 0; i < all_samples; ++i) {
      TokenIds whole(static_cast<std::size_t>(c.text));
      original->inputs(step * all_samples + static_cast<std::int64_t>(i), 1, {0, c.text},
                       View<std::int32_t>(whole.data(), c.text));
      // Spans are numbered in order, and followed in the targets by what they stand for.
      TokenIds told;
      std::size_t at = 0;
      std::int32_t spans = 0;
      for (std::size_t s = 0; s < static_cast<std::size_t>(c.inputs()) - 1; ++s) {
        if (in[i][s] < 256) {
          told.push_back(in[i][s]);
          continue;
        }
        ++spans;
        CHECK(in[i][s] == vocabulary - spans);
        REQUIRE(out[i][at] == vocabulary - spans);
        for (++at; out[i][at] >= 'a' && out[i][at] < 256; ++at) {
          ++noise_at[told.size()];
          told.push_back(out[i][at]);
        }
      }
      CHECK(spans == c.spans);
      CHECK(told == whole);
      CHECK(in[i][static_cast<std::size_t>(c.inputs()) - 1] == SpanBatches::end);
      CHECK(out[i][at] == SpanBatches::end);
      CHECK(static_cast<std::int64_t>(at) + 1 == c.targets());
      for (++at; at < target; ++at) CHECK(out[i][at] == -1);
      // The decoder reads its targets one later.
      CHECK(before[i][0] == SpanBatches::pad);
      for (std::size_t s = 1; s < target; ++s) CHECK(before[i][s] == (out[i][s - 1] < 0 ? 0 : out[i][s - 1]));
    }
  }
  CHECK(noise_at.front() == 0);
  CHECK(noise_at.back() == 10 * all_samples);                                     // a text ends inside a span
  for (std::size_t i = 4; i + 4 < noise_at.size(); ++i) CHECK(noise_at[i] > 50);  // of 1000, 150 on average
}

TEST_CASE("any part of any batch is cut alike, whoever asks, and anew with another seed") {
  const SpanText text;
  const auto data = open(text, 3);
  const auto batches = data->batches(all_samples);
  const auto all = inputs(*batches, 2);
  const auto part = inputs(*batches, 2, 50, 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(part[i] == all[50 + i]);
  TokenIds rows(5 * 3);
  batches->inputs(2, 50, 3, {7, 5}, View<std::int32_t>(rows.data(), 15));
  for (std::size_t s = 0; s < 5; ++s)
    for (std::size_t i = 0; i < 3; ++i) CHECK(rows[s * 3 + i] == all[50 + i][7 + s]);
  CHECK(inputs(*open(text, 4)->batches(all_samples), 2) != all);
}

TEST_CASE("sequences without spans and vocabularies without tokens for them are refused") {
  const SpanText text;
  CHECK(open(text, 0, vocabulary, 2).error().message ==
        "an encoder-decoder model is trained on sequences of at least 3 tokens, not 2");
  CHECK(open(text, 0, 3, 32).error().message ==
        "sequences of 32 tokens have 2 spans, and so many tokens of the vocabulary of 3 are theirs; give shorter "
        "sequences or a larger vocabulary");
  // Tokens of spans do not occur in a text.
  CHECK(open(text, 0, 256).has_value());
  std::ofstream(text.path, std::ios::app | std::ios::binary).put('\xff');
  CHECK(open(text, 0, 256).error().message.find("token 255 at position 4000 is outside the vocabulary") !=
        std::string::npos);
}
