// Every strategy's layers and rank on GPUs, with ranks on one GPU or on one each. One unit, because fp32 and bf16 share
// most of what they compile.
#include <galvatron/train/gpu_compiled.hpp>

namespace galvatron {
GALVATRON_TRAINER(template, device::Cuda, train::CudaPlatform);
}  // namespace galvatron
