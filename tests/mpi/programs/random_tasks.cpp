// Random plans of waves and of pipelines on processes: models train with the bits of rank threads.
#include <cstdint>
#include <random>
#include <string>

#include <galvatron/comm/mpi/world.hpp>
#include <galvatron/train/task_processes.hpp>

#include "../../train/random_pipelines.hpp"
#include "../../train/random_tasks.hpp"
#include "../../train/run_tasks.hpp"
#include "run_tests.hpp"

using namespace galvatron;

namespace {

comm::mpi::Runtime* task_runtime = nullptr;
unsigned task_seed = 0;

}  // namespace

TEST_CASE("random plans of waves train on processes with the bits of threads") {
  constexpr int plans = 8;
  comm::mpi::run(*task_runtime, [&](comm::mpi::World& world) {
    for (std::uint64_t i = 0; i < plans; ++i) {
      test::RandomTasks random(task_seed + i);
      const MultiTaskModel model = random.model();
      const WavePlan plan = random.plan(model, world.size());
      INFO("seed ", task_seed, ", plan ", i, " of ", plan.waves.size(), " waves on ", world.size(), " processes");
      const test::TaskRunOptions options{.steps = 3, .mixes = random.mixes(model, 3)};
      const test::TaskRun processes = test::run_tasks(model, options, [&](const auto& sources, const auto& train) {
        return train::train_tasks<Tasks<in_waves>>(*task_runtime, world, model, plan, sources, train);
      });
      if (world.rank() == 0) {
        const test::TaskRun threads = test::run_tasks(model, plan, in_waves, options);
        CHECK(processes.losses == threads.losses);
        CHECK(processes.norms == threads.norms);
        CHECK(processes.batches == threads.batches);
        CHECK(processes.measured[0] == threads.measured[0]);
      }
      world.everybody().barrier();
    }
  });
}

TEST_CASE("random pipelines train on processes with the bits of threads") {
  constexpr int plans = 8;
  std::mt19937 random(task_seed);
  comm::mpi::run(*task_runtime, [&](comm::mpi::World& world) {
    for (int i = 0; i < plans; ++i) {
      const test::RandomPipelines of = test::random_pipelines(random, world.size());
      INFO("seed ", task_seed, ", plan ", i, " of ", of.samples.size(), " pipelines on ", world.size(), " processes");
      const test::SharedBatch batch(of);
      const test::TaskRunOptions options{.steps = 2};
      const test::TaskRun processes = test::run_tasks(of.model, options, [&](const auto&, const auto& train) {
        return train::train_tasks<Tasks<in_waves>>(*task_runtime, world, of.model, of.plan, batch.sources(), train);
      });
      if (world.rank() == 0) {
        const test::TaskRun threads = test::run_tasks(of.model, options, [&](const auto&, const auto& train) {
          return train::train_tasks<Tasks<in_waves>>(of.model, of.plan, batch.sources(), train);
        });
        CHECK(processes.loss == threads.loss);
        CHECK(processes.norms == threads.norms);
        CHECK(processes.measured[0] == threads.measured[0]);
      }
      world.everybody().barrier();
    }
  });
}

int main(int count, char** values) {
  return programs::run_tests(count, values, [](comm::mpi::Runtime& mine, unsigned seed) {
    task_runtime = &mine;
    task_seed = seed;
  });
}
