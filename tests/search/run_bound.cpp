// The bound of pipelines over groups of devices that takes no problem.
#include <galvatron/search/run_bound.hpp>

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
  for (unsigned seed = first; seed < first + 20000; ++seed) {
    std::mt19937 random(seed);
    Problem p = testing::random_problem(
        random, {.most_stages = 4, .most_layers = 6, .most_choices = 2, .further_terms = false});
    if (p.chunks > 1 || p.stages() < 2 || p.leading == 0 || p.trailing == 0) continue;
    p = testing::on_unequal_devices(std::move(p), random);
    p.budget = unlimited;
    std::vector<std::vector<Terms>> least;
    for (const Problem& own : p.on_devices) least.push_back(least_terms(own));
    std::vector<RunTerms> runs;
    for (int stage = 0; stage < p.stages(); ++stage) {
      if (stage > 0 && p.device_kind(stage) == p.device_kind(stage - 1))
        ++runs.back().stages;
      else
        runs.push_back({1, nth(least, p.device_kind(stage))});
    }
    if (runs.size() < 2) continue;
    CAPTURE(seed);
    const double bound = run_bound(p.objective, runs, p.layers);
    const testing::BruteForce truth = testing::brute_force(p);
    REQUIRE(bound <= truth.seconds * (1 + 1e-9));
    ++tried;
    near += bound > 0.8 * truth.seconds ? 1 : 0;
  }
  CHECK(tried > 1000);
  CHECK(near > tried / 100);
}
