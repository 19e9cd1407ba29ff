// Files of tokens in the formats of other trainers, and texts as tokens of a tokenizer.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/file.hpp>
#include <galvatron/data/document_source.hpp>
#include <galvatron/data/megatron_index.hpp>
#include <galvatron/data/token_files.hpp>
#include <galvatron/data/token_source.hpp>
#include <galvatron/data/tokenizer.hpp>

#include "../folder.hpp"

namespace {

using namespace galvatron;
using namespace galvatron::train;

using TokenDocuments = std::vector<std::vector<std::int32_t>>;

std::vector<std::int32_t> tokens_in(const TokenView& view) {
  std::vector<std::int32_t> out;
  for (std::int64_t i = 0; i < view.count; ++i) out.push_back(static_cast<std::int32_t>(view[i]));
  return out;
}

std::span<const std::byte> bytes_of_text(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// A token for each letter, one for each word that begins with a capital; 500 ends a text.
class LetterTokenizer final : public Tokenizer {
 public:
  LetterTokenizer() { end_token_ = 500; }
  using Tokenizer::encode;
  void encode(std::string_view text, std::vector<std::int32_t>& out) const override {
    for (const char c : text) out.push_back(300 + static_cast<unsigned char>(c) % 100);
  }
  [[nodiscard]] std::string decode(std::span<const std::int32_t> tokens, bool) const override {
    return std::string(tokens.size(), '?');
  }
  [[nodiscard]] std::int64_t bytes_of(std::int32_t token) const override { return token == 500 ? 0 : 1; }
  [[nodiscard]] std::int64_t vocabulary() const override { return 501; }
};

}  // namespace

TEST_CASE("tokens come back from every kind of file") {
  const test::Folder folder;
  std::mt19937 random(11);
  for (const std::int64_t vocabulary : {std::int64_t{500}, std::int64_t{1} << 16, std::int64_t{130'000}})
    for (const TokenFileKind kind :
         {TokenFileKind::llm_c, TokenFileKind::nanogpt, TokenFileKind::megatron, TokenFileKind::npy}) {
      CAPTURE(vocabulary);
      CAPTURE(name_of(kind));
      const std::filesystem::path path = folder.path / (kind == TokenFileKind::npy ? "t.npy" : "t.bin");
      auto writer = TokenFileWriter::create(path, kind, vocabulary);
      if (kind == TokenFileKind::nanogpt && vocabulary > 1 << 16) {
        REQUIRE(!writer);
        CHECK(writer.error().message.find("choose llm.c, megatron or npy") != std::string::npos);
        continue;
      }
      REQUIRE(writer);
      TokenDocuments documents;
      std::vector<std::int32_t> expected;
      for (int d = 0; d < 20; ++d) {
        auto& document = documents.emplace_back(random() % 50);
        for (std::int32_t& token : document)
          token = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
        expected.insert(expected.end(), document.begin(), document.end());
        REQUIRE(writer->add(document));
      }
      CHECK_FALSE(std::filesystem::exists(path));  // under its name when it is complete
      REQUIRE(writer->finish());
      CHECK(writer->tokens() == std::ssize(expected));
      CHECK(writer->documents() == 20);
      const auto file = value_or_throw(MappedFile::open(path));
      const auto found = kind_of_token_file(file.bytes(), path);
      CHECK(found == (kind == TokenFileKind::nanogpt ? std::optional<TokenFileKind>() : kind));
      if (kind == TokenFileKind::llm_c) {
        CHECK(tokens_in(value_or_throw(parse_token_file(file.bytes(), "t"))) == expected);
      } else if (kind == TokenFileKind::npy) {
        CHECK(tokens_in(value_or_throw(parse_npy(file.bytes(), "t"))) == expected);
      } else if (kind == TokenFileKind::nanogpt) {
        CHECK(tokens_in(value_or_throw(parse_nanogpt(file.bytes(), "t"))) == expected);
      } else {
        const auto index_file = value_or_throw(MappedFile::open(folder.path / "t.idx"));
        const auto index = value_or_throw(MegatronIndex::parse(index_file.bytes(), "t.idx"));
        const TokenView all{file.bytes().data(), file.size() / index.width(), index.width()};
        TokenDocuments read;
        CHECK(index.for_each_document(all.count, "t.idx", [&](std::int64_t, std::int64_t begin, std::int64_t count) {
          read.push_back(tokens_in(all.slice(begin, count)));
          return Result<void>{};
        }));
        CHECK(read == documents);
        std::filesystem::remove(folder.path / "t.idx");
      }
      std::filesystem::remove(path);
    }
}

TEST_CASE("arrays of numpy are read as numpy writes them, and others refused") {
  const auto npy = [](const std::string& header, const std::string& body, char version = 1) {
    std::string out("\x93NUMPY", 6);
    out += {version, 0};
    const auto size = static_cast<std::uint32_t>(header.size());
    out += {static_cast<char>(size & 0xFFU), static_cast<char>(size >> 8U)};
    if (version > 1) out += {0, 0};
    return out + header + body;
  };
  const auto message = [](const std::string& text) {
    const auto read = parse_npy(bytes_of_text(text), "a.npy");
    return read ? "" : read.error().message;
  };
  const std::string good = "{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }\n";
  const std::string file = npy(good, std::string("\x01\x00\x02\x01", 4));
  const auto tokens = parse_npy(bytes_of_text(file), "a.npy");
  REQUIRE(tokens);
  CHECK(tokens_in(*tokens) == std::vector<std::int32_t>{1, 258});
  CHECK(message(npy(good, std::string(4, 'x'), 2)).empty());
  CHECK(message("numpy").find("does not begin") != std::string::npos);
  CHECK(message(npy(good, "xx")).find("do not make the 2 bytes") != std::string::npos);
  CHECK(message(npy(good, "").substr(0, 20)).find("cut short") != std::string::npos);
  CHECK(message(npy("{'descr': '<i8', 'shape': (1,), }", "12345678")).find("astype") != std::string::npos);
  CHECK(message(npy("{'descr': '<u2', 'shape': (1, 2), }", "1234")).find("one dimension") != std::string::npos);
  CHECK(message(npy("{'descr': '<u2'}", "")).find("shape") != std::string::npos);
  CHECK(message(npy("{'descr': '<u4', 'shape': (4611686018427387905,), }", "1234")).find("do not make") !=
        std::string::npos);
  CHECK(!parse_nanogpt(bytes_of_text("abc"), "n.bin"));
}

TEST_CASE("texts and JSON lines are read with a tokenizer, each document with its end") {
  const test::Folder folder;
  const LetterTokenizer tokenizer;
  const auto text = folder.write("a.txt", "abcdefghij");
  const auto lines = folder.write("b.jsonl", "{\"text\": \"abc\"}\n\n{\"text\": \"de\"}\n");
  const std::vector<std::filesystem::path> paths{text, lines};
  const auto source = TokenSource::open(paths, {.sequence = 2, .vocabulary = 501, .tokenizer = &tokenizer});
  REQUIRE(source);
  std::vector<std::int32_t> all;
  source->read({0, source->tokens()}, [&](std::int32_t token) { all.push_back(token); });
  std::vector<std::int32_t> expected;
  for (const std::string document : {"abcdefghij", "abc", "de"}) {
    tokenizer.encode(document, expected);
    expected.push_back(500);
  }
  CHECK(all == expected);
  const auto documents = DocumentSource::open(paths, {.vocabulary = 501, .tokenizer = &tokenizer});
  REQUIRE(documents);
  CHECK(documents->documents() == 3);
  CHECK(documents->length(1) == 4);
  CHECK(documents->tokens() == std::ssize(expected));
  const auto outside = TokenSource::open(paths, {.sequence = 2, .vocabulary = 400, .tokenizer = &tokenizer});
  REQUIRE(!outside);
  CHECK(outside.error().message.find("token 500 at position 10 is outside the vocabulary of 400") != std::string::npos);
  const auto wrong = check_vocabulary(tokenizer, 300, "the model m");
  REQUIRE(!wrong);
  CHECK(wrong.error().message.find("--tokenizer") != std::string::npos);
}
