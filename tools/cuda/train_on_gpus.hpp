// Where the trainer of ranks on GPUs is instantiated: train_fp32.cpp and train_bf16.cpp of this folder.
#pragma once

#include <mutex>

#include <galvatron/train/gpus.hpp>

#define GALVATRON_TRAIN_ON_GPU(T)                                                                          \
  void train_rank<CudaPlatform, OneGpuWorld, T, InstantiatedStrategies>(                                   \
      OneGpuWorld&, const CudaPlatform&, const Plan&, const ModelSpec&, BatchSource&, const TrainOptions&, \
      TrainReport&, std::mutex&)

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_ON_GPU(float);
extern template GALVATRON_TRAIN_ON_GPU(bfloat16);
}  // namespace galvatron::train::detail
