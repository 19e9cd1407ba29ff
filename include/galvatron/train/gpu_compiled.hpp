// The trainer on GPUs with every strategy, compiled elsewhere: what includes this and links galvatron::gpu_trainer
// instantiates no layers. Ranks may share a GPU or have one each.
#pragma once

#include <galvatron/device/cuda/machine.hpp>
#include <galvatron/rank/cuda_rank.hpp>
#include <galvatron/train/compiled.hpp>

namespace galvatron {
GALVATRON_TRAINER(extern template, device::Cuda, train::CudaPlatform);
}  // namespace galvatron
