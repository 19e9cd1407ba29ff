// Models of several tasks with the GPU's kernels, emulated: losses, gradients and memory of the cores, on ranks that
// share the GPU.
#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>

#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/plan/task_plan.hpp>

#include "fake_gpu_compiled.hpp"
#include "random_tasks.hpp"
#include "run_tasks.hpp"

using namespace galvatron;

namespace {

test::TaskRun on_fake_gpu_tasks(const MultiTaskModel& model, const WavePlan& waves, TaskOrder order,
                                const test::TaskRunOptions& options) {
  const std::uint64_t seed = std::random_device{}();
  INFO("seed ", seed);
  const train::TaskPlan plan = value_or_throw(train::task_plan(model, waves, order));
  return test::run_tasks(model, options, [&](const auto& sources, const auto& train) {
    return train::detail::train_task_ranks(
        model, plan, sources, train, [&](const auto& train_one) { test::on_fake_gpu(plan.ranks, seed, train_one); });
  });
}

// @param mixes  of steps 0 and 1
void check_on_gpu(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order,
                  const std::vector<TaskMix>& mixes = {}) {
  test::TaskRunOptions options;
  options.steps = 2;
  options.mixes = mixes;
  const test::TaskRun cores = test::run_tasks(model, plan, order, options);
  const test::TaskRun gpu = on_fake_gpu_tasks(model, plan, order, options);
  for (std::size_t step = 0; step < 2; ++step)
    for (std::size_t task = 0; task < model.tasks.size(); ++task)
      CHECK(gpu.losses[step][task] == doctest::Approx(cores.losses[step][task]).epsilon(1e-5));
  CHECK(test::difference(gpu.gradients, cores.gradients) < 1e-5);
  for (std::size_t rank = 0; rank < gpu.planned.size(); ++rank) {
    CHECK(gpu.planned[rank].states == gpu.measured[rank].states);
    CHECK(gpu.planned[rank].stash == gpu.measured[rank].stash);
    CHECK(gpu.planned[rank].workspace >= gpu.measured[rank].workspace);
  }
}

}  // namespace

TEST_CASE("several tasks train on the GPU as on the cores") {
  for (const char* name : {"clip-toy", "qwen-toy"}) {
    CAPTURE(std::string(name));
    const MultiTaskModel model = value_or_throw(find_multi_task_model(name));
    const auto graphs = value_or_throw(task_graphs(model));
    check_on_gpu(model, plan_by_levels(model, graphs, 2), in_waves,
                 {{1, {{model.tasks[0].name, 4}, {model.tasks[1].name, 2}}}});
  }
}

TEST_CASE("random models of several tasks train on GPU ranks as on cores") {
  constexpr std::uint64_t gpu_tasks_seed = 20261127;
  MESSAGE("seed ", gpu_tasks_seed);
  for (std::uint64_t i = 0; i < 2; ++i) {
    CAPTURE(i);
    test::RandomTasks random(gpu_tasks_seed + i);
    const MultiTaskModel model = random.model();
    check_on_gpu(model, random.plan(model, 2), i % 2 == 0 ? in_waves : in_sequence);
  }
}
