// labels: ranks
// Multi-task models in waves on several ranks: the losses and gradients of one rank, whatever the plan is.
// GALVATRON_TASK_PLANS=N tries so many random plans; GALVATRON_RANDOM_SEED=N others, and repeats a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include <galvatron/model/multi_task_zoo.hpp>

#include "../says.hpp"
#include "random_tasks.hpp"
#include "run_tasks.hpp"
#include "setting.hpp"

using namespace galvatron;

namespace {

constexpr std::uint64_t waves_seed = 20261128;

// Of the cases of random plans.
std::uint64_t plan_seed() {
  return static_cast<std::uint64_t>(toy::setting("GALVATRON_RANDOM_SEED", static_cast<double>(waves_seed)));
}
std::uint64_t plan_cases() { return static_cast<std::uint64_t>(toy::setting("GALVATRON_TASK_PLANS", 300)); }

double worst_loss(const test::TaskRun& a, const test::TaskRun& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.losses[0].size(); ++i)
    worst = std::max(worst, std::abs(a.losses[0][i] - b.losses[0][i]) / std::max(1.0, std::abs(a.losses[0][i])));
  return worst;
}

// @param microbatches  of each task
test::TaskRun on_one_rank(const MultiTaskModel& model, const test::TaskRunOptions& options = {},
                          const std::vector<int>& microbatches = {}) {
  WavePlan plan = plan_in_sequence(model, value_or_throw(task_graphs(model)), {});
  plan.microbatches = microbatches;
  return test::run_tasks(model, plan, in_sequence, options);
}

// A right plan for the toy CLIP on 4 ranks, to be broken.
WavePlan clip_waves() {
  WavePlan plan{.ranks = 4};
  plan.waves = {{{{.task = 0, .pass = 0, .first = 0, .last = 3, .ranks = {0}},
                  {.task = 0, .pass = 1, .first = 0, .last = 1, .ranks = {2, 1}, .strategy = {.data = 2}}}},
                {{{.task = 0, .pass = 1, .first = 2, .last = 3, .ranks = {1, 3}, .strategy = {.data = 2}}}},
                {{{.task = 0, .pass = 2, .first = 0, .last = 0, .ranks = {3, 0}, .strategy = {.data = 2}}}}};
  return plan;
}
MultiTaskModel one_pair() {
  MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  model.tasks.resize(1);
  model.components.erase(model.components.begin() + 2, model.components.begin() + 4);
  model.components.back().inputs.resize(2);
  return model;
}

}  // namespace

TEST_CASE("random plans of waves for random multi-task models train as one rank does, task after task") {
  const std::uint64_t seed = plan_seed();
  const std::uint64_t cases = plan_cases();
  MESSAGE("GALVATRON_RANDOM_SEED=", seed);
  int several = 0;  // parts of a layer on sets that differ
  int accumulated = 0, pipelined = 0;
  double worst = 0, worst_whole = 0;
  for (std::uint64_t i = 0; i < cases; ++i) {
    test::RandomTasks random(seed + i);
    const MultiTaskModel model = random.model();
    const int ranks = std::vector{1, 2, 4, 6, 8, 16}[i % 6];
    const WavePlan plan = random.plan(model, ranks);
    INFO("case ", i, ", ", model.tasks.size(), " tasks on ", ranks, " ranks in ", plan.waves.size(), " waves");
    // With the plan's micro-batches, whose sums have the same terms.
    const test::TaskRun one = on_one_rank(model, {}, plan.microbatches);
    const test::TaskRun waves = test::run_tasks(model, plan, in_waves);
    CHECK(worst_loss(one, waves) < 1e-5);
    worst = std::max(worst, test::difference(one.gradients, waves.gradients));
    CHECK(test::difference(one.gradients, waves.gradients) < 1e-5);
    const bool at_once = std::ranges::max(plan.microbatches) == 1;
    if (!at_once) {
      const test::TaskRun whole = on_one_rank(model);
      CHECK(worst_loss(whole, one) < 1e-5);
      worst_whole = std::max(worst_whole, test::difference(whole.gradients, one.gradients));
      CHECK(test::difference(whole.gradients, one.gradients) < 1e-5);
    }
    CHECK(waves.norms[0] == doctest::Approx(one.norms[0]).epsilon(1e-5));
    for (int rank = 0; rank < ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      CHECK(waves.planned[at].states == waves.measured[at].states);
      CHECK(waves.planned[at].stash == waves.measured[at].stash);
      CHECK(waves.planned[at].workspace >= waves.measured[at].workspace);
    }
    accumulated += at_once || plan.in_flight > 1 ? 0 : 1;
    pipelined += at_once || plan.in_flight == 1 ? 0 : 1;
    const auto parts = parts_of(plan);
    for (const WavePart& a : parts)
      several += std::ranges::any_of(parts, [&](const WavePart& b) { return a.ranks != b.ranks; }) ? 1 : 0;
  }
  MESSAGE("gradients differ by ", worst, " at most, on one rank with micro-batches and without by ", worst_whole);
  CHECK(several * 3 > static_cast<int>(cases) * 10);
  CHECK(accumulated * 10 > static_cast<int>(cases));
  CHECK(pipelined * 3 > static_cast<int>(cases));
}

