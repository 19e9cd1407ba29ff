// Every strategy's rank in fp32, of ranks that share a GPU: a unit of its own, because it takes long to compile.
#include "train_on_gpus.hpp"

namespace galvatron::train::detail {
template GALVATRON_TRAIN_RANK(CudaPlatform, OneGpuWorld, float);
}
