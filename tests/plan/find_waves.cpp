// Plans of waves that are searched for multi-task models.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/plan/find_waves.hpp>
#include <galvatron/simulate/wave_simulation.hpp>

#include "../says.hpp"
#include "../train/random_tasks.hpp"

using namespace galvatron;

namespace {

constexpr std::uint64_t search_seed = 20261201;

Cluster gpus_of(const std::string& name) { return *value_or_throw(preset_cluster(name)); }

simulate::WaveSimulation simulated(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order,
                                   const Cluster& cluster) {
  return simulate::simulate_waves(value_or_throw(train::task_plan(model, plan, order)), cluster);
}

}  // namespace

TEST_CASE("plans of waves for random models run every layer once, within their bound") {
  MESSAGE("seed ", search_seed);
  for (std::uint64_t i = 0; i < 25; ++i) {
    test::RandomTasks random(search_seed + i);
    const MultiTaskModel model = random.model();
    const int ranks = 1 + static_cast<int>(i % 8);
    INFO("case ", i, " on ", ranks, " ranks");
    const FoundWaves found =
        value_or_throw(find_waves(model, gpus_of("8xa100-80g"), {.ranks = ranks, .zero = static_cast<int>(i % 2)}));
    const auto graphs = value_or_throw(task_graphs(model));
    CHECK(found.plan.ranks == ranks);
    const auto right = check_waves(model, graphs, found.plan);
    CHECK_MESSAGE(right.has_value(), (right ? std::string() : right.error().message));
    CHECK(layer_ranks(model, graphs, found.plan).has_value());
    CHECK(found.seconds >= found.bound * (1 - 1e-9));
    const auto plan = value_or_throw(train::task_plan(model, found.plan, in_waves));
    CHECK(simulate::simulate_waves(plan, gpus_of("8xa100-80g")).passes.value >= found.bound * (1 - 1e-6));
  }
}

TEST_CASE("passes of the published models take less time in waves than in sequence") {
  for (const char* name : {"multitask-clip-4", "multitask-clip-7", "multitask-clip-10", "ofasys-4", "ofasys-7"})
    for (const int devices : {8, 16, 32}) {
      const MultiTaskModel model = value_or_throw(find_multi_task_model(name));
      const Cluster cluster = gpus_of(std::to_string(devices) + "xa100-80g");
      const FoundWaves found = value_or_throw(find_waves(model, cluster, {.zero = 1}));
      const auto waves = simulated(model, found.plan, in_waves, cluster);
      const auto sequence =
          simulated(model, plan_in_sequence(model, value_or_throw(task_graphs(model)), {.data = devices, .zero = 1}),
                    in_sequence, cluster);
      const double passes = sequence.passes.value / waves.passes.value;
      const double step = sequence.step.value / waves.step.value;
      MESSAGE(std::string(name), " on ", devices, " A100: ", found.plan.waves.size(), " waves, passes ", passes,
              " and steps ", step, " times as fast as in sequence; ", waves.step.value, " s, of which passes ",
              waves.passes.value, ", bound ", found.bound);
      CHECK(passes > 1.05);
      if (devices == 8) CHECK(step > 1.1);
    }
}

TEST_CASE("a model that fits into no device is planned with tensor ranks") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("qwen-val"));
  const Cluster cluster = gpus_of("32xa100-80g");
  CHECK(find_waves(model, cluster, {.zero = 1, .tensor = 1}).error().kind == ErrorKind::infeasible);
  const FoundWaves found = value_or_throw(find_waves(model, cluster, {.zero = 1}));
  CHECK(found.tensor > 1);
  const auto graphs = value_or_throw(task_graphs(model));
  CHECK(check_waves(model, graphs, found.plan).has_value());
  CHECK(layer_ranks(model, graphs, found.plan).has_value());
  const auto waves = simulated(model, found.plan, in_waves, cluster);
  MESSAGE("qwen-val on 32 A100: tensor degree ", found.tensor, ", ", found.plan.waves.size(), " waves, step ",
          waves.step.value, " s, of which passes ", waves.passes.value, ", bound ", found.bound);
}

TEST_CASE("a search for waves that makes no sense is refused") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("clip-toy"));
  const Cluster cluster = gpus_of("8xa100-80g");
  CHECK(says(find_waves(model, cluster, {.ranks = 9}).error().message, "8 devices"));
  CHECK(says(find_waves(model, cluster, {.zero = 2}).error().message, "ZeRO-1"));
  CHECK(says(find_waves(model, cluster, {.tensor = 3}).error().message, "tensor degree 3"));
  Cluster small = cluster;
  small.device.memory = {1 << 16};
  CHECK(find_waves(model, small).error().kind == ErrorKind::infeasible);
}
