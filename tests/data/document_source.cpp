#include <galvatron/data/document_source.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "../folder.hpp"
#include "data_writers.hpp"

using namespace galvatron;
using namespace galvatron::test;
using train::DocumentOptions;
using train::DocumentSource;
namespace fs = std::filesystem;

namespace {

Result<DocumentSource> open_documents(const std::vector<fs::path>& paths, const DocumentOptions& options) {
  return DocumentSource::open(paths, options);
}

Tokens document_tokens(const DocumentSource& source, std::int64_t document) {
  Tokens out;
  source.read(document, {0, source.length(document)}, [&](std::int32_t token) { out.push_back(token); });
  return out;
}
std::vector<Tokens> all_documents(const DocumentSource& source) {
  std::vector<Tokens> out;
  for (std::int64_t d = 0; d < source.documents(); ++d) out.push_back(document_tokens(source, d));
  return out;
}
std::vector<std::string> all_texts(const DocumentSource& source) {
  std::vector<std::string> out;
  for (const Tokens& tokens : all_documents(source)) out.emplace_back(tokens.begin(), tokens.end());
  return out;
}

const DocumentOptions of_bytes{.vocabulary = 257, .seed = 1, .separator = {}};
DocumentOptions separated(std::string separator) {
  DocumentOptions options = of_bytes;
  options.separator = std::move(separator);
  return options;
}
const DocumentOptions of_tokens{.vocabulary = 1000, .seed = 1, .separator = {}, .end_token = 999};

}  // namespace

TEST_CASE("a text is one document, or what lies between separators") {
  const Folder folder;
  const auto a = folder.write("a.txt", "one<|end|>two!<|end|>three");
  const auto b = folder.write("b.txt", "xyz");
  using Texts = std::vector<std::string>;
  CHECK(all_texts(*open_documents({a, b}, of_bytes)) == Texts{"one<|end|>two!<|end|>three", "xyz"});
  const auto parts = open_documents({a, b}, separated("<|end|>"));
  REQUIRE(parts.has_value());
  CHECK(all_texts(*parts) == Texts{"one", "two!", "three", "xyz"});
  CHECK(parts->tokens() == 15);
  CHECK(parts->length(1) == 4);
  CHECK(parts->longest_document() == 2);
  CHECK(parts->place(0) == a.string() + ", byte 0");
  CHECK(parts->place(1) == a.string() + ", byte 10");
  CHECK(parts->place(3) == b.string() + ", byte 0");
  CHECK(open_documents({a, b}, of_bytes)->place(1) == b.string());
  // Of equally long ones the first, in a file and over files.
  const auto equal = folder.write("equal.txt", "aa-bb");
  CHECK(open_documents({equal, equal}, separated("-"))->longest_document() == 0);
  // Behind the last separator nothing has to follow, and separators may be lines or single bytes.
  CHECK(all_texts(*open_documents({folder.write("c.txt", "aa\n--\nbb\n--\n")}, separated("\n--\n"))) ==
        Texts{"aa", "bb"});
  CHECK(all_texts(*open_documents({folder.write("d.txt", std::string("aa\0bb\0", 6))},
                                  separated(std::string(1, '\0')))) == Texts{"aa", "bb"});
  // One that ends a text stands for no empty document; a file of none is fine beside others.
  CHECK(all_texts(*open_documents({folder.write("e.txt", ""), b}, separated("-"))) == Texts{"xyz"});
  CHECK(all_texts(*open_documents({folder.write("f.txt", "aaaa")}, separated("aaaaa"))) == Texts{"aaaa"});
}

TEST_CASE("a line of JSON lines is a document of its text's bytes") {
  const Folder folder;
  const std::vector<std::string> texts = {"one", "zwei\nLinien", "dr\u00e9i\t\"\\", std::string("a\0b", 3),
                                          "\U0001F600"};
  std::string lines = "\n";
  for (const std::string& text : texts) lines += json_line(text) + "\n";
  const auto path = folder.write("a.jsonl", lines);
  const auto source = open_documents({path}, of_bytes);
  REQUIRE(source.has_value());
  CHECK(all_texts(*source) == texts);
  CHECK(source->place(2) == path.string() + ", line 6");
  CHECK(all_texts(*open_documents({folder.write("a.ndjson", lines)}, of_bytes)) == texts);
  // Beside texts, in one run.
  CHECK(open_documents({path, folder.write("b.txt", "xyz")}, of_bytes)->documents() == 6);
}

