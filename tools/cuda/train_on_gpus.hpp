// Where the trainer of ranks on GPUs is instantiated: shared_*.cpp (all on one) and own_*.cpp (one each) of this
// folder.
#pragma once

#include <mutex>

#include <galvatron/train/gpu_processes.hpp>
#include <galvatron/train/gpus.hpp>

#define GALVATRON_TRAIN_ON_GPU(World, T)                                                                               \
  void train_rank<CudaPlatform, World, T, InstantiatedStrategies>(World&, const CudaPlatform&, const Plan&,            \
                                                                  const ModelSpec&, BatchSource&, const TrainOptions&, \
                                                                  TrainReport&, std::mutex&)

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_ON_GPU(OneGpuWorld, float);
extern template GALVATRON_TRAIN_ON_GPU(OneGpuWorld, bfloat16);
extern template GALVATRON_TRAIN_ON_GPU(GpuWorld, float);
extern template GALVATRON_TRAIN_ON_GPU(GpuWorld, bfloat16);
}  // namespace galvatron::train::detail
