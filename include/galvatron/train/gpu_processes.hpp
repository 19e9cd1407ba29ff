// The trainer of ranks with a GPU each, over NCCL: threads of this process, or processes that torchrun, mpirun or srun
// have started.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/rank/gpu_world.hpp>
#include <galvatron/train/gather_report.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

namespace detail {

/// What every rank with a GPU of its own does.
template <class List>
void train_on_own_gpu(GpuWorld& world, int ordinal, device::cuda::Stream& compute, const Plan& plan,
                      const ModelSpec& model, BatchSource& source, const TrainOptions& options, TrainReport& report,
                      std::mutex& mutex) {
  const CudaPlatform platform{ordinal, &compute};
  if (plan.precision == Precision::fp32)
    train_rank<CudaPlatform, float, List>(world, platform, plan, model, source, options, report, mutex);
  else
    train_rank<CudaPlatform, bfloat16, List>(world, platform, plan, model, source, options, report, mutex);
}

}  // namespace detail

/// Trains as the plan says, rank r as a thread of this process on GPU r. The losses are those of one rank to rounding:
/// NCCL adds in an order of its own. The rest as train() of rank threads.
/// Throws also DeviceFailure when there are fewer GPUs than ranks.
template <class List = InstantiatedStrategies>
TrainReport train_on_gpus(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options) {
  TrainReport report = detail::begin_report(plan, options);
  std::mutex mutex;
  detail::on_own_gpus(
      plan.ranks(), options.world.timeout, [&](GpuWorld& world, int ordinal, device::cuda::Stream& compute) {
        detail::train_on_own_gpu<List>(world, ordinal, compute, plan, model, source, options, report, mutex);
      });
  detail::finish_report(report);
  return report;
}

/// The same, this process as one of the ranks; the body of comm::tcp::run(), called by all processes:
///
///     const auto env = value_or_throw(comm::launch_environment());       // torchrun, mpirun, srun
///     comm::tcp::run(env, [&](comm::tcp::World& control) {
///       const auto report = train::train_on_gpus(control, env.local_rank, plan, model, batches, options);
///     });
///
/// @param ordinal  this process's GPU, of which no other process may be  @param source  this process's own
/// @return  memory and checkpoints of all ranks on every one; steps, iteration_seconds and what the recorder has of the
///          others on rank 0 only
/// Throws also Failure (usage) if the plan has another number of ranks than the job, or two processes have one GPU.
template <class List = InstantiatedStrategies>
TrainReport train_on_gpus(comm::tcp::World& control, int ordinal, const Plan& plan, const ModelSpec& model,
                          BatchSource& source, const TrainOptions& options) {
  if (plan.ranks() != control.size())
    throw Failure(ErrorKind::usage, "the plan has " + std::to_string(plan.ranks()) + " ranks, but there are " +
                                        std::to_string(control.size()) + " processes: start " +
                                        std::to_string(plan.ranks()) + ", or make a plan for " +
                                        std::to_string(control.size()));
  control.set_timeout(options.world.timeout);
  const std::vector<Seat> seats = take_seats(control, seat_on(ordinal));
  TrainReport report = detail::begin_report(plan, options);
  std::mutex mutex;
  detail::on_own_gpu(control, ordinal, options.world.timeout,
                     [&](GpuWorld& world, int gpu, device::cuda::Stream& compute) {
                       detail::train_on_own_gpu<List>(world, gpu, compute, plan, model, source, options, report, mutex);
                     });
  const Seat& own = seats[static_cast<std::size_t>(control.rank())];
  gather_report(control, report, options.recorder,
                [&](int rank) { return seats[static_cast<std::size_t>(rank)].same_host(own); });
  detail::finish_report(report);
  return report;
}

}  // namespace galvatron::train
