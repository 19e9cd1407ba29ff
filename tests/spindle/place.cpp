// Prices of placed plans, placements against all placements, and plans within a device's memory.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/spindle/place.hpp>

#include "random_problem.hpp"

namespace {

using namespace galvatron;

constexpr std::uint64_t place_seed = 20261128;

spindle::Terms random_terms(test::Random& random, const spindle::Problem& problem, int island) {
  spindle::Terms out;
  for (std::size_t m = 0; m < problem.count(); ++m)
    out.sizes.push_back({test::draw_between(random, 1e5, 1e8), test::draw_between(random, 1e5, 1e8),
                         test::draw_between(random, 1e5, 1e8), test::draw_between(random, 1e6, 1e9), -1});
  // Some MetaOps of equal length share parameters.
  for (std::size_t m = 1; m < problem.count(); ++m)
    if (problem.metaops[m].operators == problem.metaops[m - 1].operators) {
      const int group = out.sizes[m - 1].parameters < 0 ? static_cast<int>(m) : out.sizes[m - 1].parameters;
      out.sizes[m - 1].parameters = group;
      out.sizes[m] = out.sizes[m - 1];
    }
  out.island_devices = island;
  out.island_rate = 200e9;
  out.rate = 20e9;
  return out;
}

// Devices one after the other, in the order of the parts.
spindle::Placement sequential(const std::vector<spindle::Wave>& waves) {
  spindle::Placement out;
  for (const spindle::Wave& wave : waves) {
    int next = 0;
    out.emplace_back();
    for (const spindle::Part& part : wave.parts) {
      std::vector<int>& devices = out.back().emplace_back();
      for (int k = 0; k < part.devices; ++k) devices.push_back(next++);
    }
  }
  return out;
}

void check_placement(const spindle::Problem& problem, const std::vector<spindle::Wave>& waves,
                     const spindle::Placement& placement) {
  REQUIRE(placement.size() == waves.size());
  for (std::size_t w = 0; w < waves.size(); ++w) {
    REQUIRE(placement[w].size() == waves[w].parts.size());
    std::vector<char> used(static_cast<std::size_t>(problem.devices), 0);
    for (std::size_t p = 0; p < placement[w].size(); ++p) {
      CHECK(static_cast<int>(placement[w][p].size()) == waves[w].parts[p].devices);
      CHECK(std::ranges::is_sorted(placement[w][p]));
      for (const int device : placement[w][p]) {
        REQUIRE(device >= 0);
        REQUIRE(device < problem.devices);
        CHECK(used[static_cast<std::size_t>(device)] == 0);
        used[static_cast<std::size_t>(device)] = 1;
      }
    }
  }
}

// The least seconds of all placements.
class EveryPlacement {
 public:
  EveryPlacement(const spindle::Problem& problem, const spindle::Terms& terms, const std::vector<spindle::Wave>& waves)
      : waves_(waves), devices_(problem.devices), pricing_(problem, terms, waves) {}

  double operator()() {
    placement_.assign(waves_.size(), {});
    choose(0, 0, std::vector<int>(static_cast<std::size_t>(devices_), 0));
    return least_;
  }

 private:
  void choose(std::size_t wave, std::size_t part, std::vector<int> used) {
    if (wave == waves_.size()) {
      least_ = std::min(least_, pricing_(placement_).seconds);
      return;
    }
    if (part == waves_[wave].parts.size()) {
      choose(wave + 1, 0, std::vector<int>(used.size(), 0));
      return;
    }
    const int count = waves_[wave].parts[part].devices;
    for (int set = 0; set < 1 << devices_; ++set) {
      std::vector<int> devices;
      for (int d = 0; d < devices_; ++d)
        if ((set >> d & 1) != 0 && used[static_cast<std::size_t>(d)] == 0) devices.push_back(d);
      if (static_cast<int>(devices.size()) != count || __builtin_popcount(static_cast<unsigned>(set)) != count)
        continue;
      std::vector<int> next = used;
      for (const int d : devices) next[static_cast<std::size_t>(d)] = 1;
      placement_[wave].push_back(std::move(devices));
      choose(wave, part + 1, std::move(next));
      placement_[wave].pop_back();
    }
  }

