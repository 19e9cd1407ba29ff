// Token files, and what is read from them.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <galvatron/data/data.hpp>
#include <galvatron/model/build.hpp>

#include "../folder.hpp"

using namespace galvatron;
using namespace galvatron::train;
using galvatron::test::Folder;
namespace fs = std::filesystem;

namespace {

template <class T>
std::string bin(std::int32_t magic, std::int32_t version, std::int32_t count, const std::vector<T>& tokens) {
  std::string bytes(1024, '\0');
  const std::int32_t header[3] = {magic, version, count};
  std::memcpy(bytes.data(), header, sizeof header);
  return bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
}
std::string bin16(const std::vector<std::uint16_t>& tokens) {
  return bin(20240520, 1, static_cast<std::int32_t>(tokens.size()), tokens);
}
std::string bin32(const std::vector<std::uint32_t>& tokens) {
  return bin(20240801, 7, static_cast<std::int32_t>(tokens.size()), tokens);
}

Result<TokenView> parse(const std::string& bytes) {
  return parse_tokens(std::as_bytes(std::span(bytes.data(), bytes.size())), "x.bin");
}

std::string message_of(const auto& result) {
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find('\n') == std::string::npos);
  return result.error().message;
}

Result<TokenSource> open_data(std::vector<fs::path> paths, std::int64_t sequence, std::int64_t vocabulary = 50257,
                              std::uint64_t seed = 1) {
  return TokenSource::open(paths, {sequence, vocabulary, seed});
}

}  // namespace

TEST_CASE("16-bit and 32-bit token files are read") {
  const std::string small = bin16({0, 1, 65535, 50256});
  const auto a = parse(small);
  REQUIRE(a.has_value());
  CHECK(a->count == 4);
  CHECK((*a)[2] == 65535);
  CHECK(a->first_outside(65536) == 4);
  CHECK(a->first_outside(65535) == 2);
  CHECK(a->first_outside(1) == 1);
  const std::string large = bin32({128000, 4000000000U});
  const auto b = parse(large);
  REQUIRE(b.has_value());
  CHECK((*b)[0] == 128000);
  CHECK((*b)[1] == 4000000000U);
  CHECK(b->first_outside(128001) == 1);
  CHECK(parse(bin16({}))->count == 0);
}

TEST_CASE("an array of numpy is the same data as a token file") {
  const Folder folder;
  const std::vector<std::uint16_t> tokens{5, 6, 7, 8, 9, 300, 11};
  folder.write("a.bin", bin16(tokens));
  std::string array("\x93NUMPY\x01\x00", 8);
  const std::string header = "{'descr': '<u2', 'fortran_order': False, 'shape': (7,), }\n";
  array += {static_cast<char>(header.size()), 0};
  array += header;
  array.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 2);
  folder.write("a.npy", array);
  CHECK_FALSE(is_text_name("a.npy"));
  const auto numbers = [&](const char* name) {
    const auto source = open_data({folder.path / name}, 3);
    REQUIRE(source.has_value());
    std::vector<std::int32_t> out(6);
    source->inputs(0, 2, {0, 3}, {out.data(), 6});
    return out;
  };
  CHECK(numbers("a.npy") == numbers("a.bin"));
  folder.write("a.npy", "a text");
  CHECK(message_of(open_data({folder.path / "a.npy"}, 3)).find("no array of tokens of numpy") != std::string::npos);
}

