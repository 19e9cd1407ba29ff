// Which rows travel where when tokens go to their experts: what all ranks think of it fits together.
#include <galvatron/runtime/expert_exchange.hpp>

#include <cstdint>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

using galvatron::runtime::ExpertExchange;

namespace {

struct RowsOfRanks {
  std::int64_t experts = 0;
  std::int64_t parts = 0;
  std::int64_t ranks = 0;
  std::vector<std::int32_t> offsets;  // (ranks, experts + 1)

  [[nodiscard]] std::int64_t offset(std::int64_t rank, std::int64_t expert) const {
    return offsets[static_cast<std::size_t>(rank * (experts + 1) + expert)];
  }
  // The expert of a row of a rank.
  [[nodiscard]] std::int64_t expert_of(std::int64_t rank, std::int64_t row) const {
    std::int64_t e = 0;
    while (offset(rank, e + 1) <= row) ++e;
    return e;
  }
};

RowsOfRanks random_rows(std::mt19937& random) {
  const auto up_to = [&random](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  RowsOfRanks out;
  const std::int64_t runs = up_to(4);
  out.parts = up_to(3);
  out.ranks = runs * out.parts;
  out.experts = runs * up_to(3);
  for (std::int64_t rank = 0; rank < out.ranks; ++rank) {
    std::int32_t end = 0;
    out.offsets.push_back(0);
    for (std::int64_t e = 0; e < out.experts; ++e) {
      end += random() % 3 == 0 ? 0 : static_cast<std::int32_t>(random() % 7);
      out.offsets.push_back(end);
    }
  }
  return out;
}

}  // namespace

TEST_CASE("every row goes to all parts of its expert once, where the expert has it, and comes back from there") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int n = 0; n < 300; ++n) {
    const RowsOfRanks rows = random_rows(random);
    const std::int64_t capacity = 1 + static_cast<std::int64_t>(random() % 30);
    CAPTURE(n);
    const std::int64_t local = rows.experts * rows.parts / rows.ranks;
    std::vector<ExpertExchange> ranks;
    for (std::int64_t rank = 0; rank < rows.ranks; ++rank)
      ranks.emplace_back(rows.offsets, rows.experts, rows.parts, capacity, rank);
    const int rounds = ranks.front().rounds();
    std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, int> sent;  // (rank, row, part): how often
    for (int round = 0; round < rounds; ++round) {
      // What a rank sends another one, in order, and what that one takes from it.
      std::map<std::pair<std::int64_t, std::int64_t>, std::vector<std::int64_t>> posted, taken, row_sent, place_taken;
      for (std::int64_t rank = 0; rank < rows.ranks; ++rank) {
        const ExpertExchange& here = ranks[static_cast<std::size_t>(rank)];
        REQUIRE(here.rounds() == rounds);
        REQUIRE(here.rows(round) <= capacity);
        here.for_each_sent(round, [&](std::int64_t peer, std::int64_t part, std::int64_t first, std::int64_t count) {
          posted[{rank, peer}].push_back(count);
          REQUIRE(peer % rows.parts == part);
          for (std::int64_t i = 0; i < count; ++i) {
            ++sent[{rank, first + i, part}];
            row_sent[{rank, peer}].push_back(first + i);
            REQUIRE(rows.expert_of(rank, first + i) / local == peer / rows.parts);
          }
        });
        std::vector<int> filled(static_cast<std::size_t>(here.rows(round)));
        here.for_each_received(round, [&](std::int64_t peer, std::int64_t place, std::int64_t count) {
          taken[{peer, rank}].push_back(count);
          for (std::int64_t i = 0; i < count; ++i) {
            ++filled.at(static_cast<std::size_t>(place + i));
            place_taken[{peer, rank}].push_back(place + i);
          }
        });
        for (const int times : filled) REQUIRE(times == 1);  // no gaps, nothing twice
      }
      REQUIRE(posted == taken);
      // A row lies among those of its expert.
      for (const auto& [pair, all] : row_sent) {
        const auto& [rank, peer] = pair;
        const std::vector<std::int32_t> offsets = ranks[static_cast<std::size_t>(peer)].own_offsets(round);
        REQUIRE(static_cast<std::int64_t>(offsets.size()) == local + 1);
        REQUIRE(offsets.back() == ranks[static_cast<std::size_t>(peer)].rows(round));
        const std::vector<std::int64_t>& places = place_taken.at(pair);
        REQUIRE(places.size() == all.size());
        for (std::size_t i = 0; i < all.size(); ++i) {
          const auto expert = static_cast<std::size_t>(rows.expert_of(rank, all[i]) % local);
          REQUIRE(offsets[expert] <= places[i]);
          REQUIRE(places[i] < offsets[expert + 1]);
        }
      }
    }
    std::size_t all = 0;
    for (std::int64_t rank = 0; rank < rows.ranks; ++rank)
      all += static_cast<std::size_t>(rows.offset(rank, rows.experts) * rows.parts);
    CHECK(sent.size() == all);
    for (const auto& [key, times] : sent) REQUIRE(times == 1);
  }
}

TEST_CASE("without rows there is one round, in which experts have none") {
  const ExpertExchange none(std::vector<std::int32_t>(2 * 5, 0), 4, 1, 8, 1);
  CHECK(none.rounds() == 1);
  CHECK(none.rows(0) == 0);
  CHECK(none.own_offsets(0) == std::vector<std::int32_t>{0, 0, 0});
}
