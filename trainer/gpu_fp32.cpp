// Every strategy's layers and rank on GPUs in fp32, with ranks on one GPU or on one each.
#include <galvatron/train/gpu_compiled.hpp>

namespace galvatron {
template GALVATRON_LAYERS(device::Cuda, float);
template GALVATRON_TRAIN_RANK(train::CudaPlatform, float);
template GALVATRON_TRAIN_TASK_RANK(train::CudaPlatform, float);
}  // namespace galvatron
