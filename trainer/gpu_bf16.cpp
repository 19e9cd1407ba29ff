// Every strategy's layers and rank on GPUs in bf16, with ranks on one GPU or on one each.
#include <galvatron/train/gpu_compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Cuda, bfloat16);
template GALVATRON_TRAIN_RANK(train::CudaPlatform, bfloat16);
template GALVATRON_TRAIN_TASK_RANK(train::CudaPlatform, bfloat16);
}  // namespace galvatron
