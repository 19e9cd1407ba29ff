#include <galvatron/search/layout_relaxation.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <random>
#include <vector>

#include <galvatron/search/relaxation.hpp>

#include "random_problem.hpp"

using namespace galvatron::search;

namespace {

constexpr double rounding = 1 + 1e-9;

Problem one_stage(unsigned seed) {
  std::mt19937 random(seed);
  return testing::random_problem(random, {.most_stages = 1, .most_layers = 5, .most_choices = 4});
}

StageRole role_of(const Problem& p, int tag) {
  StageRole role;
  role.shortest = role.longest = p.count();
  role.tag = tag;
  return role;
}

// What the layers from one on take in an assignment, and keep.
struct Tail {
  double seconds = 0;
  double bytes = 0;
};

// The tail that begins with `begin`. @param change  with the change of layout before it
Tail tail_of(const Problem& p, const Assignment& plan, int begin, bool change) {
  Tail out;
  for (int layer = begin; layer < p.count(); ++layer) {
    const galvatron::search::Choice& c = p.choice(layer, plan.choice[static_cast<std::size_t>(layer)]);
    out.seconds += p.objective.terms_of(c).time;
    out.bytes += static_cast<double>(p.slots_of(0, 0).kept(c));
    if (layer == 0 || (layer == begin && !change)) continue;
    const galvatron::search::Choice& before = p.choice(layer - 1, plan.choice[static_cast<std::size_t>(layer) - 1]);
    if (before.layout == c.layout) continue;
    out.seconds += p.relayout_seconds(layer, before.layout, c.layout);
    out.bytes += static_cast<double>(p.slots_of(0, 0).flight * c.pass_through);
  }
  return out;
}

}  // namespace

TEST_CASE("the layout relaxation bounds every assignment, and what is left of it after every layer") {
  int assignments = 0;
  int exact = 0;
  int tighter = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Problem p = one_stage(seed);
    INFO("seed " << seed);
    for (int tag = p.tied ? 0 : -1; tag < (p.tied ? 4 : 0); ++tag) {
      LayoutRelaxation layouts(p, role_of(p, tag), 0);
      layouts.bound_layers();
      tighter += layouts.seconds() < infinite &&
                 p.objective({layouts.seconds(), layouts.seconds()}) > LayerSums(p).seconds(p) * rounding;
      testing::for_every_assignment(p, [&](const Assignment& plan) {
        if (tag >= 0 && p.choice(0, plan.choice.front()).tag != tag) return;
        if (evaluate(p, plan).peak > p.budget) return;
        ++assignments;
        const Tail all = tail_of(p, plan, 0, false);
        REQUIRE(layouts.seconds() <= all.seconds * rounding + 1e-9);
        exact += layouts.seconds() * rounding >= all.seconds;
        for (int layer = 0; layer < p.count(); ++layer) {
          const auto layout_of = [&](int i) { return p.choice(i, plan.choice[static_cast<std::size_t>(i)]).layout; };
          std::size_t at = 0;
          const Tail own = tail_of(p, plan, layer, false);
          REQUIRE(layouts.within(layer, layout_of(layer)).seconds(own.bytes, at) <= own.seconds * rounding + 1e-9);
          if (layer == 0) continue;
          const Tail moved = tail_of(p, plan, layer, true);
          REQUIRE(layouts.after(layer, layout_of(layer - 1)).seconds(moved.bytes, at) <=
                  moved.seconds * rounding + 1e-9);
        }
      });
    }
  }
  MESSAGE(assignments << " assignments, the bound is exact for " << exact << " and tighter than without them for "
                      << tighter << " problems");
  CHECK(assignments > 10000);
  CHECK(exact > 50);
  CHECK(tighter > 50);
}

TEST_CASE("rounded assignments fit, and are often the fastest") {
  int feasible = 0;
  int found = 0;
  int fastest = 0;
  for (unsigned seed = 0; seed < 2000; ++seed) {
    const Problem p = one_stage(seed);
    if (p.tied) continue;
    INFO("seed " << seed);
    const testing::BruteForce truth = testing::brute_force(p);
    const auto rounded = LayoutRelaxation(p, role_of(p, -1), 0).rounded();
    feasible += truth.peak <= p.budget;
    if (!rounded) continue;
    ++found;
    REQUIRE(rounded->cost.peak <= p.budget);
    REQUIRE(rounded->cost.seconds == evaluate(p, rounded->plan).seconds);
    REQUIRE(rounded->cost.seconds * rounding >= truth.seconds);
    fastest += rounded->cost.seconds <= truth.seconds * rounding;
  }
  MESSAGE(feasible << " problems, solved " << found << ", " << fastest << " of them by the fastest assignment");
  CHECK(found <= feasible);
  CHECK(found > feasible * 3 / 4);
  CHECK(fastest > found / 2);
}