TEST_CASE("the same plan gives the same bits twice, and random plans go on learning as one rank does") {
  for (std::uint64_t i = 100; i < 106; ++i) {
    test::RandomTasks random(waves_seed + i);
    const MultiTaskModel model = random.model();
    const WavePlan plan = random.plan(model, 4);
    INFO("case ", i);
    const test::TaskRun first = test::run_tasks(model, plan, in_waves, {.steps = 3});
    const test::TaskRun second = test::run_tasks(model, plan, in_waves, {.steps = 3});
    CHECK(first.losses == second.losses);
    CHECK(first.parameters == second.parameters);
    const test::TaskRun one = on_one_rank(model, {.steps = 3});
    for (std::size_t task = 0; task < model.tasks.size(); ++task)
      CHECK(first.losses[2][task] == doctest::Approx(one.losses[2][task]).epsilon(1e-3));
  }
}

TEST_CASE("random plans of waves train in bfloat16 too") {
  if (!device::Host::supports(Precision::bf16)) {
    MESSAGE("this processor has no bfloat16 arithmetic: nothing compared");
    return;
  }
  for (std::uint64_t i = 200; i < 212; ++i) {
    test::RandomTasks random(waves_seed + i);
    const MultiTaskModel model = random.model();
    const WavePlan plan = random.plan(model, 4);
    INFO("case ", i);
    const test::TaskRun one = on_one_rank(model);
    const test::TaskRun waves = test::run_tasks(model, plan, in_waves, {.precision = Precision::bf16});
    CHECK(worst_loss(one, waves) < 5e-2);
    for (std::size_t rank = 0; rank < 4; ++rank) {
      CHECK(waves.planned[rank].states == waves.measured[rank].states);
      CHECK(waves.planned[rank].stash == waves.measured[rank].stash);
      CHECK(waves.planned[rank].workspace >= waves.measured[rank].workspace);
    }
  }
}

TEST_CASE("tasks in sequence on several ranks train as on one, under every ZeRO stage") {
  for (const char* name : {"clip-toy", "ofasys-toy", "qwen-toy"}) {
    MultiTaskModel model = value_or_throw(find_multi_task_model(name));
    for (TaskSpec& task : model.tasks) task.batch = 4;
    const auto graphs = value_or_throw(task_graphs(model));
    const test::TaskRun one = on_one_rank(model);
    for (int zero = 0; zero <= 3; ++zero) {
      INFO(std::string(name), ", ZeRO-", zero);
      const test::TaskRun many =
          test::run_tasks(model, plan_in_sequence(model, graphs, {.data = 4, .zero = zero}), in_sequence);
      CHECK(worst_loss(one, many) < 1e-5);
      CHECK(test::difference(one.gradients, many.gradients) < 1e-5);
      for (const std::size_t rank : {0U, 3U}) {
        CHECK(many.planned[rank].states == many.measured[rank].states);
        CHECK(many.planned[rank].stash == many.measured[rank].stash);
        CHECK(many.planned[rank].workspace >= many.measured[rank].workspace);
      }
    }
  }
}

