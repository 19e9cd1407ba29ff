// Ranks of groups.
#include <galvatron/flexsp/placement.hpp>

#include <set>

#include "random_problem.hpp"

namespace galvatron::flexsp {
namespace {

TEST_CASE("groups lie apart, inside the devices, and over as few nodes as they can") {
  int placed = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const int node = static_cast<int>(drawn(random, 1, 8));
    const Problem problem{.devices = static_cast<int>(drawn(random, 1, 40)), .node_devices = node, .options = {}};
    std::vector<int> degrees;
    for (int free = problem.devices; free > 0;) {
      degrees.push_back(static_cast<int>(drawn(random, 1, free)));
      free -= degrees.back();
      if (drawn(random, 0, 5) == 0) break;
    }
    std::ranges::sort(degrees, std::ranges::greater());
    const auto first = place(problem, degrees);
    if (!first) continue;
    ++placed;
    std::set<int> ranks;
    for (std::size_t g = 0; g < degrees.size(); ++g) {
      const int begin = (*first)[g];
      const int end = begin + degrees[g];
      CHECK(begin >= 0);
      CHECK(end <= problem.devices);
      for (int rank = begin; rank < end; ++rank) CHECK(ranks.insert(rank).second);
      const int inside = std::min(node, problem.devices);
      CHECK((end - 1) / inside - begin / inside + 1 == std::max(1, (degrees[g] + inside - 1) / inside));
    }
  }
  CHECK(placed > 250);
}

TEST_CASE("powers of two always find room, at multiples of themselves") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const int devices = 1 << drawn(random, 0, 7);
    const Problem problem{.devices = devices, .node_devices = 8, .options = {}};
    std::vector<int> degrees;
    for (int free = devices; free > 0;) {
      int degree = 1 << drawn(random, 0, 7);
      while (degree > free) degree /= 2;
      degrees.push_back(degree);
      free -= degree;
    }
    std::ranges::sort(degrees, std::ranges::greater());
    const auto first = place(problem, degrees);
    REQUIRE(first.has_value());
    for (std::size_t g = 0; g < degrees.size(); ++g) CHECK((*first)[g] % degrees[g] == 0);
  }
}

}  // namespace
}  // namespace galvatron::flexsp