TEST_CASE("a damaged token file is refused with what is wrong with it") {
  CHECK(message_of(parse(std::string(1023, 'x'))).find("it has 1023 bytes, its header alone would have 1024") !=
        std::string::npos);
  CHECK(message_of(parse(bin<std::uint16_t>(20240521, 1, 0, {}))).find("its magic number is 20240521, not 20240520") !=
        std::string::npos);
  CHECK(message_of(parse(bin<std::uint16_t>(20240520, 7, 0, {}))) ==
        "x.bin is a 16-bit token file of version 7, only version 1 is known; write it again as that");
  CHECK(message_of(parse(bin<std::uint32_t>(20240801, 1, 0, {}))) ==
        "x.bin is a 32-bit token file of version 1, only version 7 is known; write it again as that");
  CHECK(message_of(parse(bin<std::uint16_t>(20240520, 1, 3, {1, 2}))) ==
        "x.bin is cut short: 3 16-bit tokens make 1030 bytes, it has 1028; write it again");
  CHECK(message_of(parse(bin<std::uint16_t>(20240520, 1, 1, {1, 2}))) ==
        "x.bin is damaged: 1 16-bit tokens make 1026 bytes, it has 1028; write it again");
  CHECK(message_of(parse(bin<std::uint32_t>(20240801, 7, -2, {}))) ==
        "x.bin is damaged: its header says -2 tokens; write it again");
  CHECK(message_of(parse(bin<std::uint32_t>(20240801, 7, 0x7fffffff, {1}))).find("is cut short") != std::string::npos);
}

TEST_CASE("the first token outside the vocabulary is found at any place") {
  for (const std::size_t at : {0U, 1U, 4095U, 4096U, 9999U}) {
    std::vector<std::uint16_t> tokens(10000, 7);
    tokens[at] = 300;
    tokens[9999] = 301;
    const std::string bytes = bin16(tokens);
    CHECK(parse(bytes)->first_outside(300) == static_cast<std::int64_t>(at));
    CHECK(parse(bytes)->first_outside(302) == 10000);
  }
}

TEST_CASE("the order of an epoch is a permutation, another one for every seed and epoch") {
  for (const std::int64_t count : {1, 2, 3, 4, 5, 16, 17, 100, 1000, 4097}) {
    std::vector<bool> seen(static_cast<std::size_t>(count), false);
    for (std::int64_t i = 0; i < count; ++i) {
      const auto x = static_cast<std::size_t>(shuffled(3, 2, i, count));
      REQUIRE(x < seen.size());
      REQUIRE_FALSE(seen[x]);
      seen[x] = true;
    }
  }
  const auto order = [](std::uint64_t seed, std::int64_t epoch) {
    std::vector<std::int64_t> windows;
    for (std::int64_t i = 0; i < 100; ++i) windows.push_back(shuffled(seed, epoch, i, 100));
    return windows;
  };
  CHECK(order(1, 0) == order(1, 0));
  CHECK(order(1, 0) != order(2, 0));
  CHECK(order(1, 0) != order(1, 1));
  static_assert(shuffled(1, 0, 0, std::int64_t{1} << 40) < std::int64_t{1} << 40);
}

TEST_CASE("every place of the order is as likely for every window") {
  constexpr std::int64_t count = 10, epochs = 4000;
  std::vector<double> hits(static_cast<std::size_t>(count * count), 0);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    for (std::int64_t i = 0; i < count; ++i) ++hits[static_cast<std::size_t>(i * count + shuffled(9, epoch, i, count))];
  double chi = 0;
  for (const double h : hits) chi += (h - epochs / 10.0) * (h - epochs / 10.0) / (epochs / 10.0);
  CHECK(chi < 137);  // 81 degrees of freedom, 1 in 10000
}

