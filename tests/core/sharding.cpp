// Extents cut over ranks evenly, by ratios, and with an alignment.
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/core/sharding.hpp>
#include <galvatron/core/units.hpp>

namespace {

using namespace galvatron;

constexpr unsigned sharding_seed = 20260612;

template <class Ratio, std::size_t N>
constexpr Sharding ratios(std::int64_t extent, const std::array<Ratio, N>& parts, std::int64_t alignment = 1) {
  return Sharding::by_ratios(extent, std::span<const Ratio>(parts), alignment);
}

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
static_assert(ratios(8, std::array{1, 3}).range(1) == Sharding::Range{2, 8});

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

TEST_CASE("shards follow their ratios, down to 0") {
  CHECK(counts(ratios(100, std::array{1, 3})) == std::vector<std::int64_t>{25, 75});
  CHECK(counts(ratios(100, std::array{1, 0, 3})) == std::vector<std::int64_t>{25, 0, 75});
  CHECK(counts(ratios(100, std::array{0, 1})) == std::vector<std::int64_t>{0, 100});
  CHECK(counts(ratios(100, std::array{0.5, 1.5})) == std::vector<std::int64_t>{25, 75});
  CHECK(counts(ratios(100, std::array{1, 3}, 16)) == std::vector<std::int64_t>{16, 84});
  CHECK(ratios(100, std::array{1, 3}, 16).largest() == 96);
  CHECK(counts(ratios(3, std::array{1, 1, 1, 1, 1})) == std::vector<std::int64_t>{0, 1, 0, 1, 1});
  // Products beyond 64 bits.
  constexpr std::int64_t large = std::int64_t{1} << 62;
  CHECK(counts(ratios(large, std::array{3, 1})) == std::vector<std::int64_t>{large / 4 * 3, large / 4});
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
    std::vector<std::int64_t> whole;
    std::vector<double> real;
    for (std::int64_t i = 0; i < ranks; ++i) {
      whole.push_back(number(0, 9));
      real.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    }
    whole[static_cast<std::size_t>(number(0, ranks - 1))] += 1;  // not all 0
    check_tiles(Sharding::by_ratios(extent, std::span<const std::int64_t>(whole), alignment), alignment);
    check_tiles(Sharding::by_ratios(extent, std::span<const double>(real), alignment), alignment);
    // Equal ratios are even shards where the extent allows them.
    const std::vector<int> equal(static_cast<std::size_t>(ranks), 2);
    CHECK(counts(Sharding::by_ratios(extent * ranks, std::span<const int>(equal))) ==
          counts(Sharding::even(extent * ranks, ranks)));
  }
}
