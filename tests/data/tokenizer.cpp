// Tokenizers against Hugging Face's `tokenizers` and sentencepiece in Python: tests/data/tokenizers/make.py.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/file.hpp>
#include <galvatron/data/open_tokenizer.hpp>
#include <galvatron/data/utf8.hpp>

#include "../folder.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::train;

const std::filesystem::path tokenizer_folder = std::filesystem::path(galvatron::test::tests_dir) / "data/tokenizers";

// As make.py draws them.
class StringSource {
 public:
  std::string next() {
    static const std::vector<std::pair<std::uint32_t, std::uint32_t>> ranges{
        {0x20, 0x7E},     {0x61, 0x7A},     {0x30, 0x39},     {0x09, 0x0D},     {0x20, 0x20},       {0x0A, 0x0A},
        {0xA0, 0x17F},    {0x300, 0x36F},   {0x370, 0x3FF},   {0x400, 0x4FF},   {0x5D0, 0x5EA},     {0x620, 0x669},
        {0x900, 0x97F},   {0x1100, 0x11FF}, {0x1E00, 0x1EFF}, {0x2000, 0x206F}, {0x2150, 0x218B},   {0x3000, 0x30FF},
        {0x4E00, 0x9FFF}, {0xAC00, 0xD7A3}, {0xFB00, 0xFB06}, {0xFF10, 0xFF5A}, {0x1D400, 0x1D7FF}, {0x1F300, 0x1F64F},
        {0x85, 0x85},     {0x180E, 0x180E}, {0x0000, 0xD7FF}, {0xE000, 0x1FFFF}};
    static const std::vector<std::string> words{
        "<|endoftext|>", "<|begin_of_text|>", "<|im_end|>", "licence",  "License", "the ", "'s",
        "'LL",           "\u017f'\u017f",     " of",        "software", "  ",      "\r\n", "'re",
        "1234567",       "e\u0301",           "\u00e9"};
    std::string out;
    for (std::uint64_t parts = below(24); parts > 0; --parts) {
      const std::uint64_t kind = below(4);
      if (kind == 0) {
        out += words[below(words.size())];
        continue;
      }
      const auto [first, last] = ranges[below(kind == 1 ? ranges.size() : 6)];
      for (std::uint64_t i = 1 + below(4); i > 0; --i)
        append_utf8(out, first + static_cast<char32_t>(below(last - first + 1)));
    }
    return out;
  }

 private:
  std::uint64_t below(std::uint64_t n) {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30U) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27U) * 0x94D049BB133111EBU;
    return (z ^ z >> 31U) % n;
  }
  std::uint64_t state_ = 7;
};

const std::vector<std::string>& strings() {
  static const auto all = [] {
    StringSource source;
    std::vector<std::string> out;
    for (int i = 0; i < 10000; ++i) out.push_back(source.next());
    return out;
  }();
  return all;
}

void hash(std::uint64_t& value, std::int64_t number) {
  for (unsigned shift = 0; shift < 32; shift += 8)
    value = (value ^ (static_cast<std::uint64_t>(number) >> shift & 0xFFU)) * 0x100000001B3U;
}

struct Reference {
  std::int64_t tokens = 0;
  std::vector<std::string> hashes;
};
Reference reference_of(const std::string& name) {
  std::ifstream file(tokenizer_folder / "reference.txt");
  Reference out;
  std::string word;
  while (file >> word && word != name) {
  }
  file >> out.tokens;
  for (int i = 0; i < 100 && file >> word; ++i) out.hashes.push_back(word);
  return out;
}

std::shared_ptr<const Tokenizer> opened(const std::string& name) {
  return value_or_throw(open_tokenizer(tokenizer_folder / name));
}

// A tokenizer.json with a change to it.
std::string changed(const std::string& from, const std::string& to) {
  std::string text = value_or_throw(read_text_file(tokenizer_folder / "gpt2.json"));
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}
std::string message_of_json(const std::string& text) {
  const auto value = parse_json(text, "t.json");
  if (!value) return value.error().message;
  const auto read = ByteLevelBpe::parse(*value, "t.json");
  return read ? "" : read.error().message;
}

}  // namespace

TEST_CASE("10,000 random strings have the tokens of Python's tokenizers and sentencepiece") {
  for (const std::string name : {"gpt2.json", "llama3.json", "qwen2.json", "sentencepiece.model"}) {
    CAPTURE(name);
    const auto tokenizer = opened(name);
    const Reference reference = reference_of(name);
    REQUIRE(reference.hashes.size() == 100);
    std::int64_t tokens = 0;
    int wrong = 0;
    for (std::size_t block = 0; block < 100; ++block) {
      std::uint64_t value = 0xCBF29CE484222325U;
      for (std::size_t i = 0; i < 100; ++i) {
        const auto ids = tokenizer->encode(strings()[block * 100 + i]);
        hash(value, std::ssize(ids));
        for (const std::int32_t id : ids) hash(value, id);
        tokens += std::ssize(ids);
      }
      char text[17];
      std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
      wrong += text == reference.hashes[block] ? 0 : 1;
    }
    CHECK(wrong == 0);
    CHECK(tokens == reference.tokens);
    if (const char* shown = std::getenv("GALVATRON_SHOW_TOKENS")) {
      std::ofstream out(std::string(shown) + "/" + name + ".ours");
      for (const std::string& text : strings()) {
        out << "[";
        const auto ids = tokenizer->encode(text);
        for (std::size_t i = 0; i < ids.size(); ++i) out << (i > 0 ? ", " : "") << ids[i];
        out << "]\n";
      }
    }
  }
}