TEST_CASE("a token that ends documents is added to texts and JSON lines") {
  const Folder folder;
  DocumentOptions options = of_bytes;
  options.end_token = 256;
  const auto source = open_documents({folder.write("a.txt", "xy"), folder.write("a.jsonl", json_line("z"))}, options);
  REQUIRE(source.has_value());
  CHECK(all_documents(*source) == std::vector<Tokens>{{'x', 'y', 256}, {'z', 256}});
  CHECK(source->tokens() == 5);
  Tokens part;
  source->read(0, {1, 2}, [&](std::int32_t token) { part.push_back(token); });
  source->read(0, {2, 1}, [&](std::int32_t token) { part.push_back(token); });
  source->read(0, {3, 0}, [&](std::int32_t token) { part.push_back(token); });
  source->read(0, {1, 1}, [&](std::int32_t token) { part.push_back(token); });
  CHECK(part == Tokens{'y', 256, 256, 'y'});
  CHECK_THROWS_AS(source->read(0, {1, 3}, [](std::int32_t) {}), Failure);
  CHECK_THROWS_AS(source->read(0, {-1, 1}, [](std::int32_t) {}), Failure);
}

TEST_CASE("documents of a token file end with the end-of-text token") {
  const Folder folder;
  const auto open = [&](const Tokens& tokens) {
    return open_documents({folder.write("a.bin", token_file(tokens))}, of_tokens);
  };
  const auto usual = open({1, 2, 999, 3, 999, 4, 5, 6, 999});
  REQUIRE(usual.has_value());
  CHECK(all_documents(*usual) == std::vector<Tokens>{{1, 2, 999}, {3, 999}, {4, 5, 6, 999}});
  CHECK(usual->place(1) == (folder.path / "a.bin").string() + ", token 3");
  // llm.c writes the token before each document.
  CHECK(all_documents(*open({999, 1, 2, 999, 3, 4})) == std::vector<Tokens>{{1, 2, 999}, {3, 4}});
  CHECK(all_documents(*open({1, 2, 3})) == std::vector<Tokens>{{1, 2, 3}});
}

TEST_CASE("ends of documents are found at any place of a token file") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const Folder folder;
  for (int round = 0; round < 5; ++round) {
    std::vector<Tokens> documents;
    Tokens all;
    while (all.size() < 50000) {
      Tokens document(1 + random() % (random() % 10 == 0 ? 20000 : 30));
      for (auto& token : document) token = static_cast<std::int32_t>(random() % 999);
      document.push_back(999);
      all.insert(all.end(), document.begin(), document.end());
      documents.push_back(std::move(document));
    }
    const auto source = open_documents({folder.write("a.bin", token_file(all))}, of_tokens);
    REQUIRE(source.has_value());
    REQUIRE(all_documents(*source) == documents);
  }
}

TEST_CASE("documents of Megatron-LM's files are those of their index") {
  const Folder folder;
  for (const int type : {1, 4, 8}) {
    const auto files = MegatronFiles::of({{{1, 2, 3}}, {{4, 5}, {6}}, {{7, 8}}}, type);
    folder.write("set.idx", files.idx);
    DocumentOptions options = of_tokens;
    options.end_token = -1;
    const auto source = open_documents({folder.write("set.bin", files.bin)}, options);
    REQUIRE(source.has_value());
    CHECK(all_documents(*source) == std::vector<Tokens>{{1, 2, 3}, {4, 5, 6}, {7, 8}});
    CHECK(source->place(2) == (folder.path / "set.bin").string() + ", token 6");
    // An end token is in the file, if at all.
    CHECK(all_documents(*open_documents({folder.path / "set.bin"}, of_tokens)) == all_documents(*source));
  }
}

TEST_CASE("empty documents are refused, or left out and counted") {
  const Folder folder;
  DocumentOptions skip = of_bytes;
  skip.skip_empty = true;
  const auto lines = folder.write("a.jsonl", json_line("one") + json_line("") + json_line("x") + json_line("two"));
  CHECK(refused(open_documents({lines}, of_bytes)) ==
        lines.string() + ", line 2: the document is empty; remove it, or give --empty-documents skip");
  const auto source = open_documents({lines}, skip);
  REQUIRE(source.has_value());
  CHECK(all_texts(*source) == std::vector<std::string>{"one", "two"});
  CHECK(source->skipped() == 2);
  CHECK(source->notice() ==
        "left out 2 documents of less than two tokens; the first is at " + lines.string() + ", line 2");
  CHECK(open_documents({folder.write("ok.txt", "ok")}, skip)->notice().empty());

  CHECK(refused(open_documents({folder.write("b.jsonl", json_line("one") + json_line("x"))}, of_bytes))
            .find("b.jsonl, line 2: the document has one token and nothing to predict; remove it") !=
        std::string::npos);
  CHECK(refused(open_documents({folder.write("c.txt", "")}, of_bytes)).find("c.txt: the document is empty") !=
        std::string::npos);
  CHECK(refused(open_documents({folder.write("d.txt", "aa----bb")}, separated("--")))
            .find("d.txt, byte 4: the document is empty") != std::string::npos);
  CHECK(refused(open_documents({folder.write("e.bin", token_file({1, 2, 999, 999, 3}))}, of_tokens))
            .find("e.bin, token 3: the document has one token and nothing to predict") != std::string::npos);
  const auto files = MegatronFiles::of({{{1, 2, 3}}, {}, {{7, 8}}});
  folder.write("f.idx", files.idx);
  CHECK(refused(open_documents({folder.write("f.bin", files.bin)}, of_tokens))
            .find("f.bin, token 3: the document is empty") != std::string::npos);
  // An end token alone is predicted by nothing.
  DocumentOptions ended = of_bytes;
  ended.end_token = 256;
  CHECK(refused(open_documents({folder.path / "c.txt"}, ended)).find("the document is empty") != std::string::npos);
  CHECK(refused(open_documents({folder.path / "c.txt"}, skip)) ==
        "the data have no document of two tokens or more; give at least one");
}

