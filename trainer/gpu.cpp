// Every strategy's layers and rank on GPUs, with ranks on one GPU or on one each. One unit, because fp32 and bf16 share
// most of what they compile.
#include <galvatron/train/gpu_compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Cuda, float);
template GALVATRON_LAYERS(device::Cuda, bfloat16);
template GALVATRON_TRAIN_RANK(train::CudaPlatform, float);
template GALVATRON_TRAIN_RANK(train::CudaPlatform, bfloat16);
template GALVATRON_TRAIN_TASK_RANK(train::CudaPlatform, float);
template GALVATRON_TRAIN_TASK_RANK(train::CudaPlatform, bfloat16);
}  // namespace galvatron
