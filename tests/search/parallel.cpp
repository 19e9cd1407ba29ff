// labels: tsan
#include <galvatron/search/parallel.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include <galvatron/search/solver.hpp>

#include "random_problem.hpp"

using namespace galvatron::search;
using galvatron::Team;

TEST_CASE("a team does every piece once, pieces of pieces too") {
  for (const int threads : {1, 2, 5}) {
    Team team(threads);
    CHECK(team.alone() == (threads == 1));
    for (int round = 0; round < 50; ++round) {
      std::vector<std::atomic<int>> done(12 * 30);
      team.each(12, [&](std::size_t i) { team.each(i % 3 == 0 ? 30 : 1, [&](std::size_t j) { ++done[i * 30 + j]; }); });
      for (std::size_t i = 0; i < 12; ++i)
        for (std::size_t j = 0; j < 30; ++j) REQUIRE(done[i * 30 + j] == (i % 3 == 0 || j == 0 ? 1 : 0));
    }
  }
}

TEST_CASE("what a piece throws reaches the caller, and the team works on") {
  Team team(3);
  for (int round = 0; round < 20; ++round) {
    CHECK_THROWS_WITH(team.each(40,
                                [](std::size_t i) {
                                  if (i == 7) throw std::runtime_error("piece 7");
                                }),
                      "piece 7");
    std::atomic<int> done{0};
    team.each(40, [&](std::size_t) { ++done; });
    CHECK(done == 40);
  }
}

namespace {

// An executor that is always idle, and turns the order of the pieces round.
struct Backwards {
  [[nodiscard]] bool has_idle() const { return true; }
  template <class F>
  void each(std::size_t count, const F& piece) {
    for (std::size_t i = count; i-- > 0;) piece(i);
  }
};

}  // namespace

TEST_CASE("the solver's answer does not depend on who helps, nor on the order of the pieces") {
  Team team(3);
  Backwards backwards;
  int shared = 0;
  int limited_pipelines = 0;
  std::size_t helped_with_pipelines = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Problem p = testing::random_problem(random);
    if (p.cuts.empty() && p.movable() > 0) {  // more layers make more labels
      const int more = 20 + static_cast<int>(random() % 20);
      p.layers.insert(p.layers.begin() + p.leading, static_cast<std::size_t>(more),
                      p.layers[static_cast<std::size_t>(p.leading)]);
      p.budget *= 4;
    }
    const std::string context = "seed " + std::to_string(seed);
    INFO(context);
    Limits limits{.labels = 24};
    if (seed % 3 == 0) limits.work = 1 << (6 + seed % 8);
    Solver alone(p, limits);
    Solver helped(p, limits, &team);
    const auto one = alone.fastest();
    const std::size_t before = team.joins();
    const auto many = helped.fastest();
    Solver turned(p, limits, &backwards);
    const auto other = turned.fastest();
    if (p.stages() > 1) helped_with_pipelines += team.joins() - before;
    REQUIRE(one.has_value() == many.has_value());
    REQUIRE(one.has_value() == other.has_value());
    CHECK(alone.work() == helped.work());
    CHECK(alone.work() == turned.work());
    CHECK(alone.proven() == helped.proven());
    CHECK(alone.proven() == turned.proven());
    CHECK(alone.open() == helped.open());
    limited_pipelines += p.stages() > 1 && seed % 3 == 0 && !alone.proven() ? 1 : 0;
    if (!one) continue;
    CHECK(one->plan.first == many->plan.first);
    CHECK(one->plan.choice == many->plan.choice);
    CHECK(one->plan.first == other->plan.first);
    CHECK(one->plan.choice == other->plan.choice);
    shared += alone.work() > 10000 ? 1 : 0;
  }
  CHECK(shared > 10);
  CHECK(limited_pipelines > 10);
  CHECK(helped_with_pipelines > 0);
}