TEST_CASE("documents that cannot be used are refused with the file and the way out") {
  const Folder folder;
  const auto text = folder.write("a.txt", "some text");
  const auto tokens = folder.write("a.bin", token_file({1, 2, 999, 5, 1000, 7}));
  CHECK(refused(open_documents({}, of_bytes)) == "no data files; name at least one text, .jsonl or .bin token file");
  CHECK(refused(open_documents({folder.path / "no.jsonl"}, of_bytes)).find("no.jsonl: No such file or directory") !=
        std::string::npos);
  CHECK(refused(open_documents({folder.path}, of_bytes)).find("Is a directory") != std::string::npos);
  CHECK(refused(open_documents({text}, of_tokens))
            .find("a.txt is a text, whose 256 bytes are its tokens, and the model has the 1000 tokens of another "
                  "vocabulary; "
                  "give the model's tokenizer with --tokenizer") != std::string::npos);
  CHECK(refused(open_documents({folder.write("b.jsonl", json_line("abc"))}, of_tokens)).find("b.jsonl is a text") !=
        std::string::npos);
  CHECK(refused(open_documents({folder.write("c.jsonl", json_line("abc") + "{\"text\": \"a\n" + json_line("abc"))},
                               of_bytes))
            .find("c.jsonl, line 2, column 12: not valid JSON: ") != std::string::npos);
  CHECK(refused(open_documents({folder.write("d.jsonl", json_line("abc") + "{\"text\": \"a\xff\"}\n")}, of_bytes))
            .find("d.jsonl, line 2, column 12: not valid JSON: syntax error while parsing value - invalid string: "
                  "ill-formed UTF-8 byte; last read: '\"a?'; correct the line") != std::string::npos);
  CHECK(
      refused(open_documents({tokens}, of_tokens)) ==
      tokens.string() +
          ": token 1000 at position 4 is outside the vocabulary of 1000; give data made with the model's tokenizer, or "
          "a model with a larger vocabulary");
  DocumentOptions endless = of_tokens;
  endless.vocabulary = 1001;
  CHECK(open_documents({tokens}, endless).has_value());
  endless.end_token = -1;
  CHECK(refused(open_documents({tokens}, endless)) ==
        tokens.string() + ": which token ends a document? Give --end-token, or the index " +
            (folder.path / "a.idx").string() + " of Megatron-LM");
  CHECK(refused(open_documents({folder.write("raw.bin", std::string(5000, 'x'))}, of_tokens))
            .find("raw.bin is not a token file") != std::string::npos);
  CHECK(refused(open_documents({folder.path / "raw.bin"}, of_tokens))
            .find("those of Megatron-LM need their index, " + (folder.path / "raw.idx").string()) != std::string::npos);
  const auto files = MegatronFiles::of({{{1, 2, 3}}, {{1000, 5}}});
  folder.write("set.idx", files.idx);
  CHECK(refused(open_documents({folder.write("set.bin", files.bin)}, of_tokens))
            .find("set.bin: token 1000 at position 3 is outside the vocabulary") != std::string::npos);
  CHECK(refused(open_documents({folder.write("set.bin", files.bin.substr(2))}, of_tokens)).find("set.idx is damaged") !=
        std::string::npos);
  folder.write("set.idx", "short");
  CHECK(refused(open_documents({folder.path / "set.bin"}, of_tokens)).find("set.idx is not an index") !=
        std::string::npos);
  DocumentOptions beyond = of_tokens;
  beyond.end_token = 1000;
  CHECK(refused(open_documents({tokens}, beyond)).find("not 1000 and 1000") != std::string::npos);
}

