// Which rows travel where when tokens go to their experts: what all ranks think of it fits together.
#include <galvatron/runtime/expert_exchange.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

using galvatron::runtime::ExchangeNodes;
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

// Choices of experts of the tokens of all ranks, equally many on each.
struct Routing {
  std::int64_t experts = 0, parts = 0, nodes = 0, ranks = 0, tokens = 0, active = 0;
  std::vector<std::int64_t> chosen;  // (ranks, tokens, active); -1: dropped

  [[nodiscard]] std::int64_t choice(std::int64_t rank, std::int64_t token, std::int64_t j) const {
    return chosen[static_cast<std::size_t>((rank * tokens + token) * active + j)];
  }
  [[nodiscard]] std::int64_t node_ranks() const { return ranks / nodes; }
  [[nodiscard]] std::int64_t node_of_expert(std::int64_t e) const { return e / (experts / nodes); }
  // The tokens of a rank with experts in a node.
  [[nodiscard]] std::vector<std::int64_t> tokens_for(std::int64_t rank, std::int64_t node) const {
    std::vector<std::int64_t> out;
    for (std::int64_t token = 0; token < tokens; ++token)
      for (std::int64_t j = 0; j < active; ++j)
        if (choice(rank, token, j) >= 0 && node_of_expert(choice(rank, token, j)) == node) {
          out.push_back(token);
          break;
        }
    return out;
  }
  [[nodiscard]] std::vector<std::int32_t> offsets(bool with_nodes) const {
    std::vector<std::int32_t> out;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      std::int32_t end = 0;
      out.push_back(0);
      for (std::int64_t e = 0; e < experts; ++e) {
        const auto first = chosen.begin() + rank * tokens * active;
        out.push_back(end += static_cast<std::int32_t>(std::count(first, first + tokens * active, e)));
      }
      if (!with_nodes) continue;
      out.push_back(end = 0);
      for (std::int64_t node = 0; node < nodes; ++node)
        out.push_back(end += static_cast<std::int32_t>(tokens_for(rank, node).size()));
    }
    return out;
  }
};

// A row of an expert: whose choice it is.
using Choice = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // (rank, token, j)

// Choices in the order of experts, then as they came.
std::vector<Choice> by_experts(const Routing& routing, const std::vector<std::pair<std::int64_t, std::int64_t>>& tokens,
                               std::int64_t first, std::int64_t experts) {
  std::vector<Choice> out;
  for (std::int64_t e = first; e < first + experts; ++e)
    for (const auto& [rank, token] : tokens)
      for (std::int64_t j = 0; j < routing.active; ++j)
        if (routing.choice(rank, token, j) == e) out.emplace_back(rank, token, j);
  return out;
}

// The choices that each rank's experts get, in order, when ranks do what their exchanges say.
std::vector<std::vector<Choice>> delivered(const Routing& routing, const std::vector<ExpertExchange>& exchanges) {
  std::vector<std::vector<Choice>> out;
  std::vector<std::vector<Choice>> sent;  // of each rank, in the order in which it sends them
  for (std::int64_t rank = 0; rank < routing.ranks; ++rank) {
    const ExpertExchange& here = exchanges[static_cast<std::size_t>(rank)];
    std::vector<std::pair<std::int64_t, std::int64_t>> tokens;
    if (here.by_nodes()) {
      std::int64_t end = 0;
      here.for_each_relayed([&](std::int64_t source, std::int64_t first, std::int64_t count) {
        REQUIRE(first == end);
        end += count;
        const std::vector<std::int64_t> its = routing.tokens_for(source, rank / routing.node_ranks());
        REQUIRE(static_cast<std::int64_t>(its.size()) == count);
        for (const std::int64_t token : its) tokens.emplace_back(source, token);
      });
      REQUIRE(end == here.relayed_tokens());
      sent.push_back(by_experts(routing, tokens, here.first_expert(), here.node_experts()));
    } else {
      for (std::int64_t token = 0; token < routing.tokens; ++token) tokens.emplace_back(rank, token);
      sent.push_back(by_experts(routing, tokens, 0, routing.experts));
    }
    REQUIRE(static_cast<std::int64_t>(sent.back().size()) == here.sent_rows());
  }
  for (std::int64_t rank = 0; rank < routing.ranks; ++rank) {
    const ExpertExchange& here = exchanges[static_cast<std::size_t>(rank)];
    out.emplace_back(static_cast<std::size_t>(here.rows(0)));
    std::map<std::int64_t, std::vector<Choice>> arriving;  // by sender, in order
    std::map<std::int64_t, std::vector<std::int64_t>> blocks;
    for (std::int64_t peer = 0; peer < routing.ranks; ++peer)
      exchanges[static_cast<std::size_t>(peer)].for_each_sent(
          0, [&](std::int64_t to, std::int64_t part, std::int64_t first, std::int64_t count) {
            if (to != rank) return;
            REQUIRE(part == rank % routing.parts);
            blocks[peer].push_back(count);
            for (std::int64_t i = 0; i < count; ++i)
              arriving[peer].push_back(sent[static_cast<std::size_t>(peer)][static_cast<std::size_t>(first + i)]);
          });
    std::map<std::int64_t, std::size_t> taken;
    std::map<std::int64_t, std::vector<std::int64_t>> expected;
    here.for_each_received(0, [&](std::int64_t peer, std::int64_t place, std::int64_t count) {
      expected[peer].push_back(count);
      for (std::int64_t i = 0; i < count; ++i)
        out.back()[static_cast<std::size_t>(place + i)] = arriving[peer].at(taken[peer]++);
    });
    REQUIRE(blocks == expected);
  }
  return out;
}

