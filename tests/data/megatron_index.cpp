#include <galvatron/data/megatron_index.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "data_writers.hpp"

using namespace galvatron;
using namespace galvatron::test;
using train::MegatronIndex;

namespace {

using Spans = std::vector<std::pair<std::int64_t, std::int64_t>>;  // first token, tokens

// Of a .bin file of so many bytes.
Result<Spans> documents_of_index(const std::string& idx, std::size_t bin_bytes) {
  const auto index = MegatronIndex::parse(std::as_bytes(std::span(idx)), "a.idx");
  if (!index) return tl::unexpected<Error>(index.error());
  Spans out;
  const auto done = index->for_each_document(static_cast<std::int64_t>(bin_bytes) / index->width(), "a.idx",
                                             [&](std::int64_t document, std::int64_t first, std::int64_t tokens) {
                                               CHECK(document == std::ssize(out));
                                               out.emplace_back(first, tokens);
                                               return Result<void>();
                                             });
  if (!done) return tl::unexpected<Error>(done.error());
  return out;
}

}  // namespace

TEST_CASE("documents of an index are runs of its sequences") {
  for (const int type : {1, 4, 8}) {
    CAPTURE(type);
    const auto files = MegatronFiles::of({{{1, 2, 3}}, {{4}, {5, 6}}, {}, {{7, 8}}}, type);
    const auto documents = documents_of_index(files.idx, files.bin.size());
    REQUIRE(documents.has_value());
    CHECK(*documents == Spans{{0, 3}, {3, 3}, {6, 0}, {6, 2}});
  }
  CHECK(documents_of_index(MegatronFiles::of({}).idx, 0)->empty());
  // Tokens between documents and behind the last belong to none.
  auto gap = MegatronFiles::of({{{1, 2}}, {{3, 4}}});
  const std::int64_t later = 10;
  gap.idx.replace(MegatronIndex::header_bytes + 2 * 4 + 8, 8, reinterpret_cast<const char*>(&later), 8);
  CHECK(*documents_of_index(gap.idx, 100) == Spans{{0, 2}, {5, 2}});
}

TEST_CASE("a damaged index is refused with what is wrong with it") {
  const auto files = MegatronFiles::of({{{1, 2, 3}}, {{4}, {5, 6}}});
  const auto with = [&](std::size_t at, const auto& value) {
    std::string idx = files.idx;
    return idx.replace(at, sizeof value, reinterpret_cast<const char*>(&value), sizeof value);
  };
  const auto message = [&](const std::string& idx) { return refused(documents_of_index(idx, files.bin.size())); };
  constexpr std::size_t header = MegatronIndex::header_bytes, pointers = header + 3 * 4, ends = pointers + 3 * 8;
  CHECK(message("short").find("a.idx is not an index of Megatron-LM") == 0);
  CHECK(message(with(0, 'X')).find("a.idx is not an index of Megatron-LM") == 0);
  CHECK(message(with(9, std::uint64_t{2})) == "a.idx is an index of version 2, only version 1 is known");
  CHECK(message(with(17, std::uint8_t{5})) ==
        "a.idx has tokens of type 5; known are 1 (uint8), 4 (int32) and 8 (uint16)");
  CHECK(message(with(18, std::uint64_t{4})).find("a.idx is damaged: 4 sequences and 3 ends of documents do not make") ==
        0);
  CHECK(message(with(18, ~std::uint64_t{0})).find("a.idx is damaged") == 0);
  CHECK(message(with(26, ~std::uint64_t{0})).find("a.idx is damaged") == 0);
  CHECK(message(files.idx.substr(0, files.idx.size() - 1)).find("a.idx is damaged") == 0);
  CHECK(message(with(header, std::int32_t{-1})).find("document 0: a sequence of -1 tokens begins at byte 0") !=
        std::string::npos);
  CHECK(message(with(header, std::int32_t{7}))
            .find("document 0: a sequence of 7 tokens begins at byte 0; what is before "
                  "it ends at token 0 of 6") != std::string::npos);
  CHECK(message(with(pointers + 8, std::int64_t{4})).find("document 1: a sequence of 1 tokens begins at byte 4") !=
        std::string::npos);                                                                           // overlaps
  CHECK(message(with(pointers + 8, std::int64_t{7})).find("begins at byte 7") != std::string::npos);  // half a token
  CHECK(message(with(pointers + 8, std::int64_t{1} << 62)).find("begins at byte") != std::string::npos);
  CHECK(message(with(pointers + 16, std::int64_t{10}))
            .find("document 1: a sequence of 2 tokens begins at byte 10; what "
                  "is before it ends at token 4 of 6") != std::string::npos);
  CHECK(message(with(ends, std::int64_t{-1})).find("document 0: it has the sequences -1 to 1 of 3") !=
        std::string::npos);
  CHECK(message(with(ends + 8, std::int64_t{4})).find("document 0: it has the sequences 0 to 4 of 3") !=
        std::string::npos);
  CHECK(message(with(ends + 16, std::int64_t{0})).find("document 1: it has the sequences 1 to 0 of 3") !=
        std::string::npos);
}
