// Extents cut over ranks evenly and with an alignment.
#include <cstdint>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>

namespace {

using namespace galvatron;

constexpr unsigned sharding_seed = 20260612;

std::vector<std::int64_t> counts(const Sharding& sharding) {
  std::vector<std::int64_t> out;
  for (std::int64_t rank = 0; rank < sharding.ranks(); ++rank) out.push_back(sharding.count(rank));
  return out;
}

void check_tiles(const Sharding& sharding, std::int64_t alignment) {
  std::int64_t end = 0;
  for (std::int64_t rank = 0; rank < sharding.ranks(); ++rank) {
    const Sharding::Range range = sharding.range(rank);
    REQUIRE(range.begin == end);
    REQUIRE(range.end >= range.begin);
    REQUIRE(range.count() <= sharding.largest());
    REQUIRE((range.end % alignment == 0 || range.end == sharding.extent()));
    end = range.end;
  }
  REQUIRE(end == sharding.extent());
  REQUIRE(sharding.largest() % alignment == 0);
}

static_assert(Sharding::even(12, 4).range(2) == Sharding::Range{6, 9});

}  // namespace

TEST_CASE("even shards are equal, and the last ones shorter where they cannot be") {
  CHECK(counts(Sharding::even(12, 4)) == std::vector<std::int64_t>{3, 3, 3, 3});
  CHECK(counts(Sharding::even(10, 4)) == std::vector<std::int64_t>{3, 3, 3, 1});
  CHECK(counts(Sharding::even(2, 4)) == std::vector<std::int64_t>{1, 1, 0, 0});
  CHECK(counts(Sharding::even(0, 2)) == std::vector<std::int64_t>{0, 0});
  CHECK(Sharding::even(10, 4).largest() == 3);
}

TEST_CASE("an alignment pads the shards, and what is there stays the extent") {
  const Sharding vocabulary = Sharding::even(200, 3, 64);
  CHECK(vocabulary.largest() == 128);
  CHECK(counts(vocabulary) == std::vector<std::int64_t>{128, 72, 0});
  CHECK(Sharding::even(10, 4, 64).largest() == 64);
  CHECK(counts(Sharding::even(10, 4, 64)) == std::vector<std::int64_t>{10, 0, 0, 0});
}

TEST_CASE("shards of any sharding tile the extent") {
  CAPTURE(sharding_seed);
  std::mt19937_64 random(sharding_seed);
  const auto number = [&](std::int64_t from, std::int64_t to) {
    return std::uniform_int_distribution<std::int64_t>(from, to)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    const std::int64_t extent = number(0, 5000);
    const std::int64_t alignment = std::int64_t{1} << number(0, 7);
    const std::int64_t ranks = number(1, 20);
    check_tiles(Sharding::even(extent, ranks, alignment), alignment);
  }
}
