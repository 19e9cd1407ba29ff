// What a step of packed documents looks like: that of the packing that trains, priced as the planner prices it.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/zoo.hpp>
#include <galvatron/plan/compiled.hpp>
#include <galvatron/plan/find_packed.hpp>
#include <galvatron/train/packed_step.hpp>

#include "../says.hpp"

using namespace galvatron;
using train::PackedGroup;
using train::PackedMicroBatch;
using train::PackedStep;

namespace {

std::vector<std::int64_t> documents_of_step(std::mt19937& random, std::size_t count, std::int64_t most) {
  std::vector<std::int64_t> out(count);
  for (std::int64_t& rows : out) rows = 1 + static_cast<std::int64_t>(random()) % (random() % 16 == 0 ? most : 900);
  out.front() = most;
  return out;
}

FoundPlan plan_for(const ModelSpec& model, const Cluster& cluster, const std::vector<std::int64_t>& rows, bool groups) {
  const std::vector<std::vector<std::int64_t>> steps{rows};
  const DocumentsToPlan all{
      .batch = std::ssize(rows), .steps = steps, .longest = std::ranges::max(rows), .max_tokens = 0};
  return value_or_throw(groups ? find_group_plan(model, cluster, {}, all) : find_packed_plan(model, cluster, {}, all));
}

/// Every document is there once, groups have ranks of their own and hold what they have.
void check_step(const PackedStep& step, const Plan& plan, const std::vector<std::int64_t>& rows) {
  CHECK(step.documents() == std::ssize(rows));
  CHECK(step.tokens() == std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  CHECK(step.ranks == plan.embedding.ranks());
  double busy = 0;
  double seconds = 0;
  for (const PackedMicroBatch& one : step.microbatches) {
    int next = 0;
    double slowest = 0;
    for (const PackedGroup& group : one.groups) {
      CHECK(group.first_rank >= next);
      next = group.first_rank + group.ranks;
      CHECK(static_cast<double>(group.tokens + group.padding) <= step.capacity * group.ranks);
      CHECK(group.documents > 0);
      CHECK(group.seconds.value > 0);
      slowest = std::max(slowest, group.seconds.value);
      busy += group.ranks * group.seconds.value;
    }
    CHECK(next <= step.ranks);
    CHECK(one.seconds.value >= slowest);
    CHECK(step.idle(one) >= 0);
    CHECK(step.idle(one) < 1);
    seconds += one.seconds.value;
  }
  CHECK(step.idle() == doctest::Approx(1 - busy / (step.ranks * seconds)));
}

}  // namespace

TEST_CASE("a step of groups of every batch is the solver's plan, with its ranks and seconds") {
  std::mt19937 random(5);
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const Cluster cluster = value_or_throw(find_cluster("16xa100-80g"));
  const auto rows = documents_of_step(random, 96, 30'000);
  const FoundPlan found = plan_for(model, cluster, rows, true);
  REQUIRE(found.feasible);
  const PackedStep step = value_or_throw(train::packed_step(found.plan, model, cluster, rows));
  check_step(step, found.plan, rows);
  const auto problem = value_or_throw(group_problem(found.plan, model, cluster));
  const auto solved = flexsp::solve(problem, rows);
  REQUIRE(solved.has_value());
  CHECK(step.passes().value == doctest::Approx(solved->seconds));
  CHECK(step.seconds().value == doctest::Approx(found.plan.predicted.iteration.value));
  REQUIRE(step.microbatches.size() == solved->microbatches.size());
  for (std::size_t m = 0; m < step.microbatches.size(); ++m)
    CHECK(step.microbatches[m].groups.size() == solved->microbatches[m].groups.size());

  const auto too_long = train::packed_step(found.plan, model, cluster, std::vector<std::int64_t>{10, 1 << 30});
  REQUIRE(!too_long);
  CHECK(says(too_long.error().message, "groups of this plan hold at most"));
}

TEST_CASE("a step of a plan whose groups stay is that of pack(), and documents that fill it take what a plan says") {
  std::mt19937 random(6);
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const Cluster cluster = value_or_throw(find_cluster("16xa100-80g"));
  const auto rows = documents_of_step(random, 96, 20'000);
  const FoundPlan found = plan_for(model, cluster, rows, false);
  REQUIRE(found.feasible);
  check_step(value_or_throw(train::packed_step(found.plan, model, cluster, rows)), found.plan, rows);

  Plan equal = found.plan;
  equal.packed = false;
  equal.sequence_length = found.plan.sequence_length;
  equal.microbatches = 3;
  equal.global_batch = equal.microbatches * found.plan.embedding.data;
  const std::vector<std::int64_t> full(static_cast<std::size_t>(equal.global_batch), equal.sequence_length);
  ModelSpec long_model = model;
  for (LayerSpec* end : {&long_model.embedding, &long_model.head}) end->positions = equal.sequence_length;
  for (LayerSpec& block : long_model.blocks) block.positions = equal.sequence_length;
  const PackedStep step = value_or_throw(train::packed_step(found.plan, long_model, cluster, full));
  CHECK(step.microbatches.size() == 3);
  CHECK(step.padding() == 0);
  CHECK(step.idle() < 1e-9);
  CHECK(step.seconds().value ==
        doctest::Approx(value_or_throw(cost_of(equal, long_model, cluster)).iteration.value).epsilon(0.02));
}

TEST_CASE("a step is told in 80 columns, with what is idle and what is padding") {
  std::mt19937 random(7);
  const ModelSpec model = value_or_throw(find_model("llama2-7b"));
  const Cluster cluster = value_or_throw(find_cluster("64xa100-80g"));
  for (const bool groups : {false, true}) {
    const auto rows = documents_of_step(random, 512, 60'000);
    const FoundPlan found = plan_for(model, cluster, rows, groups);
    REQUIRE(found.feasible);
    const PackedStep step = value_or_throw(train::packed_step(found.plan, model, cluster, rows));
    const std::string text = train::explain(step, "the first 512 of lengths.txt");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) CHECK_MESSAGE(line.size() <= explain_columns, line);
    CHECK(says(text, "512 documents"));
    CHECK(says(text, "micro-batch 0: "));
    CHECK(says(text, "idle "));
    CHECK(says(text, "padding "));
  }
}
