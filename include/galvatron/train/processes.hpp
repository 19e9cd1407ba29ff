// The trainer of ranks that are processes: every process of an MPI job trains as one rank of the plan.
#pragma once

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include <galvatron/comm/mpi/mpi.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/train/gather_report.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

/// Trains as the plan says, this process as one of its ranks; the body of comm::mpi::run(), called by all processes.
/// The losses have the same bits as those of rank threads with as many cores each.
///
///     comm::mpi::Runtime runtime;                                  // started by mpirun -np N
///     comm::mpi::run(runtime, [&](comm::mpi::World& world) {
///       const auto report = train::train(runtime, world, plan, model, batches, options);
///     });
///
/// @param source  this process's own
/// @return  memory and checkpoints of all ranks on every one; steps, iteration_seconds and what the recorder has of the
///          others on rank 0 only
/// Throws as train() of rank threads does, and Failure (usage) if the plan has another number of ranks than the job.
template <class List = InstantiatedStrategies>
TrainReport train(const comm::mpi::Runtime& runtime, comm::mpi::World& world, const Plan& plan, const ModelSpec& model,
                  BatchSource& source, const TrainOptions& options) {
  if (plan.ranks() != world.size())
    throw Failure(ErrorKind::usage, "the plan has " + std::to_string(plan.ranks()) + " ranks, but mpirun started " +
                                        std::to_string(world.size()) + " processes: start " +
                                        std::to_string(plan.ranks()) + " with mpirun -np " +
                                        std::to_string(plan.ranks()) + ", or make a plan for " +
                                        std::to_string(world.size()));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : runtime.cores_per_rank();
  HostPlatform::require(plan.precision);
  world.set_timeout(options.world.timeout);
  TrainReport report = detail::begin_report(plan, options);
  std::mutex mutex;
  const int tied = runtime.bound() ? 0 : threads;  // mpirun may have chosen the cores
  const PinnedRank pin(runtime.local_rank(), runtime.local_size(), tied);
  const HostPlatform platform{threads, &pin};
  if (plan.precision == Precision::fp32)
    detail::train_rank<HostPlatform, float, List>(world, platform, plan, model, source, options, report, mutex);
  else
    detail::train_rank<HostPlatform, bfloat16, List>(world, platform, plan, model, source, options, report, mutex);
  gather_report(world, report, options.recorder, [&](int rank) {
    return std::ranges::find(runtime.local_ranks(), rank) != runtime.local_ranks().end();
  });
  detail::finish_report(report);
  return report;
}

}  // namespace galvatron::train