  const std::vector<spindle::Wave>& waves_;
  int devices_;
  spindle::Pricing pricing_;
  spindle::Placement placement_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

TEST_CASE("a placed plan costs what its messages and memory are") {
  // a on devices 0 and 1, then on all four, then b on device 3. Islands of two.
  const spindle::Curve curve = spindle::linear_curve(4, 0, 1, 4);
  const spindle::Problem problem{4, {{"a", 3, curve, {}, 0}, {"b", 2, curve, {0}, 1}}};
  std::vector<spindle::Wave> waves = {{{{0, 2, 2}}, 4}, {{{0, 4, 1}}, 1}, {{{1, 1, 2}}, 8}};
  spindle::Terms terms;
  terms.sizes = {{8, 4, 12, 100, 7}, {0, 2, 16, 1000, -1}};
  terms.island_devices = 2;
  terms.island_rate = 4;
  terms.rate = 2;
  terms.wave_overhead = 0.5;
  const spindle::Placement placement = {{{0, 1}}, {{0, 1, 2, 3}}, {{3}}};
  spindle::Pricing pricing(problem, terms, waves);
  const spindle::Price price = pricing(placement);
  CHECK(price.wave_seconds == doctest::Approx(13 + 3 * 0.5));
  // Wave 1: device 0 has samples 0-3 of 8 bytes and keeps 0-1; device 1 gets 2-3 from 0 (near) and sends 4-7 to 2 and 3
  // (far). Wave 2: device 3 gets 6 bytes, 2 of them from 2 (near), 4 from 0 and 1 (far).
  const double first = 2 * (2.0 / 4 + 4.0 / 2);
  const double second = 2 * (2.0 / 4 + 4.0 / 2);
  CHECK(price.transfer_seconds == doctest::Approx(first + second));
  // Operators 0 and 1 of a over {0, 1}, operator 2 over two islands of two; b on one device alone.
  CHECK(price.reduce_seconds == doctest::Approx(3 * (2 * 0.5 * 12 / 4) + 2 * 0.5 * 6 / 2));
  CHECK(price.peak_bytes == doctest::Approx(100 + 2000 + 1 + 2 * 2));
  CHECK(price.seconds == doctest::Approx(price.wave_seconds + price.transfer_seconds + price.reduce_seconds));
}

TEST_CASE("placements are those of the least seconds of all, nearly always") {
  MESSAGE("seed " << place_seed);
  test::Random random(place_seed);
  int equal = 0;
  int compared = 0;
  double largest = 0;
  while (compared < 60) {
    const spindle::Problem problem = test::random_problem(random, 4, test::draw(random, 2, 4), 4, 2);
    const std::vector<spindle::Wave> waves = spindle::greedy_waves(problem, true);
    if (waves.size() > 3) continue;
    CAPTURE(compared);
    ++compared;
    const spindle::Terms terms = random_terms(random, problem, 2);
    const double least = EveryPlacement(problem, terms, waves)();
    const spindle::Placement placement = spindle::place(problem, terms, waves);
    check_placement(problem, waves, placement);
    const double found = spindle::Pricing(problem, terms, waves)(placement).seconds;
    CHECK(found >= least * (1 - 1e-12));
    if (found <= least * (1 + 1e-9)) ++equal;
    largest = std::max(largest, found / least - 1);
  }
  MESSAGE(equal << " of " << compared << " equal the best of all placements, the largest difference is "
                << 100 * largest << " %");
  CHECK(equal >= compared * 9 / 10);
}

TEST_CASE("placements of random plans are valid and better than one after the other") {
  constexpr std::uint64_t seed = place_seed + 1;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  double own = 0;
  double in_order = 0;
  for (int turn = 0; turn < 40; ++turn) {
    CAPTURE(turn);
    constexpr int devices[] = {3, 8, 16, 24, 32};
    const spindle::Problem problem =
        test::random_problem(random, devices[turn % 5], test::draw(random, 2, 12), 16, turn % 3 + 1);
    const spindle::Terms terms = random_terms(random, problem, 8);
    const spindle::Plan plan = spindle::best_plan(problem, {.steps = 1'000'000});
    const spindle::Placement placement = spindle::place(problem, terms, plan.waves, 200);
    check_placement(problem, plan.waves, placement);
    spindle::Pricing pricing(problem, terms, plan.waves);
    const spindle::Price price = pricing(placement);
    const spindle::Price greedy = pricing(spindle::place(problem, terms, plan.waves, 0));
    CHECK(price.seconds <= greedy.seconds);
    const spindle::Price other = pricing(sequential(plan.waves));
    CHECK(price.wave_seconds == doctest::Approx(plan.seconds));
    own += price.transfer_seconds + price.reduce_seconds;
    in_order += other.transfer_seconds + other.reduce_seconds;
  }
  MESSAGE("messages take " << in_order / own << " times as long with devices one after the other");
  CHECK(in_order > own);
}

TEST_CASE("terms change plans: fewer waves where each costs, no more memory than there is") {
  constexpr std::uint64_t seed = place_seed + 2;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  std::size_t waves_free = 0;
  std::size_t waves_costly = 0;
  int less = 0;
  for (int turn = 0; turn < 20; ++turn) {
    CAPTURE(turn);
    const spindle::Problem problem = test::random_problem(random, 16, test::draw(random, 4, 10), 12, turn % 2 + 1);
    spindle::Terms terms = random_terms(random, problem, 8);
    const spindle::Limits limits{.steps = 1'000'000};
    const auto plain = spindle::best_plan(problem, limits);
    const auto placed = spindle::best_placed_plan(problem, terms, limits);
    REQUIRE(placed);
    check_placement(problem, placed->plan.waves, placed->placement);
    CHECK(spindle::wrong_with(problem, placed->plan.waves) == "");
    CHECK(placed->price.seconds >= placed->plan.bound);
    // The plan without terms is one of those that are placed.
    const auto other = spindle::Pricing(problem, terms, plain.waves)(spindle::place(problem, terms, plain.waves));
    CHECK(placed->price.seconds <= other.seconds * (1 + 1e-12));
    if (placed->price.seconds < other.seconds * (1 - 1e-6)) ++less;
    terms.wave_overhead = plain.seconds / 10;
    const auto costly = spindle::best_placed_plan(problem, terms, limits);
    REQUIRE(costly);
    waves_free += plain.waves.size();
    waves_costly += costly->plan.waves.size();
    terms.memory = placed->price.peak_bytes;
    const auto fits = spindle::best_placed_plan(problem, terms, limits);
    if (fits) CHECK(fits->price.peak_bytes <= terms.memory);
    terms.memory = 1e6;
    const auto none = spindle::best_placed_plan(problem, terms, limits);
    REQUIRE_FALSE(none);
    CHECK(none.error().kind == ErrorKind::infeasible);
    CHECK(none.error().message.find('\n') == std::string::npos);
  }
  MESSAGE("with terms in the search " << less << " of 20 plans are faster; " << waves_free << " waves, " << waves_costly
                                      << " where each costs a tenth of the step");
  CHECK(less > 0);
  CHECK(waves_costly < waves_free);
}
