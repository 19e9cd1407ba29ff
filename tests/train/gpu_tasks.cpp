// labels: gpu
// Models of several tasks on a GPU: losses, gradients and memory of the cores, on ranks that share the card, with
// micro-batches, pipelines and mixes that change; the same bits twice.
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <galvatron/model/multi_task_zoo.hpp>
#include <galvatron/train/gpu_compiled.hpp>
#include <galvatron/train/gpus.hpp>

#include "../device/gpu_fixture.hpp"
#include "random_tasks.hpp"
#include "run_tasks.hpp"

namespace {

using namespace galvatron;

template <class Policy>
test::TaskRun tasks_on_gpu(const MultiTaskModel& model, const WavePlan& plan, test::TaskRunOptions options) {
  options.fetch = [](View<const float> from, float* to) {
    device::cuda::check(cudaDeviceSynchronize());
    device::cuda::check(cudaMemcpy(to, from.data, static_cast<std::size_t>(from.count) * 4, cudaMemcpyDeviceToHost));
  };
  return test::run_tasks(model, options, [&](const auto& sources, const auto& train) {
    return train::train_tasks_on_gpu<Policy>(model, plan, sources, train, test::first_gpu());
  });
}
test::TaskRun tasks_on_gpu(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order,
                           const test::TaskRunOptions& options) {
  return order == in_waves ? tasks_on_gpu<Tasks<in_waves>>(model, plan, options)
                           : tasks_on_gpu<Tasks<in_sequence>>(model, plan, options);
}

void check_memory_of_tasks(const test::TaskRun& run) {
  for (std::size_t rank = 0; rank < run.planned.size(); ++rank) {
    CHECK(run.planned[rank].states == run.measured[rank].states);
    CHECK(run.planned[rank].stash == run.measured[rank].stash);
    CHECK(run.planned[rank].workspace >= run.measured[rank].workspace);
  }
}

void check_losses_of_tasks(const test::TaskRun& a, const test::TaskRun& b, double tolerance) {
  REQUIRE(a.losses.size() == b.losses.size());
  for (std::size_t step = 0; step < a.losses.size(); ++step)
    for (std::size_t task = 0; task < a.losses[step].size(); ++task)
      CHECK(a.losses[step][task] == doctest::Approx(b.losses[step][task]).epsilon(tolerance));
}

void check_tasks_on_gpu(const MultiTaskModel& model, const WavePlan& plan, TaskOrder order,
                        const test::TaskRunOptions& options) {
  const test::TaskRun cores = test::run_tasks(model, plan, order, options);
  const test::TaskRun gpu = tasks_on_gpu(model, plan, order, options);
  check_losses_of_tasks(gpu, cores, 1e-5);
  CHECK(test::difference(gpu.gradients, cores.gradients) < 2e-5);
  check_memory_of_tasks(gpu);
}

}  // namespace

TEST_CASE("several tasks train on the GPU as on the cores, while mixes change") {
  for (const char* name : {"clip-toy", "ofasys-toy", "qwen-toy"})
    for (const int ranks : {1, 2, 4}) {
      CAPTURE(std::string(name));
      CAPTURE(ranks);
      const MultiTaskModel model = value_or_throw(find_multi_task_model(name));
      check_tasks_on_gpu(model, plan_by_levels(model, value_or_throw(task_graphs(model)), ranks), in_waves,
                         {.steps = 2, .mixes = {{1, {{model.tasks[0].name, 4}}}}});
    }
}

TEST_CASE("random models of several tasks train on GPU ranks as on cores") {
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  MESSAGE("seed ", seed);
  for (std::uint64_t i = 0; i < 24; ++i) {
    CAPTURE(i);
    test::RandomTasks random(seed + i);
    const MultiTaskModel model = random.model();
    const WavePlan plan = random.plan(model, std::vector{1, 2, 4, 8}[i % 4]);
    check_tasks_on_gpu(model, plan, i % 3 < 2 ? in_waves : in_sequence, {.steps = 2});
  }
}

TEST_CASE(
    "several tasks in bfloat16 take the planned memory, twice give the same bits, and have the losses of the cores") {
  const auto seed = static_cast<std::uint64_t>(std::random_device{}());
  MESSAGE("seed ", seed);
  for (std::uint64_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    test::RandomTasks random(seed + i);
    const MultiTaskModel model = random.model();
    const WavePlan plan = random.plan(model, 4);
    const test::TaskRun cores = test::run_tasks(model, plan, in_waves);
    const test::TaskRun gpu = tasks_on_gpu(model, plan, in_waves, {.precision = Precision::bf16});
    check_losses_of_tasks(gpu, cores, 5e-2);
    check_memory_of_tasks(gpu);
    const test::TaskRun again = tasks_on_gpu(model, plan, in_waves, {.precision = Precision::bf16});
    CHECK(gpu.losses == again.losses);
    CHECK(gpu.parameters == again.parameters);
  }
}