std::vector<ExpertExchange> exchanges_of(const Routing& routing, const ExchangeNodes& nodes,
                                         std::int64_t capacity = 1 << 20) {
  std::vector<ExpertExchange> out;
  for (std::int64_t rank = 0; rank < routing.ranks; ++rank)
    out.emplace_back(routing.offsets(nodes.count > 1), routing.experts, routing.parts, capacity, rank, nodes);
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

TEST_CASE("by nodes, experts get the same rows in the same order, and a token crosses to a node once") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  const auto up_to = [&random](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most));
  };
  int fallbacks = 0;
  for (int n = 0; n < 300; ++n) {
    CAPTURE(n);
    Routing routing;
    routing.nodes = 1 + up_to(3);
    routing.parts = up_to(2);
    const std::int64_t runs = routing.nodes * up_to(3);
    routing.ranks = runs * routing.parts;
    routing.experts = runs * up_to(3);
    routing.tokens = up_to(9);
    routing.active = up_to(std::min<std::int64_t>(4, routing.experts));
    std::vector<std::int64_t> experts(static_cast<std::size_t>(routing.experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (std::int64_t i = 0; i < routing.ranks * routing.tokens; ++i) {
      std::ranges::shuffle(experts, random);
      for (std::int64_t j = 0; j < routing.active; ++j)
        routing.chosen.push_back(random() % 9 == 0 ? -1 : experts[static_cast<std::size_t>(j)]);
    }
    const auto direct = delivered(routing, exchanges_of(routing, {}));
    const ExchangeNodes room{routing.nodes, 1 << 20, 1 << 20};
    const std::vector<ExpertExchange> exchanges = exchanges_of(routing, room);
    REQUIRE(delivered(routing, exchanges) == direct);
    std::int64_t most_tokens = 0, most_rows = 0;
    for (std::int64_t rank = 0; rank < routing.ranks; ++rank) {
      const ExpertExchange& here = exchanges[static_cast<std::size_t>(rank)];
      REQUIRE(here.by_nodes());
      std::int64_t node = 0, end = 0;
      here.for_each_relay([&](std::int64_t relay, std::int64_t first, std::int64_t count) {
        REQUIRE(relay == node * routing.node_ranks() + rank % routing.node_ranks());
        REQUIRE(first == end);
        REQUIRE(count == static_cast<std::int64_t>(routing.tokens_for(rank, node).size()));
        end += count;
        ++node;
      });
      REQUIRE(end == here.sent_tokens());
      // Rows go to ranks of the own node.
      here.for_each_sent(0, [&](std::int64_t peer, std::int64_t, std::int64_t, std::int64_t) {
        REQUIRE(peer / routing.node_ranks() == rank / routing.node_ranks());
      });
      most_tokens = std::max({most_tokens, here.sent_tokens(), here.relayed_tokens()});
      most_rows = std::max(most_rows, here.sent_rows());
    }
    // What a relay has no room for goes directly, and so does what comes in rounds: all ranks agree.
    const auto goes_by_nodes = [&](const ExchangeNodes& nodes, std::int64_t capacity) {
      const std::vector<ExpertExchange> all = exchanges_of(routing, nodes, capacity);
      const auto by_nodes = std::ranges::count_if(all, &ExpertExchange::by_nodes);
      REQUIRE((by_nodes == 0 || by_nodes == routing.ranks));
      if (by_nodes == 0 && all.front().rounds() == 1) REQUIRE(delivered(routing, all) == direct);
      return by_nodes > 0;
    };
    CHECK(goes_by_nodes({routing.nodes, most_tokens, most_rows}, 1 << 20));
    if (most_rows == 0) continue;
    CHECK_FALSE(goes_by_nodes({routing.nodes, most_tokens - 1, most_rows}, 1 << 20));
    CHECK_FALSE(goes_by_nodes({routing.nodes, most_tokens, most_rows - 1}, 1 << 20));
    std::int64_t fullest = 0;
    for (const ExpertExchange& here : exchanges) fullest = std::max(fullest, here.rows(0));
    if (fullest > 1) CHECK_FALSE(goes_by_nodes(room, fullest - 1));
    ++fallbacks;
  }
  CHECK(fallbacks > 200);
}

TEST_CASE("a token with all its experts in one node crosses to it once") {
  // Two nodes of two ranks, two experts on each; all tokens of rank 0 go to experts 4 and 7, those of others to 0.
  Routing routing{.experts = 8, .parts = 1, .nodes = 2, .ranks = 4, .tokens = 3, .active = 2, .chosen = {}};
  for (std::int64_t rank = 0; rank < 4; ++rank)
    for (int token = 0; token < 3; ++token)
      for (const std::int64_t e : {rank == 0 ? 4 : 0, rank == 0 ? 7 : -1}) routing.chosen.push_back(e);
  // Tokens or rows that leave the node of rank 0 and 1.
  const auto leave = [&](const ExchangeNodes& nodes) {
    std::int64_t sum = 0;
    const std::vector<ExpertExchange> all = exchanges_of(routing, nodes);
    for (std::int64_t rank = 0; rank < 2; ++rank) {
      const ExpertExchange& here = all[static_cast<std::size_t>(rank)];
      const auto add = [&](std::int64_t peer, std::int64_t count) { sum += peer >= 2 ? count : 0; };
      here.for_each_sent(0, [&](std::int64_t peer, std::int64_t, std::int64_t, std::int64_t n) { add(peer, n); });
      if (here.by_nodes()) here.for_each_relay([&](std::int64_t peer, std::int64_t, std::int64_t n) { add(peer, n); });
    }
    return sum;
  };
  CHECK(leave({}) == 6);
  CHECK(leave({2, 100, 100}) == 3);
}
