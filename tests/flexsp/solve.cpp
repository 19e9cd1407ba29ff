// Plans against brute force, the bound, and what a plan promises.
#include <galvatron/flexsp/compiled.hpp>

#include <galvatron/flexsp/baselines.hpp>
#include <galvatron/flexsp/coefficients.hpp>
#include <galvatron/flexsp/lengths.hpp>

#include "random_problem.hpp"

namespace galvatron::flexsp {
namespace {

// The least seconds over all plans: documents into groups in every way, groups into micro-batches in every way.
class EveryPlan {
 public:
  /// @param most  micro-batches
  EveryPlan(const Problem& problem, std::vector<std::int64_t> lengths, std::size_t most)
      : problem_(problem), lengths_(std::move(lengths)), most_(most) {}
  double operator()() {
    group(0);
    return best_;
  }

 private:
  void group(std::size_t document) {
    if (document == lengths_.size()) return choose(0, {});
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      groups_[g].push_back(lengths_[document]);
      group(document + 1);
      groups_[g].pop_back();
    }
    groups_.push_back({lengths_[document]});
    group(document + 1);
    groups_.pop_back();
  }
  struct Part {
    int free;
    double seconds;
  };
  void choose(std::size_t g, const std::vector<Part>& parts) {
    double total = 0;
    for (const Part& part : parts) total += part.seconds;
    if (total >= best_) return;
    if (g == groups_.size()) {
      best_ = total;
      return;
    }
    std::int64_t tokens = 0;
    for (const std::int64_t length : groups_[g]) tokens += length;
    for (const GroupOption& option : problem_.options) {
      if (tokens > option.capacity) continue;
      const double seconds = std::max(problem_.floor, group_seconds(option, groups_[g]));
      for (std::size_t m = 0; m <= parts.size() && m < most_; ++m) {
        std::vector<Part> next = parts;
        if (m == parts.size()) next.push_back({problem_.devices, 0});
        if (next[m].free < option.degree) continue;
        next[m].free -= option.degree;
        next[m].seconds = std::max(next[m].seconds, seconds);
        choose(g + 1, next);
      }
    }
  }

  const Problem& problem_;
  std::vector<std::int64_t> lengths_;
  std::size_t most_;
  std::vector<std::vector<std::int64_t>> groups_;
  double best_ = 1e300;
};

TEST_CASE("plans of small batches are brute force's, or close, and bounds are below both") {
  int equal = 0;
  int all = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const int devices = static_cast<int>(drawn(random, 1, 5));
    std::vector<int> degrees;
    for (int d = 1; d <= devices; ++d)
      if (d == 1 || seed % 2 == 0 || (d & (d - 1)) == 0) degrees.push_back(d);
    const Problem problem = random_problem(random, devices, degrees);
    const auto lengths = random_lengths(random, static_cast<int>(drawn(random, 1, 6)), problem.options.back().capacity);
    const double best = EveryPlan(problem, lengths, lengths.size())();
    const auto quick = solve(problem, lengths);
    const auto thorough = solve(problem, lengths, Limits::thorough());
    REQUIRE(quick.has_value());
    REQUIRE(thorough.has_value());
    for (const BatchPlan& plan : {*quick, *thorough}) {
      check_plan(problem, lengths, plan);
      CHECK(plan.bound <= best * (1 + 1e-9));
      CHECK(plan.seconds >= best * (1 - 1e-9));
    }
    CHECK(thorough->seconds <= best * 1.1);
    equal += thorough->seconds <= best * (1 + 1e-9) ? 1 : 0;
    ++all;
  }
  CAPTURE(equal);
  CHECK(equal >= all * 9 / 10);
}

