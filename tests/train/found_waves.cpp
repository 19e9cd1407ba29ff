// labels: ranks
// Plans that find_waves finds for random multi-task models: right, never slower than tasks in sequence as predicted,
// and trained with the losses and gradients of one rank.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include <galvatron/cluster/presets.hpp>
#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/simulate/find_waves.hpp>

#include "../says.hpp"
#include "random_tasks.hpp"
#include "run_tasks.hpp"

using namespace galvatron;

namespace {

constexpr std::uint64_t found_seed = 20261201;

// @param slow  devices that compute so slowly, and whose links are so fast, that tensor ranks pay
Cluster devices_for_waves(int count, bool slow) {
  Cluster cluster = value_or_throw(find_cluster("8xa100-80g"));
  cluster.devices = count;
  cluster.devices_per_node = count % 4 == 0 ? 4 : count;
  DeviceSpec& device = cluster.device;
  device.launch = device.gemm_launch = {};
  if (!slow) return cluster;
  device.multiprocessors = 0;
  device.gemm_start = 0;
  device.memory_bandwidth /= 1e5;
  for (PrecisionRate& rate : device.rates) rate.peak_flops /= 1e5;
  return cluster;
}

}  // namespace

TEST_CASE("found waves of random models are right, not slower than tasks in sequence, and train as one rank does") {
  MESSAGE("seed ", found_seed);
  int in_waves_won = 0, split = 0, tight = 0;
  for (std::uint64_t i = 0; i < 84; ++i) {
    test::RandomTasks random(found_seed + i);
    const MultiTaskModel model = random.model();
    const auto graphs = value_or_throw(task_graphs(model));
    const Cluster cluster = devices_for_waves(std::vector{1, 2, 3, 4, 6, 8, 16}[i % 7], i % 2 == 1);
    INFO("case ", i, ", ", model.tasks.size(), " tasks on ", cluster.devices, " devices");
    simulate::WaveSearchOptions options{.precision = Precision::fp32};
    simulate::FoundWaves found = value_or_throw(simulate::find_waves(model, cluster, options));
    CHECK(found.in_sequence.value > 0);
    CHECK(found.simulation.step.value <= found.in_sequence.value);
    CHECK(found.bound.value <= found.simulation.passes.value * (1 + 1e-12));
    CHECK(found.bound.value > 0);
    if (i % 3 == 0) {  // the same in less memory than it takes, where that can be
      options.memory = Bytes{found.peak.count - 1};
      if (auto smaller = simulate::find_waves(model, cluster, options)) {
        CHECK(smaller->peak < found.peak);
        found = std::move(*smaller);
        ++tight;
      } else {
        CHECK(smaller.error().kind == ErrorKind::infeasible);
      }
    }
    const auto right = check_waves(model, graphs, found.plan);
    REQUIRE_MESSAGE(right.has_value(), (right ? std::string() : right.error().message));
    const test::TaskRun one = test::run_tasks(model, plan_in_sequence(model, graphs, {}), in_sequence);
    const test::TaskRun many = test::run_tasks(model, found.plan, found.order);
    for (std::size_t task = 0; task < model.tasks.size(); ++task)
      CHECK(many.losses[0][task] == doctest::Approx(one.losses[0][task]).epsilon(1e-5));
    CHECK(test::difference(one.gradients, many.gradients) < 1e-5);
    Bytes planned;  // without what libraries take, which is the host's
    for (const cost::StageMemory& memory : many.planned) planned = max(planned, memory.total() - memory.library);
    CHECK(planned == found.peak - cluster.device.library_workspace);
    in_waves_won += found.order == in_waves && cluster.devices > 1 ? 1 : 0;
    for (const WavePart& part : parts_of(found.plan)) split += part.strategy.tensor > 1 ? 1 : 0;
  }
  MESSAGE(in_waves_won, " times waves won, ", split, " parts with tensor ranks, ", tight, " plans in less memory");
  CHECK(in_waves_won > 30);
  CHECK(split > 10);
  CHECK(tight > 10);
}

