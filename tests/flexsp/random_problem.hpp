// Random problems and batches, and what makes a plan valid.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/flexsp/placement.hpp>
#include <galvatron/flexsp/problem.hpp>

namespace galvatron::flexsp {

/// A number of [least, most].
inline std::int64_t drawn(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

/// Groups of these degrees with quadratic and linear seconds, messages that grow with the degree, and little memory.
inline Problem random_problem(std::mt19937_64& random, int devices, const std::vector<int>& degrees) {
  Problem out{.devices = devices, .node_devices = std::min(devices, 4), .options = {}};
  const double square = static_cast<double>(drawn(random, 0, 20)) * 1e-6;
  const double linear = static_cast<double>(drawn(random, 50, 200)) * 1e-4;
  const double message = static_cast<double>(drawn(random, 0, 30)) * 1e-4;
  const std::int64_t capacity = drawn(random, 600, 2000);
  const double fixed = static_cast<double>(drawn(random, 0, 100)) * 1e-1;
  for (const int d : degrees)
    out.options.push_back({.degree = d,
                           .sequence = d == 1 ? SequenceKind::none : SequenceKind::ulysses,
                           .capacity = capacity * d,
                           .fixed = fixed,
                           .seconds = [=](std::int64_t tokens) {
                             const auto s = static_cast<double>(tokens);
                             return (square * s * s + linear * s) / d + message * s * (d - 1) / d;
                           }});
  if (drawn(random, 0, 3) == 0) out.floor = fixed * 1.5;
  return out;
}

inline std::vector<std::int64_t> random_lengths(std::mt19937_64& random, int count, std::int64_t longest) {
  std::vector<std::int64_t> out;
  for (int i = 0; i < count; ++i) {
    const std::int64_t most = drawn(random, 0, 4) == 0 ? longest : std::max<std::int64_t>(1, longest / 8);
    out.push_back(drawn(random, 1, most));
  }
  return out;
}

/// Every document once, nothing beyond memory and devices, groups that can be placed, seconds that add up.
inline void check_plan(const Problem& problem, const std::vector<std::int64_t>& lengths, const BatchPlan& plan) {
  std::vector<std::int64_t> found;
  double total = 0;
  for (const MicroBatch& one : plan.microbatches) {
    std::vector<int> degrees;
    int devices = 0;
    double slowest = problem.floor;
    REQUIRE_FALSE(one.groups.empty());
    for (const Group& group : one.groups) {
      const GroupOption& option = problem.options.at(static_cast<std::size_t>(group.option));
      REQUIRE_FALSE(group.lengths.empty());
      std::int64_t tokens = 0;
      for (const std::int64_t length : group.lengths) tokens += length;
      CHECK(tokens <= option.capacity);
      CHECK(group.seconds == doctest::Approx(group_seconds(option, group.lengths)).epsilon(1e-12));
      slowest = std::max(slowest, group.seconds);
      devices += option.degree;
      degrees.push_back(option.degree);
      found.insert(found.end(), group.lengths.begin(), group.lengths.end());
    }
    CHECK(devices <= problem.devices);
    CHECK(std::ranges::is_sorted(degrees, std::ranges::greater()));
    CHECK(place(problem, degrees).has_value());
    CHECK(one.seconds == doctest::Approx(slowest).epsilon(1e-12));
    total += one.seconds;
  }
  CHECK(plan.seconds == doctest::Approx(total).epsilon(1e-12));
  CHECK(plan.bound <= plan.seconds * (1 + 1e-12));
  std::vector<std::int64_t> wanted = lengths;
  std::ranges::sort(wanted);
  std::ranges::sort(found);
  CHECK(found == wanted);
}

}  // namespace galvatron::flexsp
