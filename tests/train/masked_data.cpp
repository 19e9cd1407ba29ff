// What is hidden from a masked language model.
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

constexpr std::int64_t masked_length = 40;
constexpr std::int64_t all_samples = 200;

struct MaskedText {
  fs::path path = fs::temp_directory_path() / ("galvatron_masked_" + std::to_string(::getpid()) + ".txt");
  MaskedText() {
    std::ofstream file(path, std::ios::binary);
    for (int i = 0; i < 4000; ++i) file.put(static_cast<char>('a' + i * i % 23));
  }
  ~MaskedText() { fs::remove(path); }
};

ModelSpec toy_model() { return bert("toy", {.layers = 1, .hidden = 8, .heads = 1, .vocabulary = 257}); }

Result<Data> open(const MaskedText& text, DataOptions options) {
  options.sequence = masked_length;
  return Data::open(std::vector<fs::path>{text.path}, toy_model(), options);
}

using TokenIds = std::vector<std::int32_t>;
TokenIds inputs(BatchSource& batches, std::int64_t step, std::int64_t first, std::int64_t n) {
  TokenIds out(static_cast<std::size_t>(n * masked_length));
  batches.inputs(step, first, n, {0, masked_length}, View<std::int32_t>(out.data(), n * masked_length));
  return out;
}
TokenIds targets(BatchSource& batches, std::int64_t step, std::int64_t first, std::int64_t n) {
  TokenIds out(static_cast<std::size_t>(n * masked_length));
  batches.targets(step, first, n, {0, masked_length}, View<std::int32_t>(out.data(), n * masked_length));
  return out;
}

}  // namespace

TEST_CASE("15 of 100 tokens are to be found out: 80 of 100 are masked, 10 replaced, 10 kept") {
  const MaskedText text;
  const auto data = open(text, {.seed = 3});
  REQUIRE(data.has_value());
  const auto batches = data->batches(all_samples);
  int masked = 0;
  int kept = 0;
  int wanted = 0;
  std::vector<int> of_sample(all_samples);
  std::vector<int> of_place(masked_length);
  for (std::int64_t step = 0; step < 5; ++step) {
    const TokenIds in = inputs(*batches, step, 0, all_samples);
    const TokenIds out = targets(*batches, step, 0, all_samples);
    for (std::size_t row = 0; row < in.size(); ++row) {
      if (out[row] < 0) {
        CHECK(out[row] == -1);
        CHECK(in[row] >= 'a');  // as in the text
        CHECK(in[row] < 'a' + 23);
        continue;
      }
      CHECK(out[row] >= 'a');
      CHECK(out[row] < 'a' + 23);
      CHECK(in[row] >= 0);
      CHECK(in[row] <= 256);
      ++wanted;
      if (step == 0) ++of_sample[row % all_samples];
      ++of_place[row / all_samples];
      if (in[row] == 256) ++masked;
      if (in[row] == out[row]) ++kept;
    }
  }
  CHECK(wanted == 5 * all_samples * masked_tokens(masked_length));
  for (const int n : of_sample) CHECK(n == masked_tokens(masked_length));
  for (const int n : of_place) CHECK(n > 90);  // of 1000 samples, 150 on average
  CHECK(masked / static_cast<double>(wanted) == doctest::Approx(0.8).epsilon(0.03));
  CHECK(kept / static_cast<double>(wanted) == doctest::Approx(0.1).epsilon(0.15));
}

TEST_CASE("any part of any batch is masked alike, whoever asks") {
  const MaskedText text;
  const auto data = open(text, {.seed = 3});
  const auto batches = data->batches(all_samples);
  const TokenIds in = inputs(*batches, 2, 0, all_samples);
  const TokenIds out = targets(*batches, 2, 0, all_samples);
  const TokenIds in_part = inputs(*batches, 2, 50, 3);
  const TokenIds out_part = targets(*batches, 2, 50, 3);
  for (std::size_t s = 0; s < masked_length; ++s)
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(in_part[s * 3 + i] == in[s * all_samples + 50 + i]);
      CHECK(out_part[s * 3 + i] == out[s * all_samples + 50 + i]);
    }
  const auto other = open(text, {.seed = 4});
  CHECK(targets(*other->batches(all_samples), 2, 0, all_samples) != out);
}

TEST_CASE("a sample that comes again is masked anew, by the token that is asked for") {
  const MaskedText text;
  const auto data = open(text, {.seed = 3, .mask_token = 7});
  const auto batches = data->batches(1);
  // 99 windows are an epoch: the same window comes again in each.
  std::int64_t again = 0;
  const auto source =
      TokenSource::open(std::vector<fs::path>{text.path}, {.sequence = masked_length, .vocabulary = 257, .seed = 3});
  for (std::int64_t i = source->windows(); i < 2 * source->windows(); ++i)
    if (source->window(i) == source->window(0)) again = i;
  REQUIRE(again > 0);
  CHECK(targets(*batches, 0, 0, 1) != targets(*batches, again, 0, 1));
  int masks = 0;
  for (const std::int32_t token : inputs(*batches, 0, 0, 1)) masks += token == 7 ? 1 : 0;
  CHECK(masks >= 2);
  CHECK(masks <= masked_tokens(masked_length));
}

TEST_CASE("a mask token outside the vocabulary is refused") {
  const MaskedText text;
  const auto data = open(text, {.mask_token = 257});
  REQUIRE_FALSE(data.has_value());
  CHECK(data.error().message == "the mask token 257 is outside the vocabulary of 257; give one of its tokens");
}

TEST_CASE("a sample has the predictions of its model's head") {
  CHECK(masked_tokens(512) == 77);
  CHECK(masked_tokens(100) == 15);
  CHECK(masked_tokens(1) == 1);
  CHECK(predictions(toy_model(), 512) == 77);
  CHECK(predictions(vit("vit", {.layers = 1, .hidden = 8, .heads = 1}), 197) == 1);
  CHECK(predictions(gpt("gpt", {.layers = 1, .hidden = 8, .heads = 1}), 512) == 512);
}