TEST_CASE("inputs and targets are windows of the text, sequence-major, targets one token further") {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 103; ++i) text += static_cast<char>(i);
  const auto source = open_data({folder.write("a.txt", text)}, 10);
  REQUIRE(source.has_value());
  CHECK(source->tokens() == 103);
  CHECK(source->windows() == 10);
  constexpr std::int64_t samples = 30, first = 5;  // several epochs
  std::vector<std::int32_t> in(10 * samples), out(10 * samples);
  source->inputs(first, samples, {0, 10}, {in.data(), 10 * samples});
  source->targets(first, samples, {0, 10}, {out.data(), 10 * samples});
  for (std::int64_t i = 0; i < samples; ++i)
    for (std::int64_t s = 0; s < 10; ++s) {
      const auto place = static_cast<std::size_t>(s * samples + i);
      REQUIRE(in[place] == source->window(first + i) * 10 + s);
      REQUIRE(out[place] == in[place] + 1);
    }
  // A part of the sequence of a part of the samples.
  std::vector<std::int32_t> part(3 * 2);
  source->targets(first + 7, 2, {4, 3}, {part.data(), 6});
  for (std::int64_t s = 0; s < 3; ++s)
    for (std::int64_t i = 0; i < 2; ++i)
      REQUIRE(part[static_cast<std::size_t>(s * 2 + i)] == out[static_cast<std::size_t>((4 + s) * samples + 7 + i)]);
  CHECK_THROWS_AS(source->inputs(0, 2, {8, 3}, {part.data(), 6}), Failure);
  CHECK_THROWS_AS(source->inputs(0, 3, {8, 2}, {part.data(), 5}), Failure);
}

TEST_CASE("an epoch reads every window once") {
  const Folder folder;
  const auto source = open_data({folder.write("a.txt", std::string(1000, 'a'))}, 7);
  REQUIRE(source.has_value());
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::set<std::int64_t> seen;
    for (std::int64_t i = 0; i < source->windows(); ++i) seen.insert(source->window(epoch * source->windows() + i));
    CHECK(static_cast<std::int64_t>(seen.size()) == source->windows());
    CHECK(*seen.rbegin() == source->windows() - 1);
  }
}

TEST_CASE("files are one run of tokens, whatever their number and lengths") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const Folder folder;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::uint32_t> whole;
    std::vector<fs::path> paths;
    const auto files = 1 + random() % 6;
    for (unsigned f = 0; f < files; ++f) {
      std::vector<std::uint32_t> tokens(f == 0 ? 20 : random() % 30);  // some are empty, some shorter than a window
      for (auto& token : tokens) token = static_cast<std::uint32_t>(random() % 100000);
      whole.insert(whole.end(), tokens.begin(), tokens.end());
      paths.push_back(folder.write(std::to_string(f) + ".bin", bin32(tokens)));
    }
    const auto sequence = static_cast<std::int64_t>(1 + random() % 19);
    const auto source = open_data(paths, sequence, 100000, seed);
    REQUIRE(source.has_value());
    REQUIRE(source->windows() == (static_cast<std::int64_t>(whole.size()) - 1) / sequence);
    std::vector<std::int32_t> row(static_cast<std::size_t>(sequence));
    for (std::int64_t i = 0; i < source->windows(); ++i) {
      source->targets(i, 1, {0, sequence}, {row.data(), sequence});
      const auto begin = whole.begin() + source->window(i) * sequence + 1;
      REQUIRE(std::equal(row.begin(), row.end(), begin));
    }
  }
}

TEST_CASE("exactly one sample is enough, one token less is not") {
  const Folder folder;
  CHECK(open_data({folder.write("a.txt", std::string(9, 'a'))}, 8)->windows() == 1);
  CHECK(message_of(open_data({folder.write("a.txt", std::string(8, 'a'))}, 8)) ==
        "the data have 8 tokens, but one sample of 8 tokens takes 9; give more data or a shorter sequence");
  CHECK(message_of(open_data({folder.write("empty.txt", "")}, 8)).find("the data have 0 tokens") == 0);
}

TEST_CASE("a text is for models whose vocabulary is bytes, with or without some special tokens") {
  const Folder folder;
  const std::vector<fs::path> text{folder.write("a.txt", std::string(100, 'a'))};
  const std::vector<fs::path> tokens{folder.write("a.bin", bin16(std::vector<std::uint16_t>(100, 7)))};
  const auto open = [](const std::vector<fs::path>& paths, std::int64_t vocabulary) {
    const ModelSpec model =
        gpt("toy", {.layers = 1, .hidden = 8, .heads = 1, .vocabulary = vocabulary, .positions = 16});
    return Data::open(paths, model, {.sequence = 8, .seed = 1});
  };
  for (const std::int64_t bytes : {256, 257, 320, 384}) CHECK(open(text, bytes).has_value());
  for (const std::int64_t other : {128, 255, 385, 512, 50257}) {
    CAPTURE(other);
    const std::string message = message_of(open(text, other));
    CHECK(message.find(
              "a.txt is a text, whose 256 bytes are its tokens, and the model toy has the " + std::to_string(other) +
              " tokens of another vocabulary; give the model's tokenizer with --tokenizer") != std::string::npos);
    CHECK(open(tokens, other).has_value());
  }
}

