// The trainer of ranks that are processes: every process of an MPI job trains as one rank of the plan.
#pragma once

#include <algorithm>
#include <string>

#include <galvatron/comm/mpi/world.hpp>
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
/// @return  as gather_report() says
/// Throws as train() of rank threads does, and Failure (usage) if the plan has another number of ranks than the job.
template <class List = InstantiatedStrategies>
TrainReport train(const comm::mpi::Runtime& runtime, comm::mpi::World& world, const Plan& plan, const ModelSpec& model,
                  BatchSource& source, const TrainOptions& options) {
  detail::require_ranks(plan, world.size(), "mpirun started", " with mpirun -np " + std::to_string(plan.ranks()));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : runtime.cores_per_rank();
  HostPlatform::require(plan.precision);
  world.set_timeout(options.world.timeout);
  const int tied = runtime.bound() ? 0 : threads;  // mpirun may have chosen the cores
  PinnedRank pin(runtime.local_rank(), runtime.local_size(), tied);
  const HostPlatform platform{threads, &pin};
  TrainReport report = detail::train_ranks<List>(plan, model, source, options,
                                                 [&](const auto& train_one) { train_one(world, platform); });
  gather_report(world, report, options.recorder, [&](int rank) {
    return std::ranges::find(runtime.local_ranks(), rank) != runtime.local_ranks().end();
  });
  return report;
}

}  // namespace galvatron::train
