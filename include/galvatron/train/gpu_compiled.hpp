// The trainer on GPUs with every strategy, compiled elsewhere: what includes this and links galvatron::gpu_trainer
// instantiates no layers. Ranks may share a GPU or have one each.
#pragma once

#include <galvatron/device/cuda/machine.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron {
extern template GALVATRON_LAYERS(device::Cuda, float);
extern template GALVATRON_LAYERS(device::Cuda, bfloat16);
extern template GALVATRON_TRAIN_RANK(train::CudaPlatform, float);
extern template GALVATRON_TRAIN_RANK(train::CudaPlatform, bfloat16);
extern template GALVATRON_TRAIN_TASK_RANK(train::CudaPlatform, float);
extern template GALVATRON_TRAIN_TASK_RANK(train::CudaPlatform, bfloat16);
}  // namespace galvatron