TEST_CASE("a document of 2^31 tokens is refused") {
  const Folder folder;
  const auto path = folder.write("long.txt", "");
  REQUIRE(::truncate(path.c_str(), std::int64_t{1} << 31) == 0);  // takes no blocks of the disk
  CHECK(refused(open_documents({path}, of_bytes)) ==
        path.string() + ": the document has 2147483648 tokens, and at most 2147483647 are read as one; split it");
  REQUIRE(::truncate(path.c_str(), (std::int64_t{1} << 31) - 1) == 0);
  const auto source = open_documents({path}, of_bytes);
  REQUIRE(source.has_value());
  CHECK(source->length(0) == (std::int64_t{1} << 31) - 1);
  DocumentOptions ended = of_bytes;
  ended.end_token = 256;
  CHECK(refused(open_documents({path}, ended)).find("has 2147483648 tokens") != std::string::npos);
}

TEST_CASE("every file kind has the same documents, samples and checksum for the same texts") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const Folder folder;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> texts(1 + random() % 300);
    for (auto& text : texts) {
      text.resize(2 + random() % (random() % 20 == 0 ? 3000 : 50));
      for (char& c : text) c = static_cast<char>(1 + random() % 126);  // no byte 0, which separates
    }
    std::string separate, lines;
    Tokens ended;
    std::vector<std::vector<Tokens>> indexed;
    for (const std::string& text : texts) {
      separate += text + std::string(1, '\0');
      lines += json_line(text);
      ended.insert(ended.end(), text.begin(), text.end());
      ended.push_back(256);
      indexed.push_back({Tokens(text.begin(), text.end())});
      indexed.back().front().push_back(256);
    }
    const auto files = MegatronFiles::of(indexed);
    folder.write("m.idx", files.idx);
    DocumentOptions options = separated(std::string(1, '\0'));
    options.end_token = 256;
    options.seed = seed;
    const auto first = open_documents({folder.write("s.txt", separate)}, options);
    REQUIRE(first.has_value());
    REQUIRE(first->documents() == std::ssize(texts));
    const auto expected = all_documents(*first);
    for (const auto& path :
         {folder.write("l.jsonl", lines), folder.write("t.bin", token_file(ended)), folder.write("m.bin", files.bin)}) {
      CAPTURE(path);
      const auto source = open_documents({path}, options);
      REQUIRE(source.has_value());
      REQUIRE(all_documents(*source) == expected);
      CHECK(source->checksum() == first->checksum());
      CHECK(source->tokens() == first->tokens());
      CHECK(source->longest_document() == first->longest_document());
      for (std::int64_t i = 0; i < 2 * source->documents(); ++i) REQUIRE(source->document(i) == first->document(i));
      std::vector<std::int64_t> lengths;
      source->for_each_length([&](std::int64_t tokens) { lengths.push_back(tokens); });
      for (std::size_t d = 0; d < texts.size(); ++d) {
        REQUIRE(lengths[d] == std::ssize(texts[d]) + 1);
        REQUIRE(source->length(static_cast<std::int64_t>(d)) == lengths[d]);
      }
    }
    // Divided into files.
    std::size_t cut = 0;
    for (std::size_t d = 0; d < texts.size() / 2; ++d) cut += texts[d].size() + 1;
    const auto halves = open_documents(
        {folder.write("1.txt", separate.substr(0, cut)), folder.write("2.txt", separate.substr(cut))}, options);
    REQUIRE(halves.has_value());
    CHECK(all_documents(*halves) == expected);
    CHECK(halves->checksum() == first->checksum());
    // Another token, or the same tokens cut elsewhere.
    std::string other = separate;
    other[0] = other[0] == 'a' ? 'b' : 'a';
    CHECK(open_documents({folder.write("o.txt", other)}, options)->checksum() != first->checksum());
    if (texts.front().size() > 4) {
      other = separate;
      other.erase(texts.front().size(), 1).insert(2, 1, '\0');
      CHECK(open_documents({folder.write("o.txt", other)}, options)->checksum() != first->checksum());
    }
  }
}

TEST_CASE("an epoch has every document once, in another order each time") {
  const Folder folder;
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += json_line("document " + std::to_string(i));
  const auto source = open_documents({folder.write("a.jsonl", lines)}, of_bytes);
  REQUIRE(source.has_value());
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t epoch = 0; epoch < 5; ++epoch) {
    std::vector<std::int64_t> order;
    for (std::int64_t i = 0; i < 100; ++i) order.push_back(source->document(epoch * 100 + i));
    CHECK(std::set<std::int64_t>(order.begin(), order.end()).size() == 100);
    orders.insert(std::move(order));
  }
  CHECK(orders.size() == 5);
}

TEST_CASE("a file of JSON lines that changes under a run is noticed") {
  const Folder folder;
  const auto path = folder.write("a.jsonl", json_line("one") + json_line("two"));
  const auto source = open_documents({path}, of_bytes);
  REQUIRE(source.has_value());
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(1);
    file << "!";
  }
  CHECK_THROWS_WITH_AS(source->read(0, {0, 1}, [](std::int32_t) {}),
                       (path.string() + ", line 1 has changed since the file was opened").c_str(), Failure);
}
