#include <galvatron/data/document_table.hpp>

#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace galvatron;
using train::DocumentTable;

TEST_CASE("a table gives back the places and lengths that were added") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937_64 random(seed);
  for (const std::int64_t count : {0, 1, 63, 64, 65, 128, 1000}) {
    CAPTURE(count);
    DocumentTable table;
    std::vector<DocumentTable::Entry> entries;
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      // Of all magnitudes, from 0 to 2^40.
      const auto begin = end + static_cast<std::int64_t>((random() & 0xFFFFFFFFFFU) >> random() % 41);
      const auto length = static_cast<std::int64_t>((random() & 0x7FFFFFFFU) >> random() % 32);
      entries.push_back({begin, length});
      table.add(entries.back());
      end = begin + length;
    }
    table.finish();
    REQUIRE(table.count() == count);
    for (std::int64_t i = 0; i < count; ++i) {
      const DocumentTable::Entry& expected = entries[static_cast<std::size_t>(i)];
      REQUIRE(table[i].begin == expected.begin);
      REQUIRE(table[i].length == expected.length);
    }
    std::size_t next = 0;
    table.for_each(0, count, [&](const DocumentTable::Entry& entry) {
      REQUIRE(entry.begin == entries[next].begin);
      REQUIRE(entry.length == entries[next].length);
      ++next;
    });
    CHECK(next == entries.size());
  }
}

TEST_CASE("documents of a table do not overlap") {
  DocumentTable table;
  table.add({5, 10});
  CHECK_THROWS_AS(table.add({14, 1}), Failure);
  CHECK_THROWS_AS(table.add({15, -1}), Failure);
  table.add({15, 0});
  CHECK(table.count() == 2);
}