TEST_CASE("passes of one depth run side by side") {
  for (const char* name : {"clip-toy", "ofasys-toy", "qwen-toy"})
    for (const int ranks : {1, 3, 4, 16}) {
      INFO(std::string(name), " on ", ranks, " ranks");
      const MultiTaskModel model = value_or_throw(find_multi_task_model(name));
      const WavePlan plan = plan_by_levels(model, value_or_throw(task_graphs(model)), ranks);
      const test::TaskRun waves = test::run_tasks(model, plan, in_waves);
      const test::TaskRun one = on_one_rank(model);
      CHECK(worst_loss(one, waves) < 1e-5);
      CHECK(test::difference(one.gradients, waves.gradients) < 1e-5);
    }
}

TEST_CASE("a plan of waves that makes no sense is refused with its cause") {
  struct Case {
    std::function<void(WavePlan&)> change;
    std::vector<std::string> words;
  };
  const Case cases[] = {
      {[](auto& p) { p.ranks = 3; }, {"rank 3 of 3"}},
      {[](auto& p) { p.waves[0].parts[0].ranks = {2}; }, {"wave 0", "rank 2 twice"}},
      {[](auto& p) { p.waves[0].parts[0].last = 4; }, {"text", "4 layers"}},
      {[](auto& p) { p.waves[0].parts[0].last = 2; }, {"contrast", "not done"}},
      {[](auto& p) { p.waves[1].parts[0].first = 3; }, {"vision", "does not follow"}},
      {[](auto& p) { p.waves.pop_back(); }, {"leaves out", "text-vision"}},
      {[](auto& p) { std::swap(p.waves[1], p.waves[2]); }, {"contrast", "not done"}},
      {[](auto& p) { p.waves[0].parts[1].task = 1; }, {"wave 0", "there is not"}},
      {[](auto& p) { p.waves[0].parts[1].pass = 3; }, {"wave 0", "there is not"}},
      {[](auto& p) { p.waves[0].parts[1].strategy.data = 1; }, {"2 ranks", "takes 1"}},
      {[](auto& p) {
         p.waves[0].parts[1] = {
             .task = 0, .pass = 1, .first = 0, .last = 1, .ranks = {1, 2, 3}, .strategy = {.data = 3}};
       },
       {"batch 8", "does not divide"}},
      {[](auto& p) { p.waves[0].parts[1].strategy = {.sequence = SequenceKind::ulysses, .context = 2}; },
       {"ulysses", "tensor and data ranks"}},
      {[](auto& p) { p.waves[0].parts[1].strategy.zero = 1; }, {"ZeRO is the plan's"}},
      {[](auto& p) { p.waves[2].parts[0].strategy = {.tensor = 2, .sequence = SequenceKind::megatron}; },
       {"contrastive", "not split"}},
      {[](auto& p) { p.zero = 4; }, {"ZeRO stage"}},
      {[](auto& p) { p.microbatches = {2}; }, {"text-vision", "2 micro-batches", "contrastive"}},
      {[](auto& p) { p.microbatches = {3}; }, {"text-vision", "3 micro-batches", "batch of 8"}},
      {[](auto& p) { p.microbatches = {0}; }, {"text-vision", "0 micro-batches"}},
      {[](auto& p) { p.microbatches = {1, 1}; }, {"2 tasks", "has 1"}},
      {[](auto& p) { p.in_flight = 0; }, {"in flight"}},
  };
  const MultiTaskModel model = one_pair();
  const auto graphs = value_or_throw(task_graphs(model));
  const auto right = check_waves(model, graphs, clip_waves());
  CHECK_MESSAGE(right.has_value(), (right ? std::string() : right.error().message));
  for (const Case& c : cases) {
    WavePlan plan = clip_waves();
    c.change(plan);
    const auto wrong = check_waves(model, graphs, plan);
    REQUIRE_FALSE(wrong.has_value());
    const std::string& message = wrong.error().message;
    CAPTURE(message);
    for (const std::string& word : c.words) CHECK(says(message, word));
  }
}

