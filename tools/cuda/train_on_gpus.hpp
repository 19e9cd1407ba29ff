// Where the trainer of ranks on GPUs is instantiated: shared_*.cpp (all on one) and own_*.cpp (one each) of this
// folder.
#pragma once

#include <galvatron/train/compiled.hpp>
#include <galvatron/train/gpu_processes.hpp>
#include <galvatron/train/gpus.hpp>

namespace galvatron::train::detail {
extern template GALVATRON_TRAIN_RANK(CudaPlatform, OneGpuWorld, float);
extern template GALVATRON_TRAIN_RANK(CudaPlatform, OneGpuWorld, bfloat16);
extern template GALVATRON_TRAIN_RANK(CudaPlatform, GpuWorld, float);
extern template GALVATRON_TRAIN_RANK(CudaPlatform, GpuWorld, bfloat16);
}  // namespace galvatron::train::detail
