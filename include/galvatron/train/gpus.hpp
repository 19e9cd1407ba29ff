// The trainer of ranks on GPUs: threads of this process, several on one GPU.
#pragma once

#include <mutex>

#include <galvatron/core/error.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/rank/one_gpu.hpp>
#include <galvatron/train/trainer.hpp>

namespace galvatron::train {

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