TEST_CASE("in less and less memory plans recompute by component, and train as one rank does") {
  MESSAGE("seed ", found_seed);
  int by_component = 0;
  for (std::uint64_t i = 0; i < 2; ++i) {
    test::RandomTasks random(found_seed + 500 + i);
    const MultiTaskModel model = random.model();
    const Cluster cluster = devices_for_waves(i % 2 == 0 ? 4 : 2, false);
    const Bytes library = cluster.device.library_workspace;
    INFO("case ", i, ", ", model.tasks.size(), " tasks on ", cluster.devices, " devices");
    simulate::WaveSearchOptions options{.precision = Precision::fp32};
    const test::TaskRun one =
        test::run_tasks(model, plan_in_sequence(model, value_or_throw(task_graphs(model)), {}), in_sequence);
    while (auto found = simulate::find_waves(model, cluster, options)) {
      std::vector<RecomputeKind> kinds;
      for (const WavePart& part : parts_of(found->plan)) kinds.push_back(part.strategy.recompute);
      const bool differ = std::ranges::adjacent_find(kinds, std::ranges::not_equal_to()) != kinds.end();
      if (differ) {
        ++by_component;
        const test::TaskRun many = test::run_tasks(model, found->plan, found->order);
        CHECK(test::difference(one.gradients, many.gradients) < 1e-5);
        Bytes planned;
        for (const cost::StageMemory& memory : many.planned) planned = max(planned, memory.total() - memory.library);
        CHECK(planned == found->peak - library);
        for (std::size_t rank = 0; rank < many.planned.size(); ++rank)
          CHECK(many.planned[rank].states == many.measured[rank].states);
      }
      options.memory = Bytes{library.count + (found->peak - library).count * 4 / 5};
    }
  }
  MESSAGE(by_component, " plans recompute by component");
  CHECK(by_component > 0);
}

TEST_CASE("found pipelines train as one rank does, in the memory that they say") {
  int found_some = 0;
  for (std::uint64_t i = 0; i < 6; ++i) {
    test::RandomTasks random(found_seed + 700 + i);
    const MultiTaskModel model = random.model();
    const Cluster cluster = devices_for_waves(i % 2 == 0 ? 4 : 8, i % 4 == 3);
    INFO("case ", i, ", ", model.tasks.size(), " tasks on ", cluster.devices, " devices");
    const auto found = simulate::find_waves(
        model, cluster, {.precision = Precision::fp32, .schedule = simulate::TaskSchedule::pipeline});
    if (!found) {
      CHECK(found.error().kind == ErrorKind::infeasible);
      continue;
    }
    ++found_some;
    CHECK(found->plan.in_flight > 1);
    CHECK(found->simulation.step == found->pipelined);
    const test::TaskRun one =
        test::run_tasks(model, plan_in_sequence(model, value_or_throw(task_graphs(model)), {}), in_sequence);
    const test::TaskRun many = test::run_tasks(model, found->plan, found->order);
    for (std::size_t task = 0; task < model.tasks.size(); ++task)
      CHECK(many.losses[0][task] == doctest::Approx(one.losses[0][task]).epsilon(1e-5));
    CHECK(test::difference(one.gradients, many.gradients) < 1e-5);
    Bytes planned;
    for (std::size_t rank = 0; rank < many.planned.size(); ++rank) {
      planned = max(planned, many.planned[rank].total() - many.planned[rank].library);
      CHECK(many.planned[rank].stash == many.measured[rank].stash);
    }
    CHECK(planned == found->peak - cluster.device.library_workspace);
  }
  MESSAGE(found_some, " pipelines");
  CHECK(found_some > 3);
}

TEST_CASE("what fits in no other way shards gradients and parameters") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("multitask-clip-4"));
  const simulate::WaveSearchOptions options{.memory = Bytes{std::int64_t{11} << 29}};
  const auto found = value_or_throw(simulate::find_waves(model, value_or_throw(find_cluster("8xa100-80g")), options));
  CHECK(found.plan.zero >= 2);
  CHECK(found.order == in_sequence);
  CHECK(found.peak <= options.memory);
}

TEST_CASE("waves beat tasks in sequence and groups of tasks on the models of the paper") {
  for (const char* name : {"multitask-clip-4", "ofasys-4"}) {
    const MultiTaskModel model = value_or_throw(find_multi_task_model(name));
    for (const char* devices : {"8xa100-80g", "16xa100-80g"}) {
      INFO(std::string(name), " on ", std::string(devices));
      const auto found = value_or_throw(simulate::find_waves(model, value_or_throw(find_cluster(devices))));
      CHECK(found.order == in_waves);
      CHECK(found.simulation.step.value < found.in_sequence.value);
      CHECK((found.by_task.value == 0 || found.simulation.step.value < found.by_task.value));
    }
  }
}

TEST_CASE("a model that fits nowhere is no plan, with the least memory that was found") {
  const MultiTaskModel model = value_or_throw(find_multi_task_model("qwen-val"));
  const auto found = simulate::find_waves(model, value_or_throw(find_cluster("2xv100-32g")));
  REQUIRE_FALSE(found.has_value());
  CHECK(found.error().kind == ErrorKind::infeasible);
  CHECK(says(found.error().message, "the smallest takes"));
}
