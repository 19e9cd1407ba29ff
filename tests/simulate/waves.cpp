// The simulated times of plans of waves.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/plan/task_program.hpp>
#include <galvatron/simulate/wave_simulation.hpp>

#include "../train/random_tasks.hpp"

using namespace galvatron;

namespace {

constexpr std::uint64_t simulated_seed = 20261130;

Cluster gpus(const char* name) { return *value_or_throw(preset_cluster(std::string(name))); }

}  // namespace

TEST_CASE("parts begin when their ranks are free and what they read is there, and a step ends with its last rank") {
  MESSAGE("seed ", simulated_seed);
  const Cluster cluster = gpus("16xa100-80g");
  for (std::uint64_t i = 0; i < 60; ++i) {
    test::RandomTasks random(simulated_seed + i);
    const MultiTaskModel model = random.model();
    const int all = std::vector{1, 2, 4, 8, 16}[i % 5];
    const TaskOrder order = i % 2 == 0 ? in_waves : in_sequence;
    const train::TaskPlan plan = value_or_throw(train::task_plan(model, random.plan(model, all), order));
    INFO("case ", i, " on ", all, " ranks");
    const simulate::WaveSimulation step = simulate::simulate_waves(plan, cluster);
    REQUIRE(step.events.size() == plan.program.size());
    std::vector<Seconds> free(static_cast<std::size_t>(all));
    std::map<std::pair<int, int>, Seconds> forward_end, backward_end;  // of a part and a micro-batch
    double work = 0;
    for (const TaskSpan& event : step.events) {
      const int microbatch = event.instruction.microbatch;
      const train::PartPlan& part = plan.part(event.instruction.part);
      const bool forward = event.instruction.op == TaskInstruction::Op::forward;
      bool waits_for_somebody = event.begin == Seconds{0};
      const auto waits = [&](Seconds other) {
        CHECK(event.begin >= other);
        waits_for_somebody = waits_for_somebody || event.begin == other;
      };
      std::vector<int> ranks = part.where.ranks;  // and those of shards that are gathered
      for (std::size_t layer = 0; layer < part.layers.size(); ++layer)
        for (int rank = 0; rank < plan.ranks; ++rank)
          if (plan.assists(part, layer, rank) && std::ranges::find(ranks, rank) == ranks.end()) ranks.push_back(rank);
      for (const int rank : ranks) waits(free[static_cast<std::size_t>(rank)]);
      for (const int edge : forward ? part.reads : part.feeds)
        waits(forward ? forward_end.at({plan.edge(edge).from, microbatch})
                      : backward_end.at({plan.edge(edge).to, microbatch}));
      CHECK(waits_for_somebody);
      CHECK(event.moved >= event.begin);
      CHECK(event.end > event.moved);
      (forward ? forward_end : backward_end)[{event.instruction.part, microbatch}] = event.end;
      for (const int rank : ranks) free[static_cast<std::size_t>(rank)] = event.end;
      work += (event.end - event.begin).value * static_cast<double>(ranks.size());
    }
    CHECK(step.passes == *std::ranges::max_element(free));
    CHECK(step.step.value == doctest::Approx((step.passes + step.reduction + step.update).value));
    CHECK(step.utilisation() <= 1 + 1e-9);
    CHECK(step.utilisation() * step.step.value * all >= work * (1 - 1e-9));
    if (all == 1) CHECK(step.utilisation() == doctest::Approx(1));
  }
}

TEST_CASE("messages between nodes take longer than in one") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("multitask-clip-4"));
  const auto graphs = value_or_throw(task_graphs(model));
  const Cluster cluster = gpus("16xa100-80g");
  WavePlan near = plan_by_levels(model, graphs, 8);
  near.ranks = 16;
  WavePlan far = near;
  for (std::size_t wave = 1; wave < far.waves.size(); ++wave)
    for (WavePart& part : far.waves[wave].parts)
      for (int& rank : part.ranks) rank += 8;
  const auto step = [&](const WavePlan& plan) {
    return simulate::simulate_waves(value_or_throw(train::task_plan(model, plan, in_waves)), cluster);
  };
  const auto moving = [](const simulate::WaveSimulation& of) {
    double sum = 0;
    for (const TaskSpan& event : of.events) sum += (event.moved - event.begin).value;
    return sum;
  };
  CHECK(moving(step(far)) > 2 * moving(step(near)));
}

TEST_CASE("towers of unequal length on equally many ranks wait for each other, tasks in sequence do not") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("multitask-clip-4"));
  const auto graphs = value_or_throw(task_graphs(model));
  const Cluster cluster = gpus("32xa100-80g");
  const auto sequence =
      value_or_throw(train::task_plan(model, plan_in_sequence(model, graphs, {.data = 32, .zero = 1}), in_sequence));
  WavePlan levels = plan_by_levels(model, graphs, 32);
  levels.zero = 1;
  const auto waves = value_or_throw(train::task_plan(model, levels, in_waves));
  const auto one = simulate::simulate_waves(sequence, cluster);
  const auto other = simulate::simulate_waves(waves, cluster);
  MESSAGE("CLIP-4 on 32 A100: in sequence ", one.step.value, " s, by levels ", other.step.value, " s, of which busy ",
          one.utilisation(), " and ", other.utilisation());
  CHECK(one.utilisation() > 0.99);
  CHECK(other.utilisation() < 0.7);
}
