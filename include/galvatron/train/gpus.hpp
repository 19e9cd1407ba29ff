// The trainer of ranks on GPUs: threads of this process, all on one GPU; or with a GPU each, over NCCL, threads of this
// process or processes that torchrun, mpirun or srun have started.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <galvatron/comm/tcp/world.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/rank/gpu_world.hpp>
#include <galvatron/train/gather_report.hpp>
#include <galvatron/train/task_trainer.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

/// Trains as the plan says, every rank on GPU `ordinal`: with several a check of plans, not a way to be fast. The rest
/// as train() of rank threads.
template <class List = InstantiatedStrategies>
TrainReport train_on_gpu(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options,
                         int ordinal = 0) {
  CudaPlatform::require(plan.precision, ordinal);
  const int threads = threads_per_rank(options, plan.ranks());
  return detail::train_ranks<List>(plan, model, source, options, [&](const auto& train_one) {
    detail::on_one_gpu(plan.ranks(), ordinal, options.world, with_platform(train_one, options.deterministic, threads));
  });
}

/// Trains as the plan says, rank r as a thread of this process on GPU r. The losses are those of one rank to rounding:
/// NCCL adds in an order of its own. The rest as train() of rank threads.
/// Throws also DeviceFailure when there are fewer GPUs than ranks.
template <class List = InstantiatedStrategies>
TrainReport train_on_gpus(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options) {
  const int threads = threads_per_rank(options, plan.ranks());
  return detail::train_ranks<List>(plan, model, source, options, [&](const auto& train_one) {
    detail::on_own_gpus(plan.ranks(), options.world.timeout, with_platform(train_one, options.deterministic, threads));
  });
}

/// The same, this process as one of the ranks; the body of comm::tcp::run(), called by all processes:
///
///     const auto env = value_or_throw(comm::launch_environment());       // torchrun, mpirun, srun
///     comm::tcp::run(env, [&](comm::tcp::World& control) {
///       const auto report = train::train_on_gpus(control, env.local_rank, plan, model, batches, options);
///     });
///
/// @param ordinal  this process's GPU, of which no other process may be  @param source  this process's own
/// @return  as gather_report() says
/// Throws also Failure (usage) if the plan has another number of ranks than the job, or two processes have one GPU.
template <class List = InstantiatedStrategies>
TrainReport train_on_gpus(comm::tcp::World& control, int ordinal, const Plan& plan, const ModelSpec& model,
                          BatchSource& source, const TrainOptions& options) {
  detail::require_ranks(plan, control.size(), "there are");
  control.set_timeout(options.world.timeout);
  const std::vector<Seat> seats = take_seats(control, seat_on(ordinal));
  const Seat& own = seats[static_cast<std::size_t>(control.rank())];
  const auto is_here = [&](const Seat& seat) { return seat.same_host(own); };
  const int threads = threads_per_rank(options, static_cast<int>(std::ranges::count_if(seats, is_here)));
  TrainReport report = detail::train_ranks<List>(plan, model, source, options, [&](const auto& train_one) {
    detail::on_own_gpu(control, ordinal, options.world.timeout,
                       with_platform(train_one, options.deterministic, threads));
  });
  gather_report(control, report, options.recorder,
                [&](int rank) { return is_here(seats[static_cast<std::size_t>(rank)]); });
  return report;
}

/// A model of several tasks, every rank on GPU `ordinal`. The rest as train_tasks() of rank threads.
template <class Policy>
TaskTrainReport train_tasks_on_gpu(const MultiTaskModel& model, const WavePlan& waves,
                                   const std::vector<TaskSources>& sources, const TaskTrainOptions& options,
                                   int ordinal = 0) {
  const TaskPlan plan = value_or_throw(detail::first_task_plan(model, waves, Policy::order, options));
  CudaPlatform::require(options.precision, ordinal);
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(plan.ranks);
  return detail::train_task_ranks(model, plan, sources, options, [&](const auto& train_one) {
    detail::on_one_gpu(plan.ranks, ordinal, options.world, with_platform(train_one, options.deterministic, threads));
  });
}

/// The same, rank r as a thread of this process on GPU r; see train_on_gpus().
template <class Policy>
TaskTrainReport train_tasks_on_gpus(const MultiTaskModel& model, const WavePlan& waves,
                                    const std::vector<TaskSources>& sources, const TaskTrainOptions& options) {
  const TaskPlan plan = value_or_throw(detail::first_task_plan(model, waves, Policy::order, options));
  const int threads = options.threads_per_rank > 0 ? options.threads_per_rank : threads_per_rank(plan.ranks);
  return detail::train_task_ranks(model, plan, sources, options, [&](const auto& train_one) {
    detail::on_own_gpus(plan.ranks, options.world.timeout, with_platform(train_one, options.deterministic, threads));
  });
}

/// The same, this process as one of the ranks; see train_on_gpus().
template <class Policy>
TaskTrainReport train_tasks_on_gpus(comm::tcp::World& control, int ordinal, const MultiTaskModel& model,
                                    const WavePlan& waves, const std::vector<TaskSources>& sources,
                                    const TaskTrainOptions& options) {
  const TaskPlan plan = value_or_throw(detail::first_task_plan(model, waves, Policy::order, options));
  if (plan.ranks != control.size())
    throw Failure(ErrorKind::usage, "the plan is for " + std::to_string(plan.ranks) + " ranks, and there are " +
                                        std::to_string(control.size()) + ": start as many");
  control.set_timeout(options.world.timeout);
  const std::vector<Seat> seats = take_seats(control, seat_on(ordinal));
  const Seat& own = seats[static_cast<std::size_t>(control.rank())];
  const auto is_here = [&](const Seat& seat) { return seat.same_host(own); };
  const int threads = options.threads_per_rank > 0
                          ? options.threads_per_rank
                          : threads_per_rank(static_cast<int>(std::ranges::count_if(seats, is_here)));
  TaskTrainReport report = detail::train_task_ranks(model, plan, sources, options, [&](const auto& train_one) {
    detail::on_own_gpu(control, ordinal, options.world.timeout,
                       with_platform(train_one, options.deterministic, threads));
  });
  gather_report(control, report, options.recorder,
                [&](int rank) { return is_here(seats[static_cast<std::size_t>(rank)]); });
  return report;
}

}  // namespace galvatron::train
