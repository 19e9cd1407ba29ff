// The trainer of multi-task models whose ranks are processes: every process of an MPI job trains as one rank of the
// plan.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <galvatron/comm/mpi/world.hpp>
#include <galvatron/train/gather_report.hpp>
#include <galvatron/train/task_trainer.hpp>

namespace galvatron::train {

/// Trains as the plan says, this process as one of its ranks; the body of comm::mpi::run(), called by all processes.
/// The losses have the bits of those of rank threads with as many cores each.
/// @param sources  this process's own
/// @return  as gather_report() says
/// Throws as train_tasks() of rank threads does, and Failure (usage) if the plan has another number of ranks than the
/// job.
template <class Policy>
TaskTrainReport train_tasks(const comm::mpi::Runtime& runtime, comm::mpi::World& world, const MultiTaskModel& model,
                            const WavePlan& waves, const std::vector<TaskSources>& sources,
                            const TaskTrainOptions& options) {
  const TaskPlan plan = value_or_throw(detail::first_task_plan(model, waves, Policy::order, options));
  if (plan.ranks != world.size())
    throw Failure(ErrorKind::usage, "the plan is for " + std::to_string(plan.ranks) + " ranks, and mpirun started " +
                                        std::to_string(world.size()) + ": start it with mpirun -np " +
                                        std::to_string(plan.ranks));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : runtime.cores_per_rank();
  HostPlatform::require(options.precision);
  world.set_timeout(options.world.timeout);
  const int tied = runtime.bound() ? 0 : threads;  // mpirun may have chosen the cores
  PinnedRank pin(runtime.local_rank(), runtime.local_size(), tied);
  const HostPlatform platform{threads, &pin};
  TaskTrainReport report = detail::train_task_ranks(model, plan, sources, options,
                                                    [&](const auto& train_one) { train_one(world, platform); });
  gather_report(world, report, options.recorder, [&](int rank) {
    return std::ranges::find(runtime.local_ranks(), rank) != runtime.local_ranks().end();
  });
  return report;
}

}  // namespace galvatron::train
