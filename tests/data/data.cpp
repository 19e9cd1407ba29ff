#include <galvatron/data/data.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/build.hpp>
#include <galvatron/model/zoo.hpp>

#include "../folder.hpp"
#include "data_writers.hpp"

using namespace galvatron;
using namespace galvatron::test;
namespace fs = std::filesystem;

TEST_CASE("documents are data of models that predict the next token") {
  const Folder folder;
  const std::vector<fs::path> paths{folder.write("a.jsonl", json_line("one") + json_line("and two"))};
  const auto open = [&](const ModelSpec& model) {
    return train::Data::open(paths, model, {.sequence = 64, .seed = 3, .documents = train::DocumentOptions{}});
  };
  const ModelSpec bytes = gpt("toy", {.layers = 1, .hidden = 8, .heads = 1, .vocabulary = 256, .positions = 64});
  const auto data = open(bytes);
  REQUIRE(data.has_value());
  REQUIRE(data->documents() != nullptr);
  CHECK(data->documents()->documents() == 2);
  CHECK(data->size() == 10);
  CHECK(data->checksum() == data->documents()->checksum());
  CHECK_THROWS_AS(static_cast<void>(data->batches(2)), Failure);
  CHECK(train::PackedBatches::open(*data->documents(), 2, {.max_tokens = 16}).has_value());
  // Without, a file of JSON lines is a text as any other.
  const auto text = train::Data::open(paths, bytes, {.sequence = 8, .seed = 3});
  REQUIRE(text.has_value());
  CHECK(text->documents() == nullptr);
  CHECK(text->size() == static_cast<std::int64_t>(fs::file_size(paths[0])));

  for (const char* name : {"bert-tiny", "t5-tiny", "vit-tiny", "swin-toy"}) {
    CAPTURE(name);
    const auto model = find_model(name);
    REQUIRE(model.has_value());
    CHECK(refused(open(*model)) ==
          "documents are packed for models that predict the next token, as GPT and Llama do, "
          "and the model " +
              std::string(name) + " does not; train it on samples of one length");
  }
  const ModelSpec words = gpt("words", {.layers = 1, .hidden = 8, .heads = 1, .vocabulary = 50257, .positions = 64});
  CHECK(refused(open(words))
            .find("a.jsonl is a text, whose 256 bytes are its tokens, and the model words has the 50257 "
                  "tokens of another vocabulary") != std::string::npos);
}
