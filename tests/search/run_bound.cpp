// The bound of pipelines over groups of devices that takes no problem.
#include <galvatron/mixed/run_bound.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "random_problem.hpp"

using namespace galvatron::search;

namespace {

/// The least of every type on a kind of device.
std::vector<Terms> least_terms(const Problem& p) {
  std::vector<Terms> out;
  for (const LayerType& type : p.types) {
    out.push_back({infinite, infinite, infinite, 0, 0});
    for (const Choice& c : type) out.back() = min(out.back(), p.objective.terms_of(c));
  }
  return out;
}

}  // namespace

TEST_CASE("no assignment is faster than the bound of its runs, and some are as fast") {
  const unsigned first = std::random_device()() % 1'000'000;
  MESSAGE("first seed ", first);
  int tried = 0;
  int near = 0;
  int by_memory = 0;
  for (unsigned seed = first; seed < first + 20000; ++seed) {
    std::mt19937 random(seed);
    Problem p = testing::random_problem(
        random, {.most_stages = 4, .most_layers = 6, .most_choices = 2, .further_terms = false});
    if (p.chunks > 1 || p.stages() < 2 || p.leading == 0 || p.trailing == 0) continue;
    p = testing::on_unequal_devices(std::move(p), random);
    if (random() % 4 == 0) p.budget = unlimited / 2;
    std::vector<std::vector<Terms>> least;
    for (Problem& own : p.on_devices) {
      own.budget = p.budget;
      least.push_back(least_terms(own));
    }
    std::vector<RunTerms> runs;
    std::vector<int> kinds;
    std::vector<Slots> slots;
    for (int stage = 0; stage < p.stages(); ++stage) {
      const Slots own = p.slots_of(stage, 0);
      if (stage > 0 && p.device_kind(stage) == kinds.back()) {
        ++runs.back().stages;
        slots.back() = min(slots.back(), own);
      } else {
        kinds.push_back(p.device_kind(stage));
        runs.push_back({1, nth(least, kinds.back()), {}});
        slots.push_back(own);
      }
    }
    if (runs.size() < 2) continue;
    std::vector<std::vector<double>> blocks;
    for (std::size_t i = 0; i < runs.size(); ++i) {
      blocks.push_back(block_seconds(p.of_kind(kinds[i]), p.layers, slots[i]));
      runs[i].blocks = blocks.back();
    }
    CAPTURE(seed);
    const double bound = run_bound(p.objective, runs, p.layers);
    const testing::BruteForce truth = testing::brute_force(p);
    REQUIRE(bound <= truth.seconds * (1 + 1e-9));
    ++tried;
    by_memory += bound == infinite ? 1 : 0;
    near += bound > 0.8 * truth.seconds ? 1 : 0;
  }
  CHECK(tried > 1000);
  CHECK(near > tried / 100);
  CHECK(by_memory > tried / 100);
}