TEST_CASE("a micro-batch of few documents is solved to the optimum, and told when there is none") {
  int infeasible = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const int devices = static_cast<int>(drawn(random, 1, 8));
    std::vector<int> degrees;
    for (int d = 1; d <= devices; d *= 2) degrees.push_back(d);
    const Problem problem = random_problem(random, devices, degrees);
    const auto lengths = random_lengths(random, static_cast<int>(drawn(random, 1, 6)), problem.longest());
    const double best = EveryPlan(problem, lengths, 1)();
    const auto plan = solve(problem, lengths, Limits::thorough(), 1);
    if (best >= 1e300) {
      CHECK_FALSE(plan.has_value());
      ++infeasible;
      continue;
    }
    REQUIRE(plan.has_value());
    REQUIRE(plan->microbatches.size() == 1);
    check_plan(problem, lengths, *plan);
    CHECK(plan->seconds == doctest::Approx(best).epsilon(1e-9));
  }
  CHECK(infeasible > 5);
}

TEST_CASE("any degrees are no worse than powers of two, and no plan is worse than one degree for all") {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const Problem problem = random_problem(random, 12, {1, 2, 3, 4, 5, 6, 8, 12});
    const Problem powers = powers_of(problem);
    const auto lengths = random_lengths(random, 60, powers.longest());
    const auto any = solve(problem, lengths);
    const auto simple = solve(powers, lengths);
    REQUIRE(any.has_value());
    REQUIRE(simple.has_value());
    check_plan(problem, lengths, *any);
    check_plan(powers, lengths, *simple);
    CHECK(any->seconds <= simple->seconds);
    CHECK(any->bound <= simple->seconds);
  }
}

// A batch as in practice: 512 documents with a long tail, on 64 devices.
std::vector<std::int64_t> long_tailed(std::uint64_t seed, std::size_t count) {
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> out;
  while (out.size() < count) {
    const std::int64_t tokens = (TailedLengths{.tail = 0.016, .exponent = 1.77}.draw(random) + 127) / 128 * 128;
    if (tokens <= 192'000 - 128) out.push_back(tokens);
  }
  return out;
}

TEST_CASE("batches of 512 documents on 64 devices: near the bound, below one degree for all, the same each time") {
  const Problem problem = problem_of(*released_coefficients("gpt-7b", 64, 192'000));
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    const auto lengths = long_tailed(seed, 512);
    const auto plan = solve(problem, lengths);
    const auto again = solve(problem, lengths);
    REQUIRE(plan.has_value());
    REQUIRE(again.has_value());
    check_plan(problem, lengths, *plan);
    CHECK(plan->seconds <= 1.1 * plan->bound);
    CHECK(plan->seconds == again->seconds);
    CHECK(plan->bound == again->bound);
    REQUIRE(plan->microbatches.size() == again->microbatches.size());
    for (std::size_t m = 0; m < plan->microbatches.size(); ++m) {
      REQUIRE(plan->microbatches[m].groups.size() == again->microbatches[m].groups.size());
      for (std::size_t g = 0; g < plan->microbatches[m].groups.size(); ++g)
        CHECK(plan->microbatches[m].groups[g].lengths == again->microbatches[m].groups[g].lengths);
    }
    const auto adaptive = adaptive_plan(problem, lengths);
    REQUIRE(adaptive.has_value());
    CHECK(plan->seconds < adaptive->seconds);
    CHECK(plan->bound <= adaptive->seconds);
  }
}

TEST_CASE("work is bounded by counts: little work still gives a plan") {
  const Problem problem = problem_of(*released_coefficients("gpt-7b", 64, 192'000));
  const auto lengths = long_tailed(7, 300);
  Limits limits = Limits::quick();
  limits.work = 1;
  const auto plan = solve(problem, lengths, limits);
  REQUIRE(plan.has_value());
  check_plan(problem, lengths, *plan);
}

TEST_CASE("nothing fits, nothing is asked") {
  const Problem problem = problem_of(*released_coefficients("gpt-7b", 8, 192'000));
  CHECK_FALSE(solve(problem, std::vector<std::int64_t>{}).has_value());
  CHECK_FALSE(solve(problem, std::vector<std::int64_t>{100, problem.longest() + 1}).has_value());
  // Memory for one document at a time.
  const auto plan = solve(problem, std::vector<std::int64_t>(3, problem.longest()));
  REQUIRE(plan.has_value());
  CHECK(plan->microbatches.size() == 3);
}

}  // namespace
}  // namespace galvatron::flexsp
