// Programs in limited memory: the best of all programs and ratios that fit.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/hap/joint.hpp>
#include <galvatron/hap/memory.hpp>

#include "random_graph.hpp"

namespace {

using namespace galvatron;

// The least seconds of a program of these terms at ratios in steps of 1 / `steps` that fit.
double by_steps(const hap::Devices& devices, const hap::Terms& terms, int steps) {
  double out = std::numeric_limits<double>::infinity();
  hap::Ratios ratios(devices.count());
  const auto extend = [&](auto& self, std::size_t j, int left) -> void {
    if (j + 1 == ratios.size()) {
      ratios[j] = static_cast<double>(left) / steps;
      if (hap::fits(devices, terms, ratios)) out = std::min(out, hap::point_of(devices, ratios).seconds(terms));
      return;
    }
    for (int own = 0; own <= left; ++own) {
      ratios[j] = static_cast<double>(own) / steps;
      self(self, j + 1, left - own);
    }
  };
  extend(extend, 0, steps);
  return out;
}

}  // namespace

TEST_CASE("in limited memory no program at any ratios in steps is faster than the one found, which fits") {
  constexpr std::uint64_t seed = 20261126;
  MESSAGE("seed " << seed);
  test::Random random(seed);
  int fitted = 0;
  int limited = 0;
  int none = 0;
  for (int turn = 0; turn < 200; ++turn) {
    CAPTURE(turn);
    const hap::Graph graph = test::random_graph(random, test::draw(random, 2, 5));
    hap::Devices devices = test::random_devices(random, 3);
    const hap::Prices prices(graph, devices, hap::Dialect::paper);
    const hap::Instance instance(prices);
    const auto free = hap::best_program_and_ratios(instance);
    const hap::Terms terms = value_or_throw(hap::terms_of(prices, free->program));
    const double most = terms.whole_bytes + terms.sharded_bytes;
    for (std::size_t j = 0; j < devices.count(); ++j)
      devices.memory.push_back(most * test::draw_between(random, 0.3, 1.5));
    const auto found = hap::best_in_memory(instance);

    // All programs that are no worse than another in all of their terms.
    using Search = hap::DynamicProgram<6>;
    Search search(
        instance,
        [](const hap::Terms& t) {
          return Search::Price{t.sharded_flops, t.replicated_flops, t.ratio_seconds,
                               t.seconds,       t.whole_bytes,      t.sharded_bytes};
        },
        [](const Search::Price& price, std::size_t, double) { return price[0]; });
    search.run({}, [](const Search::Price&, std::size_t, double) { return false; });
    double stepped = std::numeric_limits<double>::infinity();
    for (const Search::Label& label : search.finals()) {
      const auto& p = label.price;
      stepped = std::min(stepped, by_steps(devices, {p[0], p[1], p[2], p[3], p[4], p[5]}, 60));
    }
    if (!found) {
      ++none;
      CHECK(stepped == std::numeric_limits<double>::infinity());
      continue;
    }
    const hap::Terms own = value_or_throw(hap::terms_of(prices, found->program));
    CHECK(hap::fits(devices, own, found->ratios));
    CHECK(hap::point_of(devices, found->ratios).seconds(own) == doctest::Approx(found->seconds).epsilon(1e-9));
    CHECK(found->seconds <= stepped * (1 + 1e-9));
    CHECK(found->bound >= found->seconds * (1 - 1e-9));
    CHECK(found->seconds >= free->seconds * (1 - 1e-12));
    ++(found->seconds > free->seconds * (1 + 1e-9) ? limited : fitted);
  }
  MESSAGE(fitted << " fit as they are, " << limited << " take longer in their memory, " << none << " do not fit");
  CHECK(limited > 20);
  CHECK(none > 5);
}