TEST_CASE("tokens become the text that they were made of") {
  for (const std::string name : {"gpt2.json", "sentencepiece.model"}) {
    CAPTURE(name);
    const auto tokenizer = opened(name);
    for (std::size_t i = 0; i < 1000; ++i) {
      const std::string& text = strings()[i];
      if (name != "gpt2.json" && text.find('\0') != std::string::npos) continue;
      const auto ids = tokenizer->encode(text);
      CHECK(tokenizer->decode(ids) == text);
      std::int64_t bytes = 0;
      for (const std::int32_t id : ids) bytes += id == tokenizer->end_token() ? 13 : tokenizer->bytes_of(id);
      if (name == "gpt2.json") CHECK(bytes == std::ssize(text));
    }
  }
  const auto composing = opened("qwen2.json");
  CHECK(composing->decode(composing->encode("caf\u0065\u0301 <|im_end|>")) == "caf\u00e9 <|im_end|>");
}

TEST_CASE("special tokens are found, end texts, and begin prompts") {
  const auto gpt2 = opened("gpt2.json");
  CHECK(gpt2->end_token() == 0);
  CHECK(gpt2->encode("<|endoftext|>") == std::vector<std::int32_t>{0});
  CHECK(gpt2->bytes_of(0) == 0);
  CHECK(gpt2->decode(std::vector<std::int32_t>{0, 999, 1000, -1}, false) ==
        gpt2->decode(std::vector<std::int32_t>{999}));
  const auto llama = opened("llama3.json");
  const auto prompt = llama->encode_prompt("the");
  CHECK(prompt.front() == 0);
  CHECK(std::vector(prompt.begin() + 1, prompt.end()) == llama->encode("the"));
  CHECK(llama->end_token() == 1);
  CHECK(opened("sentencepiece.model")->encode_prompt("the").front() == 1);
}

TEST_CASE("long words take the same merges as short ones") {
  const auto tokenizer = opened("gpt2.json");
  std::string word;
  for (int i = 0; i < 40; ++i) word += "software";
  const auto once = tokenizer->encode("software");
  const auto ids = tokenizer->encode(word);
  CHECK(tokenizer->decode(ids) == word);
  Merges merges(2);
  merges.add(1, 2, {1, 3});
  merges.add(3, 3, {0, 4});
  for (const std::size_t pairs : {4U, 40U}) {  // either way of merging
    std::vector<std::int32_t> tokens;
    for (std::size_t i = 0; i < pairs; ++i) tokens.insert(tokens.end(), {1, 2});
    merges.apply(tokens);
    CHECK(tokens == std::vector<std::int32_t>(pairs / 2, 4));
  }
  CHECK(once.size() <= 8);
}

TEST_CASE("bytes that are not UTF-8 are read as U+FFFD") {
  const auto tokenizer = opened("gpt2.json");
  CHECK(tokenizer->encode("a\xff\xc3") == tokenizer->encode("a\uFFFD\uFFFD"));
  CHECK(first_not_utf8("\xE0\x80\x80") == 0);
  CHECK(first_not_utf8("\xED\xA0\x80") == 0);
  CHECK(first_not_utf8("\xF4\x90\x80\x80") == 0);
  CHECK(first_not_utf8("a\xF0\x9F\x98\x80z") == 6);
}

TEST_CASE("what a tokenizer.json has that would change its tokens is refused by name") {
  const auto says = [](const std::string& message, const std::string& part) {
    CAPTURE(message);
    return message.find(part) != std::string::npos;
  };
  CHECK(message_of_json(value_or_throw(read_text_file(tokenizer_folder / "gpt2.json"))).empty());
  CHECK(says(message_of_json(changed(R"("type": "BPE")", R"("type": "Unigram")")),
             "\"Unigram\" is not known, only \"BPE\""));
  CHECK(says(message_of_json(changed(R"("normalizer": null)", R"("normalizer": {"type": "Lowercase"})")),
             "\"Lowercase\" is not known"));
  CHECK(says(message_of_json(changed(R"("dropout": null)", R"("dropout": 0.1)")), "must be null"));
  CHECK(
      says(message_of_json(changed(R"("type": "ByteLevel")", R"("type": "Metaspace")")), "\"Metaspace\" is not known"));
  CHECK(says(message_of_json(changed(R"("byte_fallback": false)", R"("byte_fallback": true)")), "tokenizer.model"));
  CHECK(says(message_of_json(changed("\"merges\": [", "\"merges\": [[\"q\", \"nothing\"],")),
             "is not in the vocabulary"));
  CHECK(says(message_of_json("[]"), "expected a JSON object"));
  CHECK(says(message_of_json("{}"), "\"model\": expected an object"));
  const auto none = open_tokenizer("/");
  REQUIRE(!none);
  CHECK(says(none.error().message, "has no tokenizer"));
  const auto damaged = open_tokenizer(tokenizer_folder / "reference.txt");
  REQUIRE(!damaged);
  CHECK(says(damaged.error().message, "is no model of sentencepiece"));
}
