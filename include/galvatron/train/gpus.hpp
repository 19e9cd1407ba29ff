// The trainer of ranks on GPUs: threads of this process, several on one GPU.
#pragma once

#include <mutex>

#include <galvatron/comm/local_gpu/local_gpu.hpp>
#include <galvatron/comm/thread/thread.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/device/cuda/stream.hpp>
#include <galvatron/train/cuda_rank.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

/// A rank's world when all ranks are on one GPU.
using OneGpuWorld = comm::local_gpu::World<comm::local_gpu::CudaStream>;

namespace detail {

/// Calls body(world, platform) on a thread for each of `ranks` ranks on GPU `ordinal`; throws what failed first.
template <class Body>
void on_one_gpu(int ranks, int ordinal, const comm::thread::Options& options, const Body& body) {
  device::cuda::use_device(ordinal);
  comm::local_gpu::Shared<comm::local_gpu::CudaStream> shared;
  comm::thread::run(
      ranks,
      [&](comm::thread::World& control) {
        device::cuda::use_device(ordinal);
        device::cuda::Stream compute;
        device::cuda::Stream messages;
        comm::local_gpu::CudaStream computing(compute);
        comm::local_gpu::CudaStream sending(messages);
        OneGpuWorld world(control, shared, computing, sending);
        body(world, CudaPlatform{ordinal, &compute});
      },
      options);
}

}  // namespace detail

/// Trains as the plan says, every rank on GPU `ordinal`: with several a check of plans, not a way to be fast. The rest
/// as train() of rank threads.
template <class List = InstantiatedStrategies>
TrainReport train_on_gpu(const Plan& plan, const ModelSpec& model, BatchSource& source, const TrainOptions& options,
                         int ordinal = 0) {
  CudaPlatform::require(plan.precision, ordinal);
  TrainReport report = detail::begin_report(plan, options);
  std::mutex mutex;
  detail::on_one_gpu(plan.ranks(), ordinal, options.world, [&](OneGpuWorld& world, const CudaPlatform& platform) {
    if (plan.precision == Precision::fp32)
      detail::train_rank<CudaPlatform, float, List>(world, platform, plan, model, source, options, report, mutex);
    else
      detail::train_rank<CudaPlatform, bfloat16, List>(world, platform, plan, model, source, options, report, mutex);
  });
  detail::finish_report(report);
  return report;
}

}  // namespace galvatron::train