TEST_CASE("parts of a layer that need other parameters of it on one rank are refused") {
  MultiTaskModel model = one_pair();
  model.tasks.push_back(model.tasks[0]);
  model.tasks[1].name = "again";
  const auto graphs = value_or_throw(task_graphs(model));
  const auto plan_with = [&](const WavePart& second) {
    WavePlan plan = clip_waves();
    plan.waves[0].parts[0] = {.task = 0, .pass = 0, .first = 0, .last = 3, .ranks = {0, 3}, .strategy = {.tensor = 2}};
    plan.waves.push_back({{second}});
    const auto places = layer_ranks(model, graphs, plan);
    return places ? std::string() : places.error().message;
  };
  CHECK(plan_with({.task = 1, .pass = 0, .first = 0, .last = 3, .ranks = {0, 3}, .strategy = {.tensor = 2}}).empty());
  CHECK(says(plan_with({.task = 1, .pass = 0, .first = 0, .last = 3, .ranks = {3, 0}, .strategy = {.tensor = 2}}),
             "other rows"));
  CHECK(says(plan_with({.task = 1, .pass = 0, .first = 0, .last = 3, .ranks = {0}}), "tensor degree"));
  CHECK(says(plan_with({.task = 1, .pass = 0, .first = 0, .last = 3, .ranks = {0, 2}, .strategy = {.tensor = 2}}),
             "unequally many"));
}

TEST_CASE(
    "micro-batches in flight go through stages one forward, one backward, each in as many slots as are behind it") {
  MultiTaskModel model = value_or_throw(find_multi_task_model("qwen-toy"));
  model.tasks.resize(1);
  model.has_idle = true;
  model.tasks[0].batch = 6;
  const auto graphs = value_or_throw(task_graphs(model));
  // The passes of the task are stages of one rank each.
  const auto passes = static_cast<int>(graphs[0].passes.size());
  WavePlan plan = plan_in_sequence(model, graphs, {});
  plan.ranks = passes;
  for (int i = 0; i < passes; ++i) plan.waves[static_cast<std::size_t>(i)].parts[0].ranks = {i};
  plan.microbatches = {6};
  const test::TaskRun one = on_one_rank(model);
  std::vector<Bytes> stashes;
  for (const int in_flight : {1, 2, 6}) {
    INFO(in_flight, " in flight");
    plan.in_flight = in_flight;
    const auto tasks = value_or_throw(train::task_plan(model, plan, in_waves));
    CHECK(tasks.program.size() == static_cast<std::size_t>(2 * 6 * passes));
    CHECK(tasks.parts.back().slots == 1);
    CHECK(tasks.parts.front().slots <= in_flight);
    if (in_flight == 2) CHECK(tasks.parts.front().slots == 2);
    const test::TaskRun many = test::run_tasks(model, plan, in_waves);
    CHECK(worst_loss(one, many) < 1e-5);
    CHECK(test::difference(one.gradients, many.gradients) < 1e-5);
    for (std::size_t rank = 0; rank < many.planned.size(); ++rank) {
      CHECK(many.planned[rank].stash == many.measured[rank].stash);
      CHECK(many.planned[rank].states == many.measured[rank].states);
    }
    stashes.push_back(many.planned[0].stash);
  }
  CHECK(stashes[0] * 2 == stashes[1]);
  const WavePlan at_once = [&] {
    WavePlan out = plan;
    out.microbatches = {};
    out.in_flight = 1;
    return out;
  }();
  CHECK(test::run_tasks(model, at_once, in_waves).planned[0].stash > stashes[0] * 3);
}