TEST_CASE("a checksum tells data of the same size apart, and not the files that they are in") {
  const Folder folder;
  const auto checksum = [&](const std::vector<fs::path>& paths) {
    const auto source = open_data(paths, 8);
    REQUIRE(source.has_value());
    return source->checksum();
  };
  for (const std::size_t size : {10U, 1024U, 1025U, 256U * 1024U, 256U * 1024U + 1U, 3'000'000U}) {
    CAPTURE(size);
    std::string text;
    std::mt19937 random(static_cast<std::uint32_t>(size));
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 26);
    const std::uint32_t whole = checksum({folder.write("a.txt", text)});
    CHECK(checksum({folder.write("b.txt", text.substr(0, size / 3)), folder.write("c.txt", text.substr(size / 3))}) ==
          whole);
    CHECK(checksum({folder.path / "c.txt", folder.path / "b.txt"}) != whole);
    CHECK(checksum({folder.write("a.bin", bin16({text.begin(), text.end()}))}) == whole);
    for (const std::size_t at : {std::size_t{0}, size - 1}) {  // both ends are always read
      std::string other = text;
      other[at] = other[at] == 'a' ? 'b' : 'a';
      CHECK(checksum({folder.write("d.txt", other)}) != whole);
    }
    CHECK(checksum({folder.write("e.txt", text + "a")}) != whole);
    if (size > 256 * 1024) continue;
    for (int round = 0; round < 20; ++round) {  // and of few tokens all
      std::string other = text;
      const std::size_t at = random() % size;
      other[at] = other[at] == 'a' ? 'b' : 'a';
      CHECK(checksum({folder.write("d.txt", other)}) != whole);
    }
  }
}

TEST_CASE("data that cannot be used are refused with the file and the way out") {
  const Folder folder;
  const auto text = folder.write("a.txt", std::string(100, 'a'));
  const auto words = folder.write("w.bin", bin16({5, 6, 50300, 7, 50400}));
  const auto wide = folder.write("l.bin", bin32({5, 6, 7}));
  CHECK(message_of(open_data({}, 8)) == "no data files; name at least one text or .bin token file");
  CHECK(message_of(open_data({folder.path / "no.txt"}, 8)).find("no.txt: No such file or directory") !=
        std::string::npos);
  CHECK(message_of(open_data({folder.path}, 8)).find("Is a directory") != std::string::npos);
  CHECK(message_of(open_data({words}, 2)) ==
        words.string() +
            ": token 50300 at position 2 is outside the vocabulary of 50257; give data made with the model's "
            "tokenizer, or a model with a larger vocabulary");
  CHECK(open_data({words}, 2, 50401).has_value());
  CHECK(message_of(open_data({text}, 8, 97)).find("token 97 at position 0 is outside the vocabulary of 97") !=
        std::string::npos);
  CHECK(open_data({text}, 8, 98).has_value());
  CHECK(message_of(open_data({text, wide}, 2)) ==
        wide.string() + " is a 32-bit token file, but " + text.string() + " is a text; give files of one kind");
  CHECK(message_of(open_data({wide, folder.write("w2.bin", bin16({1, 2}))}, 2)).find("is a 16-bit token file, but") !=
        std::string::npos);
  CHECK(message_of(open_data({text, folder.write("bad.bin", "short")}, 8)).find("bad.bin is not a token file") !=
        std::string::npos);
  CHECK(message_of(open_data({text}, 0)).find("sequence length") != std::string::npos);
}
